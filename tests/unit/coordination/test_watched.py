"""What brokers watch is read into our types, and a change fires the watch."""

import asyncio

import pytest

from headrace.coordination import paths, values
from headrace.coordination.registry import Registry
from headrace.coordination.tree import Create
from headrace.coordination.watched import ReassignmentRequest, WatchedNodes
from headrace.model.cluster_metadata import BrokerEntry, Endpoint
from headrace.model.ids import BrokerId, TopicPartition
from tests.fakes.standin import in_loop
from tests.fakes.trees import ScriptedFaults, memory_tree

PARTITIONS = [TopicPartition("t", 0), TopicPartition("t", 1)]
TARGETS = {TopicPartition("t", 0): (BrokerId(1), BrokerId(2))}
ENTRY = BrokerEntry(BrokerId(1), {"PLAINTEXT": Endpoint("h", 1)}, None, broker_epoch=-1)


@pytest.mark.parametrize(
    ("read", "empty", "write", "expected"),
    [
        ("topics", [], Create(paths.topic("t")), ["t"]),
        ("delete_requests", [], Create(paths.delete_topic("t")), ["t"]),
        (
            "controller",
            None,
            Create(paths.CONTROLLER, values.encode_controller(BrokerId(7), 0), ephemeral=True),
            7,
        ),
        (
            "reassignment_request",
            None,
            Create(paths.REASSIGN_PARTITIONS, values.encode_reassignment(TARGETS)),
            ReassignmentRequest(TARGETS, 0),
        ),
        (
            "preferred_election_request",
            None,
            Create(paths.PREFERRED_REPLICA_ELECTION, values.encode_partitions(PARTITIONS)),
            PARTITIONS,
        ),
        (
            "isr_changes",
            {},
            Create(paths.ISR_CHANGE_PREFIX, values.encode_partitions(PARTITIONS), sequential=True),
            {"/isr_change_notification/isr_change_0000000000": PARTITIONS},
        ),
        (
            "log_dir_events",
            {},
            Create(
                paths.LOG_DIR_EVENT_PREFIX,
                values.encode_log_dir_event(BrokerId(3)),
                sequential=True,
            ),
            {"/log_dir_event_notification/log_dir_event_0000000000": 3},
        ),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
@in_loop
async def test_a_change_fires_the_watch_and_is_read(read, empty, write, expected):
    tree = memory_tree()
    session, other = tree.open_session(), tree.open_session()
    await Registry(session, BrokerId(1)).create_persistent_nodes()
    nodes = WatchedNodes(session)
    changed = asyncio.Event()
    assert await getattr(nodes, read)(lambda path: changed.set()) == empty
    await other.multi([write])
    await asyncio.wait_for(changed.wait(), 10)
    assert await getattr(nodes, read)() == expected


@in_loop
async def test_brokers_come_with_their_epochs_and_go():
    tree = memory_tree()
    session, other = tree.open_session(), tree.open_session()
    await Registry(session, BrokerId(0)).create_persistent_nodes()
    nodes = WatchedNodes(session)
    changed = asyncio.Event()
    assert await nodes.live_brokers(lambda path: changed.set()) == {}
    value = values.encode_broker(ENTRY, 0)
    done = await other.create(paths.broker(BrokerId(1)), value, ephemeral=True)
    await asyncio.wait_for(changed.wait(), 10)
    changed.clear()
    live = await nodes.live_brokers(lambda path: changed.set())
    assert live == {1: ENTRY._replace(broker_epoch=done.zxid)}
    await other.close()
    await asyncio.wait_for(changed.wait(), 10)
    assert await nodes.live_brokers() == {}


@in_loop
async def test_notices_that_vanish_between_two_reads_are_left_out():
    tree = memory_tree()
    session = tree.open_session(ScriptedFaults())
    await Registry(session, BrokerId(0)).create_persistent_nodes()
    notice = await session.create(
        paths.LOG_DIR_EVENT_PREFIX, values.encode_log_dir_event(BrokerId(3)), sequential=True
    )
    events, _ = await asyncio.gather(
        WatchedNodes(session).log_dir_events(), session.delete(notice.path, notice.zk_version)
    )
    assert events == {}
