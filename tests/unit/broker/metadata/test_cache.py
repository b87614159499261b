"""The metadata cache reports changed topics to its listeners, after the replicas."""

import asyncio

from headrace.broker.metadata.cache import MetadataCache
from headrace.model.cluster_metadata import ClusterMetadata
from tests.fakes.groups import a_topic
from tests.fakes.standin import in_loop


@in_loop
async def test_listeners_get_deleted_and_recreated_topics_after_the_replicas():
    cache, heard = MetadataCache(asyncio.get_running_loop(), []), []
    cache.on_topics_changed(lambda deleted: heard.append(list(deleted)))
    before = ClusterMetadata("c").with_topics([a_topic("kept", 1), a_topic("gone", 1)])
    cache.publish(before)
    await asyncio.sleep(0)
    cache.publish(before.with_topics([a_topic("kept", 1, fill="new")], ["gone"]))
    assert cache.current.topics.keys() == {"kept"} and heard == [[]]
    await asyncio.sleep(0)
    assert heard == [[], ["kept", "gone"]]


@in_loop
async def test_a_bug_in_a_listener_stops_the_broker():
    failures = []
    cache = MetadataCache(asyncio.get_running_loop(), failures.append)
    cache.on_topics_changed(lambda deleted: 1 / 0)
    cache.publish(ClusterMetadata("c").with_topics([a_topic("t", 1)]))
    await asyncio.sleep(0)
    assert [type(failure) for failure in failures] == [ZeroDivisionError]
