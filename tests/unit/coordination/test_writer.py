"""A write whose answer is lost is read back: it happens once, and the caller knows its outcome."""

import pytest

from headrace.coordination.memory import Delivery
from headrace.coordination.tree import (
    ANY_VERSION,
    BadVersion,
    Check,
    Create,
    Delete,
    NodeExists,
    SessionLost,
    Set,
)
from headrace.coordination.writer import Writer
from headrace.model.ids import ZkVersion
from tests.fakes.standin import in_loop
from tests.fakes.trees import ScriptedFaults, dump, memory_tree

lost = pytest.mark.parametrize(
    "deliveries",
    [
        [Delivery.REQUEST_LOST],
        [Delivery.ANSWER_LOST],
        [Delivery.REQUEST_LOST, Delivery.REQUEST_LOST, Delivery.ANSWER_LOST],
    ],
    ids=["request lost", "answer lost", "requests and answer lost"],
)


@lost
@pytest.mark.parametrize(
    "operations",
    [
        [Create("/new", b"1")],
        [Create("/mine", b"1", ephemeral=True)],
        [Set("/a", b"2", ZkVersion(0))],
        [Set("/a", b"1", ZkVersion(0))],  # the value that it has
        [Set("/a", b"2", ANY_VERSION)],
        [Delete("/a", ZkVersion(0))],
        [Check("/guard", ZkVersion(0)), Delete("/a", ANY_VERSION), Create("/b")],
        [Set("/a", b"2", ZkVersion(0)), Create("/guard/n_", b"notice", sequential=True)],
        [Create("/b"), Create("/b/c"), Set("/b", b"3", ZkVersion(0))],
        [Create("/b"), Delete("/a", ANY_VERSION), Delete("/b", ANY_VERSION)],
    ],
    ids=lambda operations: ", ".join(type(each).__name__ for each in operations),
)
@in_loop
async def test_a_write_happens_once_and_its_results_are_known(operations, deliveries):
    async def story(*deliveries: Delivery):
        tree = memory_tree()
        faults = ScriptedFaults()
        session = tree.open_session(faults)
        await session.multi([Create("/guard"), Create("/a", b"1")])
        faults.deliveries = list(deliveries)
        done = await Writer(session).write(operations)
        assert faults.deliveries == []
        return [each.zk_version for each in done], await dump(tree.open_session())

    versions, nodes = await story(*deliveries)
    plain_versions, plain_nodes = await story()
    assert nodes == plain_nodes
    # Nobody needs the version of a node that the write only checked or deleted.
    for operation, version, plain in zip(operations, versions, plain_versions, strict=True):
        if isinstance(operation, Create | Set):
            assert version == plain


@lost
@in_loop
async def test_the_zxid_of_a_creation_is_known(deliveries):
    session = memory_tree().open_session(ScriptedFaults(*deliveries))
    (done,) = await Writer(session).write([Create("/a", ephemeral=True)])
    node = await session.get("/a")
    assert node is not None and node.created_zxid == done.zxid


@lost
@in_loop
async def test_a_refusal_is_raised_though_its_answer_was_lost(deliveries):
    tree = memory_tree()
    other = tree.open_session()
    await other.create("/a", b"theirs")
    writer = Writer(tree.open_session(ScriptedFaults(*deliveries)))
    with pytest.raises(BadVersion):
        await writer.write([Set("/a", b"mine", ZkVersion(7))])
    with pytest.raises(NodeExists):
        await writer.write([Create("/a", b"mine")])
    assert (await dump(other))["/a"][:2] == (b"theirs", 0)


@lost
@in_loop
async def test_an_ephemeral_node_of_another_session_is_not_taken_for_ours(deliveries):
    tree = memory_tree()
    await tree.open_session().create("/seat", b"same value", ephemeral=True)
    writer = Writer(tree.open_session(ScriptedFaults(*deliveries)))
    with pytest.raises(NodeExists):
        await writer.write([Create("/seat", b"same value", ephemeral=True)])


@in_loop
async def test_a_value_that_another_process_wrote_since_is_not_overwritten():
    tree = memory_tree()
    other = tree.open_session()
    await other.create("/a", b"0")
    session = tree.open_session(ScriptedFaults(Delivery.REQUEST_LOST))
    await other.set("/a", b"theirs", ZkVersion(0))
    with pytest.raises(BadVersion):
        await Writer(session).write([Set("/a", b"mine", ZkVersion(0))])
    assert (await dump(other))["/a"][:2] == (b"theirs", 1)


@lost
@in_loop
async def test_a_node_is_created_once_by_the_first_of_two(deliveries):
    tree = memory_tree()
    first = Writer(tree.open_session(ScriptedFaults(*deliveries)))
    second = Writer(tree.open_session(ScriptedFaults(lag=1e6)))
    assert (await first.get_or_create("/a", b"first")).value == b"first"
    assert (await second.get_or_create("/a", b"second")).value == b"first"


@in_loop
async def test_a_session_that_ends_is_reported_as_such():
    tree = memory_tree()
    session = tree.open_session()
    tree.expire(session.session_id)
    with pytest.raises(SessionLost):
        await Writer(session).write([Create("/a")])
    with pytest.raises(SessionLost):
        await Writer(session).get_or_create("/a")
