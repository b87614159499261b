"""Topics are read with their states, watched per topic, and unreadable ones are skipped."""

import asyncio

import pytest

from headrace.coordination import paths, values
from headrace.coordination.registry import Registry
from headrace.coordination.topic_store import TopicStore, without_leaders
from headrace.coordination.tree import ANY_VERSION
from headrace.core.controller import NEW_PARTITION
from headrace.model.cluster_metadata import NO_LEADER
from headrace.model.errors import Corrupt
from headrace.model.ids import BrokerId, ControllerEpoch, TopicPartition
from tests.fakes.controllers import a_state, a_topic
from tests.fakes.standin import in_loop
from tests.fakes.trees import memory_tree

LIVE = [BrokerId(1), BrokerId(2)]


async def a_tree():
    session = memory_tree().open_session()
    await Registry(session, BrokerId(1)).create_persistent_nodes()
    await session.create(paths.topic("t"), values.encode_topic(a_topic()))
    return session


async def add_state(session, value):
    for path in (paths.partitions("t"), paths.partition("t", 0)):
        await session.create(path)
    return await session.create(paths.state("t", 0), value)


@in_loop
async def test_a_topic_is_read_with_its_states_and_when_they_were_written():
    session = await a_tree()
    value = values.encode_state(a_state(), ControllerEpoch(1))
    created = await add_state(session, value)
    changed = await session.set(paths.state("t", 0), value, ANY_VERSION)
    loaded = await TopicStore(session).load(["t", "ghost"], LIVE)
    (state,) = loaded.topics["t"].partitions
    assert state == a_state(partition_epoch=1)._replace(offline=(3,))
    each = TopicPartition("t", 0)
    assert (loaded.created_zxids[each], loaded.granted_zxids[each]) == (created.zxid, changed.zxid)
    assert loaded.new_partitions == []


@in_loop
async def test_a_partition_without_a_state_is_new():
    session = await a_tree()
    loaded = await TopicStore(session).load(["t"], LIVE)
    (state,) = loaded.topics["t"].partitions
    assert (state.leader, state.partition_epoch, state.isr) == (NO_LEADER, NEW_PARTITION, (1, 2, 3))
    assert loaded.new_partitions == [TopicPartition("t", 0)]
    assert without_leaders(a_topic()).partitions[0] == state._replace(offline=())


@in_loop
async def test_the_watch_fires_when_the_replicas_change():
    session = await a_tree()
    fired: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    await TopicStore(session).load(["t"], LIVE, fired.set_result)
    await session.set(paths.topic("t"), values.encode_topic(a_topic()), ANY_VERSION)
    async with asyncio.timeout(5):
        assert await fired == paths.topic("t")


@pytest.mark.parametrize("where", ["topic", "state"])
@in_loop
async def test_a_topic_that_cannot_be_read_is_skipped_or_corrupt(where, caplog):
    session = await a_tree()
    if where == "topic":
        await session.set(paths.topic("t"), b"{", ANY_VERSION)
    else:
        await add_state(session, b"{")
    store = TopicStore(session)
    loaded = await store.load(["t"], LIVE, skips_unreadable=True)
    assert (loaded.topics, loaded.created_zxids) == ({}, {})
    assert "Ignoring topic t" in caplog.text
    with pytest.raises(Corrupt):
        await store.load(["t"], LIVE)
