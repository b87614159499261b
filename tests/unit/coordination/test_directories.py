"""The directory assignment of one broker: stored, loaded, and guarded by its own versions."""

import pytest

from headrace.coordination import paths
from headrace.coordination.directories import AssignmentChange, DirectoryStore
from headrace.coordination.memory import MemorySession, MemoryTree
from headrace.coordination.tree import Create
from headrace.coordination.writer import Writer
from headrace.model.cluster_metadata import TopicDirectories
from headrace.model.errors import Fenced
from headrace.model.ids import BrokerId, TopicId
from tests.fakes.standin import in_loop
from tests.fakes.trees import dump, memory_tree

TOPIC_ID = TopicId(bytes(range(16)))
ROOT = "/headrace"


def a_store(session: MemorySession, broker_id: int = 1) -> DirectoryStore:
    return DirectoryStore(session, Writer(session), BrokerId(broker_id))


async def loaded_store(tree: MemoryTree, broker_id: int = 1) -> DirectoryStore:
    session = tree.open_session()
    if await session.get(ROOT) is None:
        await session.multi(
            [Create(ROOT), Create(paths.DIRECTORY_ASSIGNMENT), Create(paths.PENDING_DELETIONS)]
        )
    store = a_store(session, broker_id)
    await store.load_assignment()
    await store.load_pending_deletions()
    return store


def directories(**by_partition: str) -> TopicDirectories:
    return TopicDirectories(TOPIC_ID, {int(p[1:]): each for p, each in by_partition.items()})


@in_loop
async def test_a_first_load_finds_nothing():
    store = await loaded_store(memory_tree())
    assert await store.load_assignment() == ({}, {})
    assert await store.load_pending_deletions() == {}


@in_loop
async def test_what_was_stored_is_loaded_in_the_next_session():
    tree = memory_tree()
    store = await loaded_store(tree)
    await store.store_paths({"a": "/data/a"})
    await store.store(AssignmentChange({"t": directories(p0="a", p1="b")}, {TOPIC_ID: {"b"}}))

    again = a_store(tree.open_session())
    assert await again.load_assignment() == (
        {"a": "/data/a"},
        {"t": directories(p0="a", p1="b")},
    )
    assert await again.load_pending_deletions() == {TOPIC_ID: {"b"}}


@in_loop
async def test_a_stored_set_has_one_order():
    tree = memory_tree()
    store = await loaded_store(tree)
    await store.store(AssignmentChange({}, {TOPIC_ID: {"c", "a", "b"}}))
    node = await tree.open_session().get(paths.pending_deletion(BrokerId(1), TOPIC_ID))
    assert node is not None
    assert node.value == b'{"version":1,"directories":{"a":"","b":"","c":""}}'


@in_loop
async def test_entries_are_created_changed_and_deleted_in_any_order():
    tree = memory_tree()
    store = await loaded_store(tree)
    before = await dump(tree.open_session(), ROOT)
    await store.store(AssignmentChange({"t": directories(p0="a")}))
    await store.store(AssignmentChange({"t": directories(p0="b")}, {TOPIC_ID: {"a"}}))
    await store.store(AssignmentChange({"t": directories(p0="c")}))
    await store.store(AssignmentChange({"t": None, "unknown": None}, {TOPIC_ID: set()}))
    await store.store(AssignmentChange({"t": None}))
    assert await dump(tree.open_session(), ROOT) == before
    await store.store(AssignmentChange({"t": directories(p0="d")}))
    assert (await a_store(tree.open_session()).load_assignment()).topics == {
        "t": directories(p0="d")
    }


@in_loop
async def test_brokers_have_assignments_of_their_own():
    tree = memory_tree()
    first, second = await loaded_store(tree, 1), await loaded_store(tree, 2)
    await first.store(AssignmentChange({"t": directories(p0="a")}))
    await second.store(AssignmentChange({"t": directories(p0="b")}))
    assert (await first.load_assignment()).topics == {"t": directories(p0="a")}
    assert (await second.load_assignment()).topics == {"t": directories(p0="b")}


@in_loop
async def test_a_second_process_with_the_same_broker_id_is_fenced():
    tree = memory_tree()
    first = await loaded_store(tree)
    await first.store(AssignmentChange({"t": directories(p0="a")}))
    second = await loaded_store(tree)
    await first.store(AssignmentChange({"t": directories(p0="b")}))
    for change in (
        AssignmentChange({"t": directories(p0="c")}),
        AssignmentChange({"t": None}),
    ):
        with pytest.raises(Fenced, match="as broker 1"):
            await second.store(change)
    await first.store_paths({"a": "/data/a"})
    with pytest.raises(Fenced, match="as broker 1"):
        await second.store_paths({})
    assert (await first.load_assignment()).topics == {"t": directories(p0="b")}
