"""Directories of a member of a cluster: strays are set aside, missing ones noticed."""

import asyncio
from pathlib import Path

import pytest

from headrace.broker.member_directories import MemberDirectories
from headrace.broker.tasks import BackgroundTasks
from headrace.coordination import paths, values
from headrace.coordination.assignments import load_assignments
from headrace.coordination.registry import Registry
from headrace.model.cluster_metadata import TopicState
from headrace.model.ids import TopicId, TopicPartition
from tests.fakes.logs import Disk, append, batch
from tests.fakes.partition_states import a_state
from tests.fakes.standin import in_loop
from tests.fakes.trees import memory_tree
from tests.fakes.waiting import until_true

ME = 1
ORDERS_ID, OTHER_ID = TopicId(b"o" * 16), TopicId(b"p" * 16)
ORDERS = TopicPartition("orders", 0)


def a_partition(number=0, replicas=(1, 2), topic_id=ORDERS_ID, topic="orders"):
    state = a_state(isr=replicas, replicas=replicas)
    return state._replace(topic=topic, partition=number, topic_id=topic_id)


class Node:
    """One broker's disks, and a tree that knows the topics."""

    def __init__(self, *directories: Path) -> None:
        self.disk = Disk(*directories)
        self.session = memory_tree().open_session()
        self.failures = []

    async def start(self, *states):
        self.registry = Registry(self.session, ME)
        await self.registry.create_persistent_nodes()
        by_topic = {}
        for state in states:
            by_topic.setdefault((state.topic, state.topic_id), []).append(state)
        for (name, topic_id), partitions in by_topic.items():
            topic = TopicState(name, topic_id, tuple(partitions), False)
            await self.session.create(paths.topic(name), values.encode_topic(topic))
        await self.restart()
        return self

    async def restart(self):
        self.tasks = BackgroundTasks(asyncio.get_running_loop(), self.failures.append)
        self.directories = MemberDirectories(self.registry, self.disk.logs, ME, self.tasks)
        pending = await self.directories.load_pending_deletions()
        await self.directories.settle(await load_assignments(self.session), pending)

    async def recorded(self, topic="orders"):
        await until_true(lambda: not len(self.tasks))
        assert self.failures == []
        loaded = await Registry(self.session, ME).directories.load_assignment()
        return loaded.topics[topic].directories if topic in loaded.topics else None


@pytest.mark.parametrize(
    ("states", "reason"),
    [
        ([], "the cluster has no topic of that name"),
        ([a_partition(topic_id=OTHER_ID)], "it belongs to an earlier topic"),
        ([a_partition(replicas=(2, 3))], "it is not assigned to broker 1"),
        ([a_partition(replicas=(1,), topic="orderz")], "the cluster has no topic of that name"),
    ],
)
@in_loop
async def test_a_directory_that_the_cluster_does_not_know_is_set_aside(
    tmp_path, caplog, states, reason
):
    node = Node(tmp_path)
    log = node.disk.logs.create(ORDERS, ORDERS_ID, node.disk.config)
    append(log, batch(b"precious"))
    await node.start(*states)
    assert node.disk.logs.get(ORDERS) is None
    (stray,) = tmp_path.glob("orders-0.*-stray")
    assert b"precious" in (stray / "00000000000000000000.log").read_bytes()
    assert reason in caplog.text and str(stray) in caplog.text


@in_loop
async def test_a_directory_of_an_assigned_partition_stays_and_is_recorded(tmp_path):
    node = Node(tmp_path)
    log = node.disk.logs.create(ORDERS, ORDERS_ID, node.disk.config)
    await node.start(a_partition())
    assert node.disk.logs.get(ORDERS) is log
    assert await node.recorded() == {0: node.disk.logs.directories[0].directory_id}


