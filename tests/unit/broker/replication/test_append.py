"""Appending as a leader: who may append, when records are committed, and what waiters hear."""

import asyncio

import pytest

from headrace.broker.replication.append import ACKS_ALL, ACKS_LEADER, Appender
from headrace.broker.replication.effects import Effects
from headrace.broker.replication.replica import Replica
from headrace.broker.replication.waiting import Waiting
from headrace.broker.tasks import BackgroundTasks
from headrace.core.leadership import ReplicationSettings
from headrace.core.parked import Event
from headrace.core.partition import Partition
from headrace.model.errors import ErrorCode, Rejected
from headrace.model.ids import BrokerId, Offset
from tests.fakes.logs import NOW, ORDERS, Disk, batch, settings
from tests.fakes.partition_states import a_state
from tests.fakes.standin import StillWorld, in_loop

BROKER = BrokerId(1)
PRODUCE_VERSION = 9


class Waiter:
    """Notes the events of a replica."""

    def __init__(self):
        self.events = []
        self.told = asyncio.Event()

    def happened(self, event, replica):
        self.events.append(event)
        self.told.set()
        return False

    def deadline_passed(self):
        raise AssertionError("it has no deadline")


class Leader:
    """A leader of one partition with a log on disk."""

    def __init__(self, disk, *, isr=(1,), min_isr=1, flush_messages=1 << 62):
        self.disk = disk
        self.log = disk.log()
        loop = asyncio.get_running_loop()
        self.failures = []
        self.waiting = Waiting(loop, self.failures.append)
        self.tasks = BackgroundTasks(loop, self.failures.append)
        self.effects = Effects(self.waiting)
        self.appender = Appender(StillWorld(), self.waiting, self.effects, self.tasks)
        partition = Partition(BROKER, ReplicationSettings(min_isr, flush_messages), Offset(0))
        self.replica = Replica(ORDERS, self.log, partition, validates_records=False)
        self.apply(a_state(isr=isr))
        self.waiter = Waiter()
        self.waiting.park(self.waiter, [self.replica])

    def apply(self, state):
        self.effects.carry_out(self.replica, self.replica.apply(state, 0))

    def stage(self, *values, acks=ACKS_ALL):
        return self.appender.stage(self.replica, batch(*values), acks, PRODUCE_VERSION)

    def heard(self):
        self.waiting.serve()
        events, self.waiter.events = self.waiter.events, []
        return events


@pytest.fixture
def disk(tmp_path):
    disk = Disk(tmp_path)
    yield disk
    disk.crash()


@in_loop
async def test_staged_batches_are_committed_when_they_are_written(disk):
    leader = Leader(disk)
    assert leader.stage(b"a", b"b").base_offset == 0
    assert leader.stage(b"c").base_offset == 2
    assert (leader.log.log_end, leader.replica.high_watermark) == (0, 0)
    assert leader.appender.write_staged() == ({}, {})
    assert leader.replica.high_watermark == leader.log.log_end == 3
    assert leader.heard() == [Event.HIGH_WATERMARK]


@in_loop
async def test_a_follower_in_the_isr_holds_the_high_watermark_back(disk):
    leader = Leader(disk, isr=(1, 2))
    leader.stage(b"a")
    leader.appender.write_staged()
    assert (leader.log.log_end, leader.replica.high_watermark) == (1, 0)
    assert leader.heard() == []


@in_loop
async def test_without_enough_replicas_only_acks_1_appends(disk):
    leader = Leader(disk, min_isr=2)
    with pytest.raises(Rejected, match="min.insync.replicas is 2") as refused:
        leader.stage(b"a")
    assert refused.value.code is ErrorCode.NOT_ENOUGH_REPLICAS
    with pytest.raises(Rejected):
        leader.appender.append(leader.replica, bytearray(batch(b"a")), NOW)
    assert leader.stage(b"b", acks=ACKS_LEADER).base_offset == 0


@in_loop
async def test_a_replica_that_does_not_lead_refuses_and_its_waiters_hear_why(disk):
    leader = Leader(disk)
    leader.apply(a_state(leader=2, leader_epoch=4))
    with pytest.raises(Rejected) as refused:
        leader.stage(b"a")
    assert refused.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert leader.heard() == [Event.LEADERSHIP_LOST]
    leader.apply(a_state(leader_epoch=5, isr=(1,)))
    assert leader.heard() == [Event.LEADERSHIP_GAINED]
    assert leader.log.leader_epochs.entries[-1][0] == 5


@in_loop
async def test_a_failed_disk_refuses_the_next_batch(disk):
    leader = Leader(disk)
    leader.log.directory.take_offline("it broke")
    with pytest.raises(Rejected, match="the disk of orders-0 failed: it broke") as refused:
        leader.stage(b"a")
    assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert leader.appender.write_staged() == ({}, {})


@in_loop
async def test_records_that_need_an_fsync_count_after_it(tmp_path):
    disk = Disk(tmp_path, config=settings(flush_messages=1))
    leader = Leader(disk, flush_messages=1)
    leader.stage(b"a")
    failed, unflushed = leader.appender.write_staged()
    assert (failed, unflushed) == ({}, {leader.replica: 1})
    assert leader.replica.high_watermark == 0
    assert await leader.appender.flush(unflushed) == {}
    assert leader.replica.high_watermark == 1
    assert leader.heard() == [Event.HIGH_WATERMARK]
    disk.crash()


@in_loop
async def test_a_batch_of_a_coordinator_is_flushed_in_the_background(tmp_path):
    disk = Disk(tmp_path, config=settings(flush_messages=1))
    leader = Leader(disk, flush_messages=1)
    leader.appender.append(leader.replica, bytearray(batch(b"a")), NOW)
    assert len(leader.tasks) == 1
    await asyncio.wait_for(leader.waiter.told.wait(), 10)
    assert leader.heard() == [Event.HIGH_WATERMARK]
    assert leader.replica.high_watermark == 1
    assert leader.failures == []
    disk.crash()


@in_loop
async def test_followers_hear_of_a_coordinators_batch_outside_of_a_clients_turn(disk):
    leader = Leader(disk, isr=(1, 2))
    follower = Waiter()
    leader.waiting.park(follower, [leader.replica], until=Event.LOG_END)
    leader.appender.append(leader.replica, bytearray(batch(b"a")), NOW)
    assert follower.events == []
    await asyncio.wait_for(follower.told.wait(), 10)
    assert follower.events == [Event.LOG_END]
