"""What a fetcher asks its leader for, and what it does with the answers."""

import asyncio
import errno
from contextlib import asynccontextmanager

import pytest

from headrace.broker.replication.effects import Effects
from headrace.broker.replication.fetcher import Fetcher, FetcherSettings
from headrace.broker.replication.replica import Replica
from headrace.broker.replication.throttles import throttle
from headrace.broker.replication.waiting import Waiting
from headrace.client.errors import Disconnected
from headrace.core.leadership import ReplicationSettings
from headrace.core.partition import Partition
from headrace.model.config import BrokerConfig
from headrace.model.errors import ErrorCode
from headrace.wire import messages as m
from tests.fakes.logs import ORDERS, ORDERS_ID, Disk, append, batch, read_all
from tests.fakes.network_peers import until
from tests.fakes.partition_states import a_state
from tests.fakes.scripted_peers import ScriptedPeers
from tests.fakes.standin import in_loop

ME, LEADER, BROKER_EPOCH = 1, 2, 41
SETTINGS = BrokerConfig.parse({"replica.fetch.backoff.ms": "40"})


class Follower:
    """One replica that follows broker 2, with a fetcher and a scripted leader."""

    def __init__(self, disk, config=SETTINGS, **settings):
        loop = asyncio.get_running_loop()
        self.bugs = []
        self.waiting = Waiting(loop, self.bugs.append)
        self.effects = Effects(self.waiting)
        self.log = disk.log()
        self.replica = Replica(
            ORDERS,
            self.log,
            Partition(ME, ReplicationSettings(**settings), 0),
            validates_records=False,
        )
        self.peers = ScriptedPeers()
        self.fetcher = Fetcher(
            ME,
            LEADER,
            0,
            self.peers,
            self.effects,
            self.waiting,
            FetcherSettings.of(config),
            throttle(lambda: config, "follower"),
            lambda: BROKER_EPOCH,
            self.bugs.append,
        )

    def follow(self, leader_epoch=3):
        state = a_state(leader=LEADER, leader_epoch=leader_epoch)
        self.replica.partition.apply(state, self.log.log_start, self.log.log_end, 0)
        self.fetcher.add(self.replica)

    async def sent(self, count):
        await until(lambda: len(self.peers.requests) >= count)
        return self.peers.requests[count - 1]

    async def asked(self, count):
        """What the request with this number says about the partition; None: nothing."""
        request = await self.sent(count)
        assert [bytes(topic.topic_id) for topic in request.topics] in ([], [ORDERS_ID])
        return request.topics[0].partitions[0] if request.topics else None


@pytest.fixture
def disk(tmp_path):
    disk = Disk(tmp_path)
    yield disk
    disk.crash()


@asynccontextmanager
async def a_follower(disk, **options):
    follower = Follower(disk, **options)
    follower.follow()
    yield follower
    await follower.fetcher.close()
    assert follower.bugs == []


def answer(records=None, *, session_id=9, error_code=0, high_watermark=0, log_start=0, end=None):
    response = m.FetchResponse
    data = response.PartitionData(
        partition_index=0,
        error_code=error_code,
        high_watermark=high_watermark,
        log_start_offset=log_start,
        records=records,
    )
    if end is not None:
        data.diverging_epoch = response.EpochEndOffset(epoch=end[0], end_offset=end[1])
    topic = response.FetchableTopicResponse(topic_id=ORDERS_ID, partitions=[data])
    return response(session_id=session_id, responses=[topic])


def nothing(session_id=9, error_code=0):
    return m.FetchResponse(session_id=session_id, error_code=error_code)


@in_loop
async def test_fetches_carry_the_settings_and_the_identity_of_the_broker(disk):
    config = BrokerConfig.parse(
        {
            "replica.fetch.wait.max.ms": "51",
            "replica.fetch.min.bytes": "52",
            "replica.fetch.response.max.bytes": "53",
            "replica.fetch.max.bytes": "54",
            "replica.socket.timeout.ms": "55",
            "replica.socket.receive.buffer.bytes": "5600",
        }
    )
    async with a_follower(disk, config=config) as follower:
        request = await follower.sent(1)
        assert (request.replica_id, request.isolation_level) == (-1, 0)
        state = request.replica_state
        assert (state.replica_id, state.replica_epoch) == (ME, BROKER_EPOCH)
        assert (request.max_wait_ms, request.min_bytes, request.max_bytes) == (51, 52, 53)
        assert request.topics[0].partitions[0].partition_max_bytes == 54
        (peer,) = follower.peers.made
        assert (peer.broker_id, peer.client_id) == (LEADER, "broker-1-fetcher-0")
        assert peer.options["timeout_s"] == 0.055
        assert peer.options["receive_buffer_size"] == 5600


