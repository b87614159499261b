"""The metadata cache reports changed topics to its listeners, after the replicas."""

import asyncio

import pytest

from headrace.broker.metadata.cache import MetadataCache
from headrace.model.cluster_metadata import BrokerEntry, ClusterMetadata
from headrace.model.errors import MetadataUnknown
from headrace.model.ids import BrokerId
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


@in_loop
async def test_clients_wait_until_the_first_metadata_are_complete():
    cache = MetadataCache(asyncio.get_running_loop(), [])
    cache.hold()
    waiting = asyncio.create_task(cache.wait_to_be_told())
    cache.publish(ClusterMetadata("c").with_brokers([a_broker()], BrokerId(1)))
    await asyncio.sleep(0)
    assert not cache.can_be_told and not waiting.done()
    cache.release()
    await waiting
    assert cache.can_be_told


@in_loop
async def test_clients_are_told_of_no_cluster_without_brokers():
    cache = MetadataCache(asyncio.get_running_loop(), [])
    assert not cache.can_be_told
    with pytest.raises(MetadataUnknown):
        await cache.wait_to_be_told()


def a_broker():
    return BrokerEntry(BrokerId(1), {}, None, 1)
