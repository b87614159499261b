"""What the effects of a partition do: to its log, its waiters, its fetcher and its proposals."""

import asyncio

import pytest

from headrace.broker.replication.effects import Effects
from headrace.broker.replication.replica import Replica
from headrace.broker.replication.waiting import Waiting
from headrace.core.leadership import ReplicationSettings
from headrace.core.parked import Event
from headrace.core.partition import Partition
from headrace.core.partition_effects import (
    AdvanceLogStart,
    FollowerLogStartAdvanced,
    FollowLeader,
    HighWatermarkAdvanced,
    IsrChanged,
    ProposeIsr,
    RestartLog,
    StaleLeaderEpoch,
    StopFollowing,
    Truncate,
)
from tests.fakes.logs import ORDERS, Disk, append, batch, marker, read_all
from tests.fakes.standin import in_loop


class Recorded:
    """In place of the fetchers and the ISR proposals."""

    def __init__(self):
        self.calls = []

    def follow(self, replica, leader):
        self.calls.append(("follow", leader))

    def stop_following(self, replica):
        self.calls.append(("stop",))

    def propose(self, replica, proposal):
        self.calls.append(("propose", proposal))


class Waiter:
    def __init__(self):
        self.events = []

    def happened(self, event, replica):
        self.events.append(event)
        return False

    def deadline_passed(self):
        raise AssertionError("it has no deadline")


class Hosted:
    def __init__(self, disk):
        self.waiting = Waiting(asyncio.get_running_loop(), lambda bug: None)
        self.effects = Effects(self.waiting)
        self.log = disk.log()
        self.replica = Replica(
            ORDERS, self.log, Partition(1, ReplicationSettings(), 0), validates_records=False
        )

    def carry_out(self, *effects):
        self.effects.carry_out(self.replica, effects)

    def heard(self, until, *effects):
        waiter = Waiter()
        self.waiting.park(waiter, [self.replica], until=until)
        self.carry_out(*effects)
        self.waiting.serve()
        self.waiting.unpark(waiter)
        return waiter.events


@pytest.fixture
def disk(tmp_path):
    disk = Disk(tmp_path)
    yield disk
    disk.crash()


@in_loop
async def test_orders_to_peers_reach_them_and_one_node_has_none(disk):
    hosted = Hosted(disk)
    proposal = ProposeIsr((), 3, 7)
    orders = (FollowLeader(2, 5), StopFollowing(), proposal)
    hosted.carry_out(*orders)
    peers = Recorded()
    hosted.effects.connect(fetchers=peers, isr_proposals=peers)
    hosted.carry_out(*orders, IsrChanged(frozenset({1}), 8), StaleLeaderEpoch(3))
    assert peers.calls == [("follow", 2), ("stop",), ("propose", proposal)]


@in_loop
async def test_truncation_takes_producers_and_aborted_transactions_with_it(disk):
    hosted = Hosted(disk)
    append(hosted.log, batch(b"a", producer_id=5, transactional=True))
    append(hosted.log, marker(commit=False, producer_id=5))
    append(hosted.log, batch(b"b", producer_id=6))
    assert hosted.log.aborted_transactions(0, 3) == [(5, 0)]
    hosted.carry_out(Truncate(1))
    assert read_all(hosted.log) == [(0, b"a")]
    assert hosted.log.aborted_transactions(0, 3) == []
    assert list(hosted.log.producers.ongoing)
    hosted.carry_out(RestartLog(20))
    assert (hosted.log.log_start, hosted.log.log_end) == (20, 20)
    assert not list(hosted.log.producers.ongoing)


@in_loop
async def test_the_log_start_follows_the_leaders(disk):
    hosted = Hosted(disk)
    append(hosted.log, batch(b"a", b"b", b"c"))
    hosted.carry_out(AdvanceLogStart(2))
    assert hosted.log.log_start == 2


@in_loop
async def test_waiters_hear_the_offset_that_they_wait_for(disk):
    hosted = Hosted(disk)
    moved = (HighWatermarkAdvanced(1), FollowerLogStartAdvanced(2, 1))
    assert hosted.heard(Event.HIGH_WATERMARK, *moved) == [Event.HIGH_WATERMARK]
    assert hosted.heard(Event.FOLLOWER_LOG_START, *moved) == [Event.FOLLOWER_LOG_START]
    assert hosted.heard(Event.LOG_END, *moved) == []
