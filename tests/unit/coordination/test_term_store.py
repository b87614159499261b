"""The writes of a term: batches behind one check, repeated singly, refused after its end."""

import pytest

from headrace.coordination import paths, term_store, values
from headrace.coordination.registry import Registry
from headrace.coordination.tree import ANY_VERSION, Conflict, Create
from headrace.core.controller import NEW_PARTITION, ChangePartition
from headrace.model.cluster_metadata import TopicState
from headrace.model.errors import ErrorCode, Fenced, Rejected
from headrace.model.ids import BrokerId, Millis
from tests.fakes.controllers import ID, a_state
from tests.fakes.standin import in_loop
from tests.fakes.trees import memory_tree

NOW = Millis(1_700_000_000_000)


async def elected(tree, broker_id=1):
    registry = Registry(tree.open_session(), BrokerId(broker_id))
    await registry.create_persistent_nodes()
    await registry.take_controllership(NOW)
    return registry


def first_state(partition):
    return a_state((1,), partition=partition, leader_epoch=0, partition_epoch=0)


def topic_of(count):
    return TopicState("t", ID, tuple(first_state(partition) for partition in range(count)), False)


@in_loop
async def test_many_states_are_written_behind_few_checks(monkeypatch):
    monkeypatch.setattr(term_store, "OPERATIONS_PER_WRITE_MAX", 4)
    tree = memory_tree()
    store = (await elected(tree)).term
    await store.create_topic(topic_of(10), {})
    result = await store.write_states(
        [ChangePartition(first_state(p), NEW_PARTITION) for p in range(10)]
    )
    assert [change.state.partition for change in result.written] == list(range(10))
    assert len(set(result.zxids.values())) == 3
    assert result.stale == []


@in_loop
async def test_one_stale_state_is_reported_and_the_others_are_written():
    tree = memory_tree()
    store = (await elected(tree)).term
    await store.create_topic(topic_of(3), {})
    await store.write_states([ChangePartition(first_state(p), NEW_PARTITION) for p in range(3)])
    session = tree.open_session()
    await session.set(paths.state("t", 1), b"other", ANY_VERSION)
    later = [first_state(p)._replace(partition_epoch=1) for p in range(3)]
    result = await store.write_states([ChangePartition(state, 0) for state in later])
    assert [change.state.partition for change in result.written] == [0, 2]
    assert [each.partition for each in result.stale] == [1]
    node = await session.get(paths.state("t", 1))
    assert node is not None and node.value == b"other"


@in_loop
async def test_a_newer_controller_and_the_end_of_the_term_fence_every_write():
    tree = memory_tree()
    old = await elected(tree)
    session = tree.open_session()
    await session.delete(paths.CONTROLLER, ANY_VERSION)
    new = await elected(tree, 2)
    new.term.end()
    for writing in (old.term, new.term):
        for write in (
            lambda w=writing: w.create_topic(topic_of(1), {}),
            lambda w=writing: w.write([Create("/x")]),
            lambda w=writing: w.delete(paths.FEATURE),
            lambda w=writing: w.request_deletion("t"),
        ):
            with pytest.raises(Fenced):
                await write()
    assert await session.children(paths.BROKER_TOPICS) == []


@in_loop
async def test_a_conflict_elsewhere_is_no_end_of_the_term():
    tree = memory_tree()
    store = (await elected(tree)).term
    with pytest.raises(Conflict):
        await store.write([Create("/no/parent")])
    await store.delete("/not/there")
    await store.write([Create("/x")])


@in_loop
async def test_a_topic_is_created_once_and_replaces_settings_that_were_left():
    tree = memory_tree()
    registry = await elected(tree)
    session = tree.open_session()
    await session.create(paths.config("topics", "t"), values.encode_config({"retention.ms": "9"}))
    await registry.term.create_topic(topic_of(1), {"retention.ms": "1"})
    assert await registry.configs.read("topics", "t") == {"retention.ms": "1"}
    for create in (registry.term.create_topic, registry.create_topic):
        with pytest.raises(Rejected) as refused:
            await create(topic_of(1), {"retention.ms": "2"})
        assert refused.value.code == ErrorCode.TOPIC_ALREADY_EXISTS
    assert await registry.configs.read("topics", "t") == {"retention.ms": "1"}


@in_loop
async def test_replicas_are_replaced_only_if_no_other_program_changed_them():
    tree = memory_tree()
    store = (await elected(tree)).term
    await store.create_topic(topic_of(1), {})
    await store.assign(topic_of(2), before=topic_of(1))
    with pytest.raises(Rejected) as refused:
        await store.assign(topic_of(3), before=topic_of(1))
    assert refused.value.code == ErrorCode.REQUEST_TIMED_OUT
    node = await tree.open_session().get(paths.topic("t"))
    assert node is not None and len(values.decode_topic("t", node.value).replicas) == 2


@pytest.mark.parametrize("size", [1, 2, 3, 200])
@in_loop
async def test_a_deletion_that_was_interrupted_is_finished(monkeypatch, size):
    monkeypatch.setattr(term_store, "OPERATIONS_PER_WRITE_MAX", size)
    tree = memory_tree()
    store = (await elected(tree)).term
    session = tree.open_session()
    await store.create_topic(topic_of(3), {})
    await store.write_states([ChangePartition(first_state(p), NEW_PARTITION) for p in range(3)])
    await store.request_deletion("t")
    await store.request_deletion("t")
    await session.delete(paths.state("t", 1), ANY_VERSION)
    await session.delete(paths.config("topics", "t"), ANY_VERSION)
    while not await store.delete_topic("t"):
        assert await session.get(paths.delete_topic("t")) is not None
    assert await session.children(paths.BROKER_TOPICS) == []
    assert await session.children(paths.DELETE_TOPICS) == []