@in_loop
async def test_records_are_appended_and_the_next_fetch_of_the_session_says_so(disk):
    async with a_follower(disk) as follower:
        asked = await follower.asked(1)
        assert (asked.fetch_offset, asked.last_fetched_epoch, asked.current_leader_epoch) == (
            0,
            -1,
            3,
        )
        follower.peers.answer(answer(batch(b"a", b"b", leader_epoch=3), high_watermark=1))
        asked = await follower.asked(2)
        request = follower.peers.requests[1]
        assert (request.session_id, request.session_epoch) == (9, 1)
        assert (asked.fetch_offset, asked.last_fetched_epoch) == (2, 3)
        assert read_all(follower.log) == [(0, b"a"), (1, b"b")]
        assert follower.replica.high_watermark == 1
        follower.peers.answer(nothing())
        assert await follower.asked(3) is None
        follower.peers.answer(answer(high_watermark=2))
        assert await follower.asked(4) is None
        assert follower.replica.high_watermark == 2


@in_loop
async def test_a_replica_that_catches_up_asks_for_less_and_rests(disk, monkeypatch):
    rests = []

    class NotedSleep:
        """asyncio, as the fetcher sees it."""

        def __getattr__(self, name):
            return getattr(asyncio, name)

        async def sleep(self, seconds):
            rests.append(seconds)

    async with a_follower(disk) as follower:
        whole = (await follower.sent(1)).max_bytes

        async def rests_after(base_offset, high_watermark):
            """Whether the fetcher rests after a record that leaves it behind; what it asks then."""
            rests.clear()
            record = batch(b"a", base_offset=base_offset, leader_epoch=3)
            follower.peers.answer(answer(record, high_watermark=high_watermark))
            request = await follower.sent(base_offset + 2)
            return any(rests), request.max_bytes

        monkeypatch.setattr("headrace.broker.replication.fetcher.asyncio", NotedSleep())
        assert await rests_after(0, 10) == (False, 1 << 20)  # how fast it gains is unknown
        assert await rests_after(1, 10) == (True, 1 << 20)
        assert await rests_after(2, 20) == (False, 1 << 20)  # the leader's log grows faster
        assert await rests_after(3, 4) == (False, whole)  # it has caught up


@in_loop
async def test_a_lost_session_starts_over_with_all_partitions(disk):
    async with a_follower(disk) as follower:
        follower.peers.answer(nothing())
        await follower.sent(2)
        follower.peers.answer(nothing(0, ErrorCode.FETCH_SESSION_ID_NOT_FOUND))
        assert await follower.asked(3) is not None
        request = follower.peers.requests[2]
        assert (request.session_id, request.session_epoch) == (0, 0)
        follower.peers.answer(nothing(10))
        await follower.sent(4)
        follower.peers.answer(nothing(0, ErrorCode.INVALID_FETCH_SESSION_EPOCH))
        assert await follower.asked(5) is not None
        request = follower.peers.requests[4]
        assert (request.session_id, request.session_epoch) == (10, 0)


@in_loop
async def test_a_lost_connection_is_retried_and_names_everything(disk):
    async with a_follower(disk) as follower:
        follower.peers.answer(nothing())
        await follower.sent(2)
        follower.peers.answer(Disconnected("gone"), Disconnected("still gone"))
        assert await follower.asked(4) is not None
        assert follower.peers.requests[3].session_epoch == 0


@in_loop
async def test_a_partition_with_an_error_is_left_out_for_a_while(disk):
    async with a_follower(disk) as follower:
        for count in range(1, 4):
            await follower.sent(count)
            began_at = asyncio.get_running_loop().time()
            follower.peers.answer(answer(error_code=ErrorCode.UNKNOWN_LEADER_EPOCH))
            assert await follower.asked(count + 1) is not None
            # 20 ms at first, then up to replica.fetch.backoff.ms.
            assert asyncio.get_running_loop().time() - began_at >= (0.02 if count == 1 else 0.04)


@in_loop
async def test_a_diverging_log_is_truncated_and_fetched_again(disk):
    follower = Follower(disk)
    append(follower.log, batch(b"a"), leader_epoch=0)
    append(follower.log, batch(b"b"), leader_epoch=2)
    follower.follow()
    asked = await follower.asked(1)
    assert (asked.fetch_offset, asked.last_fetched_epoch) == (2, 2)
    follower.peers.answer(answer(end=(0, 1)))
    asked = await follower.asked(2)
    assert (asked.fetch_offset, asked.last_fetched_epoch) == (1, 0)
    assert read_all(follower.log) == [(0, b"a")]
    await follower.fetcher.close()
    assert follower.bugs == []


