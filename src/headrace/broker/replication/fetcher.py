"""One fetcher: copies the records of many partitions from one leader, over one connection.

A request asks for all partitions at once, with a fetch session. Batches go from the receive buffer
to the file as the leader stored them; nothing looks at single records. ``core.following`` decides
what a response means for a replica.

While replicas catch up, responses are smaller, and the fetcher rests after each, because clients
come first; unless the leader's log grows so fast that the replica would not catch up.

A partition that fails is paused, for 20 ms at first and then longer, up to
``replica.fetch.backoff.ms``; the others continue. If the connection fails, all are paused.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from headrace.broker.replication.leader_offsets import find_log_ranges
from headrace.broker.replication.throttles import Throttle
from headrace.broker.replication.waiting import Waiting
from headrace.broker.tasks import BackgroundTasks
from headrace.client.errors import Disconnected, error_code
from headrace.core.follower_session import FollowerSession
from headrace.core.following import FetchPosition, Following
from headrace.core.leader_epochs import EpochEnd
from headrace.core.partition_effects import Effect
from headrace.model.config import BrokerConfig
from headrace.model.errors import Corrupt, ErrorCode, Rejected
from headrace.model.ids import BrokerId, LeaderEpoch, Offset, TopicId
from headrace.wire import messages as m

if TYPE_CHECKING:
    from headrace.broker.peers import Peer, Peers
    from headrace.broker.replication.effects import Effects
    from headrace.broker.replication.replica import Replica

_log = logging.getLogger("headrace.replication")

_FETCH_VERSION = 17
_FIRST_PAUSE_S = 0.02
_THROTTLED_S = 0.1  # until a partition that is held back asks again
# How long a new partition waits for the response in progress before the fetcher reconnects.
_RECONNECT_AFTER_S = 0.02
_BUFFER_SIZE_MIN = 1 << 16
# Of a response while replicas catch up, and how long the fetcher rests after it, in times of its
# work: larger responses and shorter rests delay the clients of all brokers (bench cluster-move).
_CATCH_UP_SIZE_MAX = 1 << 20
_CATCH_UP_REST = 8
_CATCH_UP_REST_S_MAX = 0.02  # a slow disk needs no rest
# The log start of an idle partition moves by retention; the leader is told after this time.
_LOG_STARTS_CHECK_S = 5.0
_SESSION_ERRORS = frozenset(
    {
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    }
)

_Key = tuple[TopicId, int]


class FetcherSettings(NamedTuple):
    wait_ms_max: int
    size_min: int
    size_max: int
    partition_size_max: int
    pause_s_max: float
    timeout_s: float
    receive_buffer_size: int | None

    @classmethod
    def of(cls, config: BrokerConfig) -> "FetcherSettings":
        # Kafka's default is smaller than the kernel's choice, and slows replication down.
        is_given = config.given_text("replica.socket.receive.buffer.bytes") is not None
        buffer_size = config.int("replica.socket.receive.buffer.bytes")
        return cls(
            config.int("replica.fetch.wait.max.ms"),
            config.int("replica.fetch.min.bytes"),
            config.int("replica.fetch.response.max.bytes"),
            config.int("replica.fetch.max.bytes"),
            config.int("replica.fetch.backoff.ms") / 1000,
            config.int("replica.socket.timeout.ms") / 1000,
            buffer_size if is_given and buffer_size > 0 else None,
        )


class _Followed:
    """One partition of a fetcher, in one leader epoch."""

    __slots__ = (
        "replica",
        "following",
        "key",
        "position",
        "log_start",
        "failures",
        "is_behind",
        "lag",
    )

    def __init__(self, replica: "Replica", following: Following) -> None:
        self.replica = replica
        self.following = following
        self.key = _key(replica)
        self.position: FetchPosition | None = None  # None: the log must be flushed first
        self.log_start = Offset(-1)  # as last sent
        self.failures = 0  # in a row
        self.is_behind = True  # the log ends below the leader's high watermark
        self.lag = 0  # then: by how many records

    @property
    def is_current(self) -> bool:
        """Whether the replica still follows in this leader epoch; otherwise drop the answer."""
        return self.replica.partition.role is self.following and not self.replica.is_gone

    def next_position(self) -> FetchPosition | None:
        log = self.replica.log
        return self.following.fetch_position(
            log.log_end, log.flusher.recovery_point, log.leader_epochs
        )


class Fetcher:
    """Its task runs from the first partition until ``close``."""

    def __init__(
        self,
        broker_id: BrokerId,
        leader: BrokerId,
        number: int,
        peers: "Peers",
        effects: "Effects",
        waiting: Waiting,
        settings: FetcherSettings,
        throttle: Throttle,
        broker_epoch: Callable[[], int],
        fail: Callable[[BaseException], None],
    ) -> None:
        self.leader = leader
        self.number = number
        self._settings = settings
        self._throttle = throttle
        self._broker_id = broker_id
        self._peers = peers
        self._effects = effects
        self._waiting = waiting
        self._broker_epoch = broker_epoch
        self._fail = fail
        self._loop = asyncio.get_running_loop()
        self._followed: dict[_Key, _Followed] = {}
        self._asked: dict[_Key, _Followed] = {}  # as the leader knows them
        self._session: FollowerSession[_Key] = FollowerSession()
        self._buffer = bytearray(_BUFFER_SIZE_MIN)
        self._peer = self._connect()
        self._failures = 0  # of the connection, in a row
        self._round = 0  # counts the requests
        self._reconnect_round = -1
        self._has_work = asyncio.Event()
        self._next_log_starts_check_at = 0.0
        self._is_catching_up = False  # the last response left replicas behind their leader
        self._is_pressed = False  # one of them comes nearer by less than half of what it copies
        self._side_tasks = BackgroundTasks(self._loop, fail)  # flushes, and connections to close
        self._task = self._loop.create_task(self._run())

    def __bool__(self) -> bool:
        """Whether it has partitions."""
        return bool(self._followed)

    def __str__(self) -> str:
        return f"broker-{self._broker_id}-fetcher-{self.number}"

    def settings_changed(self, settings: FetcherSettings) -> None:
        """Applies to the next request, and to the next connection."""
        self._settings = settings

    # --- partitions ----------------------------------------------------------

    def add(self, replica: "Replica") -> None:
        """Fetch a partition, from now on in the leader epoch that it follows in."""
        following = replica.partition.following
        assert following is not None
        followed = _Followed(replica, following)
        self._followed[followed.key] = followed
        self._session.pause(followed.key)  # it may be there, with the position of another epoch
        self._resume(followed)

    def remove(self, replica: "Replica") -> None:
        followed = self._followed.pop(_key(replica), None)
        if followed is not None:
            self._session.pause(followed.key)
            self._asked.pop(followed.key, None)

    def _resume(self, followed: _Followed, *, is_urgent: bool = True) -> None:
        """Fetch a new partition, or one that was paused."""
        if self._followed.get(followed.key) is not followed or not followed.is_current:
            return
        if self._is_held_back(followed):
            self._loop.call_later(_THROTTLED_S, partial(self._resume, followed, is_urgent=False))
            return
        followed.position = followed.next_position()
        if followed.position is None:
            self._side_tasks.spawn(self._flush(followed))
            return
        self._session.fetch(followed.key)
        if is_urgent and self._has_work.is_set() and self._reconnect_round != self._round:
            self._reconnect_round = self._round
            self._loop.call_later(_RECONNECT_AFTER_S, self._reconnect_if_waiting, self._round)
        self._has_work.set()

    def _is_held_back(self, followed: _Followed) -> bool:
        replica = followed.replica
        return (
            replica.is_throttled_as_follower and followed.is_behind and self._throttle.is_exceeded
        )

    def _reconnect_if_waiting(self, fetch_round: int) -> None:
        """Give up a fetch that waits for records, so that new partitions need not wait for it."""
        if self._round == fetch_round and self._followed:
            given_up, self._peer = self._peer, self._connect()
            self._side_tasks.spawn(given_up.close())

    async def _flush(self, followed: _Followed) -> None:
        """Flush before the next fetch, which tells the leader that all earlier records count."""
        log = followed.replica.log
        try:
            await log.flusher.flush()
        except OSError as error:
            log.directory.partition_failed(error)
        if followed.next_position() is None:
            self._pause(followed, "it could not be flushed, as flush.messages requires")
        else:
            self._resume(followed)

    async def close(self) -> None:
        self._followed.clear()
        self._task.cancel()
        await asyncio.gather(self._task, self._side_tasks.cancel_all(), return_exceptions=True)
        await self._peer.close()

    # --- the task ------------------------------------------------------------

    async def _run(self) -> None:
        try:
            while True:
                await self._fetch_once()
        except Exception as error:  # noqa: BLE001 - a bug while effects are applied
            self._fail(error)

    async def _fetch_once(self) -> None:
        while not self._session:
            self._has_work.clear()
            await self._has_work.wait()
        self._round += 1
        peer = self._peer
        try:
            response = await peer.request(
                self._next_request(),
                m.FetchResponse,
                api_version=_FETCH_VERSION,
                timeout_s=self._settings.timeout_s,
            )
            began_at = self._loop.time()
            out_of_range = self._process(response)
            if self._is_catching_up and not self._is_pressed:
                worked_s = self._loop.time() - began_at
                await asyncio.sleep(min(_CATCH_UP_REST * worked_s, _CATCH_UP_REST_S_MAX))
            if out_of_range:
                await self._find_range(out_of_range)
            self._failures = 0
        except Disconnected as lost:
            self._session.restart(closed=False)
            if peer is self._peer:
                self._failures += 1
                if self._failures == 1:
                    _log.info(
                        "%s lost its connection to broker %d: %s. Retrying", self, self.leader, lost
                    )
                await asyncio.sleep(self._pause_s(self._failures))

    def _connect(self) -> "Peer":
        return self._peers.peer(
            self.leader,
            str(self),
            timeout_s=self._settings.timeout_s,
            allocate=self._allocate,
            receive_buffer_size=self._settings.receive_buffer_size,
        )

    def _allocate(self, size: int) -> bytearray:
        """One buffer for all responses: the last one is processed before the next request."""
        if size > len(self._buffer):
            self._buffer = bytearray(size)
        return self._buffer

    def _pause_s(self, failures: int) -> float:
        if failures == 0:
            return 0.0
        return min(_FIRST_PAUSE_S * (1 << min(failures - 1, 16)), self._settings.pause_s_max)

    # --- requests ------------------------------------------------------------

    def _next_request(self) -> m.FetchRequest:
        now = self._loop.time()
        if now >= self._next_log_starts_check_at:
            self._next_log_starts_check_at = now + _LOG_STARTS_CHECK_S
            for key, followed in self._followed.items():
                if followed.replica.log.log_start != followed.log_start:
                    self._session.moved(key)
        session = self._session
        session_id, session_epoch = session.session_id, session.epoch
        named = session.next_request()
        settings = self._settings
        return m.FetchRequest(
            replica_state=m.FetchRequest.ReplicaState(
                replica_id=self._broker_id, replica_epoch=self._broker_epoch()
            ),
            max_wait_ms=settings.wait_ms_max,
            min_bytes=settings.size_min,
            max_bytes=(
                min(settings.size_max, _CATCH_UP_SIZE_MAX)
                if self._is_catching_up
                else settings.size_max
            ),
            session_id=session_id,
            session_epoch=session_epoch,
            topics=self._topics(named.partitions),
            forgotten_topics_data=[
                m.FetchRequest.ForgottenTopic(topic_id=topic_id, partitions=[partition])
                for topic_id, partition in named.forgotten
            ],
        )

    def _topics(self, keys: Sequence[_Key]) -> list[m.FetchRequest.FetchTopic]:
        topics: dict[TopicId, list[m.FetchRequest.FetchPartition]] = {}
        for key in keys:
            followed = self._followed[key]
            position = followed.position
            assert position is not None, "a partition without a position is paused"
            self._asked[key] = followed
            followed.log_start = followed.replica.log.log_start
            asked = m.FetchRequest.FetchPartition(
                partition=key[1],
                current_leader_epoch=position.current_leader_epoch,
                fetch_offset=position.fetch_offset,
                last_fetched_epoch=position.last_fetched_epoch,
                log_start_offset=followed.log_start,
                partition_max_bytes=self._settings.partition_size_max,
            )
            topics.setdefault(key[0], []).append(asked)
        return [
            m.FetchRequest.FetchTopic(topic_id=topic_id, partitions=partitions)
            for topic_id, partitions in topics.items()
        ]

    # --- responses -----------------------------------------------------------

    def _process(self, response: m.FetchResponse) -> list[_Followed]:
        """Append the records; returns the partitions whose position is not in the leader's log."""
        self._is_catching_up = self._is_pressed = False
        if response.error_code in _SESSION_ERRORS:
            closed = response.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
            self._session.restart(closed=closed)
            return []
        if response.error_code:
            raise Disconnected(f"it answered {error_code(response.error_code).name}")
        self._session.answered(response.session_id)
        out_of_range = []
        for topic in response.responses:
            topic_id = TopicId(bytes(topic.topic_id))
            for data in topic.partitions:
                key = (topic_id, data.partition_index)
                followed = self._followed.get(key)
                # A response to a request of an earlier leader epoch proves nothing in this one.
                if (
                    followed is None
                    or followed is not self._asked.get(key)
                    or not followed.is_current
                ):
                    continue
                if data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                    out_of_range.append(followed)
                elif data.error_code:
                    self._pause(followed, error_code(data.error_code).name)
                else:
                    self._process_partition(followed, data)
        self._waiting.serve()
        return out_of_range

    def _process_partition(self, followed: _Followed, data: m.FetchResponse.PartitionData) -> None:
        log, following = followed.replica.log, followed.following
        diverging = data.diverging_epoch
        if diverging.epoch >= 0:
            _log.info(
                "Truncating %s: on its leader, broker %d, leader epoch %d ends at offset %d",
                log.topic_partition,
                self.leader,
                diverging.epoch,
                diverging.end_offset,
            )
            end = EpochEnd(LeaderEpoch(diverging.epoch), Offset(diverging.end_offset))
            epochs = log.leader_epochs
            decide = partial(following.diverged, end, epochs, log.log_start, log.log_end)
            self._apply(followed, decide)
            self._session.moved(followed.key)
            return

        def append() -> list[Effect]:
            if data.records:
                assert isinstance(data.records, memoryview)
                log_end = log.log_end
                log.append_as_follower(data.records)
                if log.log_end == log_end:
                    raise Corrupt("the leader sent a part of a batch")
            return following.fetched(
                Offset(data.high_watermark),
                Offset(data.log_start_offset),
                log.log_start,
                log.log_end,
            )

        log_end = log.log_end
        self._apply(followed, append)
        followed.is_behind = log.log_end < data.high_watermark
        if followed.is_behind and data.records:
            self._is_catching_up = True
            lag = data.high_watermark - log.log_end
            if 2 * (followed.lag - lag) < log.log_end - log_end:
                self._is_pressed = True
            followed.lag = lag
        if followed.replica.is_throttled_as_follower and data.records:
            self._throttle.record(len(data.records))
            if self._is_held_back(followed):
                self._session.pause(followed.key)
                self._resume(followed, is_urgent=False)

    def _apply(self, followed: _Followed, decide: Callable[[], list[Effect]]) -> None:
        """Change one partition. A failure of its log affects no other partition."""
        replica = followed.replica
        try:
            self._effects.carry_out(replica, decide())
        except (Corrupt, Rejected) as problem:
            self._pause(followed, str(problem))
        except OSError as error:
            replica.log.directory.partition_failed(error)
            self._pause(followed, str(error))
        else:
            followed.failures = 0
            self._advance(followed)

    def _advance(self, followed: _Followed) -> None:
        """Tell the leader how far this replica is now."""
        position = followed.next_position()
        if position is None:
            self._session.pause(followed.key)
            self._side_tasks.spawn(self._flush(followed))
        elif position != followed.position or followed.replica.log.log_start != followed.log_start:
            followed.position = position
            self._session.moved(followed.key)

    def _pause(self, followed: _Followed, reason: str) -> None:
        """Leave a partition out for a while."""
        followed.failures += 1
        pause_s = self._pause_s(followed.failures)
        # Errors around a change of leaders end soon, and concern many partitions at once.
        if pause_s > self._pause_s(followed.failures - 1) and pause_s == self._settings.pause_s_max:
            _log.info(
                "Cannot fetch %s from broker %d: %s. Retrying",
                followed.replica.topic_partition,
                self.leader,
                reason,
            )
        self._session.pause(followed.key)
        self._loop.call_later(pause_s, self._resume, followed)

    # --- out of range --------------------------------------------------------

    async def _find_range(self, lost: Sequence[_Followed]) -> None:
        """Ask where the leader's logs begin and end, and continue there."""
        ranges = await find_log_ranges(
            self._peer,
            self._broker_id,
            {each.replica.topic_partition: each.following.leader_epoch for each in lost},
            self._settings.timeout_s,
        )
        for followed in lost:
            if not followed.is_current:
                continue
            name = followed.replica.topic_partition
            if name not in ranges:
                self._pause(followed, "its offset is out of range, and the leader's are unknown")
                continue
            start, end = ranges[name]
            log, following = followed.replica.log, followed.following
            _log.warning(
                "%s ends at offset %d here, but its leader, broker %d, has offsets %d to %d "
                "(exclusive); continuing there",
                name,
                log.log_end,
                self.leader,
                start,
                end,
            )
            decide = partial(following.out_of_range, start, end, log.log_start, log.log_end)
            self._apply(followed, decide)
            self._session.moved(followed.key)
        self._waiting.serve()


def _key(replica: "Replica") -> _Key:
    return replica.topic_id, replica.topic_partition.partition