@in_loop
async def test_a_partition_whose_disk_is_not_mounted_is_offline(tmp_path, caplog):
    first, second = tmp_path / "a", tmp_path / "b"
    node = await Node(first, second).start(a_partition(0), a_partition(1))
    node.directories.place([a_partition(0), a_partition(1)])
    for number in range(2):
        node.disk.logs.create(TopicPartition("orders", number), ORDERS_ID, node.disk.config)
    places = await node.recorded()
    assert len(set(places.values())) == 2
    lost = next(n for n, d in places.items() if d == node.disk.logs.directories[1].directory_id)
    node.disk.stop()
    node.disk.paths = (first,)
    node.disk.start()
    await node.restart()
    assert "is not online" in node.disk.logs.offline_reason(TopicPartition("orders", lost))
    assert node.disk.logs.offline_reason(TopicPartition("orders", 1 - lost)) is None
    assert f"{second}" in caplog.text


@in_loop
async def test_moves_and_deletions_are_recorded(tmp_path):
    node = await Node(tmp_path / "a", tmp_path / "b").start(a_partition())
    node.directories.place([a_partition()])
    node.disk.logs.create(ORDERS, ORDERS_ID, node.disk.config)
    before = await node.recorded()
    (target,) = (
        each.directory_id for each in node.disk.logs.directories if each.directory_id != before[0]
    )
    await node.directories.moved(ORDERS, target)
    assert await node.recorded() == {0: target}
    node.directories.forget({"orders": ORDERS_ID})
    assert await node.recorded() is None


@in_loop
async def test_a_lost_session_does_not_stop_the_broker(tmp_path, caplog):
    node = await Node(tmp_path).start(a_partition())
    await node.session.close()
    node.directories.place([a_partition()])
    await until_true(lambda: not len(node.tasks))
    assert node.failures == []
    assert "Could not record the log directories" in caplog.text


# --- partitions that were never created


def a_lone_leader(leader_epoch=2, partition_epoch=2, isr=(ME,)):
    return a_partition()._replace(
        leader=ME, isr=isr, leader_epoch=leader_epoch, partition_epoch=partition_epoch
    )


@in_loop
async def test_a_partition_whose_first_leader_ended_before_it_created_the_log_is_created(tmp_path):
    node = await Node(tmp_path).start(a_partition())
    await node.restart()
    assert node.directories.was_never_created(a_lone_leader())


@pytest.mark.parametrize(
    "state",
    [
        a_lone_leader(isr=(ME, 2)),
        a_lone_leader(partition_epoch=3),  # a leader has changed the ISR
        a_lone_leader()._replace(leader=2),
    ],
)
@in_loop
async def test_a_partition_that_had_a_leader_is_not_created_again(tmp_path, state):
    node = await Node(tmp_path).start(a_partition())
    await node.restart()
    assert not node.directories.was_never_created(state)


@in_loop
async def test_a_partition_whose_log_was_removed_is_not_created_again(tmp_path):
    node = await Node(tmp_path).start(a_partition())
    node.directories.place([a_partition()])
    await node.recorded()
    await node.restart()
    assert not node.directories.was_never_created(a_lone_leader())


@pytest.mark.parametrize("before", [("lost",), ("lost", "kept"), ()])
@in_loop
async def test_a_broker_with_other_log_directories_than_before_creates_nothing_again(
    tmp_path, before
):
    """Also one that has none recorded: another program may have served its partitions."""
    node = Node(*(tmp_path / name for name in before or ("kept",)))
    if before:
        await node.start(a_partition())
        node.disk.stop()
        node.disk.paths = (tmp_path / "kept",)
        node.disk.start()
        await node.restart()
    else:
        await node.start(a_partition())
    assert not node.directories.was_never_created(a_lone_leader())


@in_loop
async def test_the_next_session_records_what_the_last_one_could_not(tmp_path):
    node = await Node(tmp_path).start(a_partition())
    node.disk.logs.create(ORDERS, ORDERS_ID, node.disk.config)  # not recorded, so far
    assert await node.recorded() is None
    node.directories.record_again()
    assert await node.recorded() == {0: node.disk.logs.directories[0].directory_id}