def listed(offset):
    response = m.ListOffsetsResponse
    data = response.ListOffsetsPartitionResponse(partition_index=0, offset=offset)
    topic = response.ListOffsetsTopicResponse(name="orders", partitions=[data])
    return response(topics=[topic])


@in_loop
async def test_out_of_range_asks_for_the_leaders_range_and_starts_over_there(disk):
    async with a_follower(disk) as follower:
        follower.peers.answer(
            answer(error_code=ErrorCode.OFFSET_OUT_OF_RANGE), listed(30), listed(20)
        )
        asked = await follower.asked(4)
        latest, earliest = follower.peers.requests[1:3]
        assert (latest.replica_id, earliest.replica_id) == (ME, ME)
        assert [r.topics[0].partitions[0].timestamp for r in (latest, earliest)] == [-1, -2]
        assert asked.fetch_offset == 20
        assert (follower.log.log_start, follower.log.log_end) == (20, 20)


@in_loop
async def test_an_answer_to_a_request_of_an_earlier_leader_epoch_is_dropped(disk):
    async with a_follower(disk) as follower:
        await follower.sent(1)
        follower.follow(leader_epoch=4)
        follower.peers.answer(answer(batch(b"old")))
        asked = await follower.asked(2)
        assert (asked.current_leader_epoch, asked.fetch_offset) == (4, 0)
        assert follower.log.log_end == 0


@in_loop
async def test_a_new_partition_does_not_wait_for_a_fetch_that_waits_for_records(disk):
    async with a_follower(disk) as follower:
        await follower.sent(1)
        follower.follow(leader_epoch=4)
        asked = await follower.asked(2)  # though the first request was never answered
        assert asked.current_leader_epoch == 4
        assert [peer.closed.is_set() for peer in follower.peers.made] == [True, False]


@in_loop
async def test_damaged_records_are_not_appended_but_fetched_again(disk):
    async with a_follower(disk) as follower:
        damaged = batch(b"a", b"b")
        damaged[-1] ^= 1
        follower.peers.answer(answer(damaged))
        asked = await follower.asked(2)
        assert (asked.fetch_offset, follower.log.log_end) == (0, 0)


@in_loop
async def test_a_part_of_a_batch_is_fetched_again_later(disk):
    async with a_follower(disk) as follower:
        follower.peers.answer(answer(batch(b"a", b"b")[:-3]))
        asked = await follower.asked(2)
        assert (asked.fetch_offset, follower.log.log_end) == (0, 0)


@in_loop
async def test_a_new_leader_epoch_waits_for_the_flush_that_its_position_needs(disk):
    async with a_follower(disk) as follower:
        follower.peers.answer(answer(batch(b"a")))
        await follower.sent(2)
        follower.replica.partition.settings = ReplicationSettings(flush_messages=1)
        follower.follow(leader_epoch=4)
        follower.peers.answer(nothing(0, ErrorCode.FETCH_SESSION_ID_NOT_FOUND))
        asked = await follower.asked(3)
        assert (asked.current_leader_epoch, asked.fetch_offset) == (4, 1)
        assert follower.log.flusher.recovery_point == 1


@in_loop
async def test_records_count_after_an_fsync_where_flush_messages_requires_it(disk):
    async with a_follower(disk, flush_messages=1) as follower:
        follower.peers.answer(answer(batch(b"a")))
        asked = await follower.asked(2)
        assert asked.fetch_offset == 1
        assert follower.log.flusher.recovery_point == 1


@in_loop
async def test_a_removed_partition_is_forgotten(disk):
    async with a_follower(disk) as follower:
        follower.peers.answer(nothing())
        await follower.sent(2)
        follower.fetcher.remove(follower.replica)
        assert not follower.fetcher
        follower.peers.answer(answer(batch(b"late")))
        follower.follow(leader_epoch=5)
        assert (await follower.asked(3)).fetch_offset == 0
        assert follower.log.log_end == 0


@in_loop
async def test_a_full_disk_pauses_a_partition_and_a_failed_one_ends_it(disk):
    async with a_follower(disk) as follower:
        await follower.sent(1)
        with disk.files.failing(errno.ENOSPC, "pwrite", "pwritev"):
            follower.peers.answer(answer(batch(b"a")))
            assert (await follower.asked(2)).fetch_offset == 0
        follower.peers.answer(answer(batch(b"a")))
        assert (await follower.asked(3)).fetch_offset == 1
        with disk.files.failing(errno.EIO, "pwrite", "pwritev"):
            follower.peers.answer(answer(batch(b"b", base_offset=1)))
            await until(lambda: follower.log.offline is not None)
        follower.follow(leader_epoch=4)
        follower.fetcher.remove(follower.replica)
        assert len(follower.peers.requests) == 3
