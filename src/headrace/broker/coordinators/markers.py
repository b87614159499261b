"""Transaction markers: write them to partitions of this broker, and report when committed.

A marker is written like a batch with acks=all: it is committed once the high watermark has passed
it. For a partition of ``__consumer_offsets`` the group coordinator writes the marker, because its
shard must replay the marker right after the append.

For a partition that another broker leads the result is NOT_LEADER_OR_FOLLOWER;
``marker_sending`` finds the leaders.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from headrace.broker.repeat_limit import RepeatLimit
from headrace.core.parked import Event
from headrace.core.topics import OFFSETS_TOPIC
from headrace.model.errors import ErrorCode, Rejected
from headrace.model.ids import Offset, TopicPartition
from headrace.records.record import build_marker

if TYPE_CHECKING:
    from headrace.broker.coordinators.group import GroupCoordinator
    from headrace.broker.replication.append import Appender
    from headrace.broker.replication.replica import Replica
    from headrace.broker.replication.replica_manager import ReplicaManager
    from headrace.broker.replication.waiting import Waiting
    from headrace.core.leadership import Leadership
    from headrace.world.world import World

_log = logging.getLogger("headrace.coordinator")

# Errors of the group coordinator that mean the same as NOT_LEADER_OR_FOLLOWER.
_COORDINATOR_AWAY = (
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
)

Codes = Mapping[TopicPartition, ErrorCode]


class Marker(NamedTuple):
    """The end of one producer's transaction, for all of its partitions."""

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    commit: bool
    transaction_version: int


class _UncommittedMarker:
    """A marker that followers have not replicated yet. A waiter without a deadline."""

    def __init__(
        self, leadership: "Leadership", offset_end: Offset, report: Callable[[ErrorCode], None]
    ) -> None:
        self._leadership = leadership
        self._offset_end = offset_end
        self._report = report

    def happened(self, event: Event, replica: "Replica") -> bool:
        if replica.leadership is not self._leadership or event is Event.DISK_OFFLINE:
            # The next leader may or may not have the marker: it must be written there again.
            self._report(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        elif self._leadership.high_watermark >= self._offset_end:
            self._report(ErrorCode.NONE)
        else:
            return False
        return True

    def deadline_passed(self) -> None:
        raise AssertionError("a marker is parked without a deadline")


class _Sending:
    """One marker for several partitions; calls ``report`` once, with the codes of all."""

    def __init__(self, count: int, report: Callable[[Codes], None]) -> None:
        self._pending_count = count
        self._report = report
        self._codes: dict[TopicPartition, ErrorCode] = {}

    def answered(self, topic_partition: TopicPartition, code: ErrorCode) -> None:
        self._codes[topic_partition] = code
        self._pending_count -= 1
        if not self._pending_count:
            self._report(self._codes)


class MarkerWriter:
    def __init__(
        self,
        replicas: "ReplicaManager",
        appender: "Appender",
        waiting: "Waiting",
        groups: "GroupCoordinator",
        world: "World",
    ) -> None:
        self._replicas = replicas
        self._appender = appender
        self._waiting = waiting
        self._groups = groups
        self._world = world
        self._limit = RepeatLimit()

    def write(
        self,
        marker: Marker,
        partitions: Iterable[TopicPartition],
        report: Callable[[Codes], None],
    ) -> None:
        """Write ``marker`` to all partitions; ``report`` may be called before this returns."""
        targets = list(partitions)
        sending = _Sending(len(targets), report)
        for topic_partition in targets:
            self._write_one(marker, topic_partition, sending)

    def _write_one(
        self, marker: Marker, topic_partition: TopicPartition, sending: _Sending
    ) -> None:
        try:
            if topic_partition.topic == OFFSETS_TOPIC:
                self._write_for_groups(marker, topic_partition, sending)
            else:
                self._write_for_data(marker, topic_partition, sending)
        except Rejected as refusal:
            code = refusal.code
            if code in _COORDINATOR_AWAY:
                code = ErrorCode.NOT_LEADER_OR_FOLLOWER
            self._log_refusal(marker, topic_partition, refusal)
            sending.answered(topic_partition, code)

    def _log_refusal(
        self, marker: Marker, topic_partition: TopicPartition, refusal: Rejected
    ) -> None:
        # The coordinator retries ten times a second, perhaps until a broker is back.
        now = asyncio.get_running_loop().time()
        repetitions = self._limit.occurred((topic_partition, refusal.code), now)
        if repetitions is not None:
            _log.info(
                "Could not write the transaction marker to %s (producer id %d, epoch %d): %s%s",
                topic_partition,
                marker.producer_id,
                marker.producer_epoch,
                refusal,
                repetitions,
            )

    def _write_for_groups(
        self, marker: Marker, topic_partition: TopicPartition, sending: _Sending
    ) -> None:
        self._replicas.require(*topic_partition)  # raises the error of a partition not hosted here
        pending = self._groups.write_marker(
            topic_partition.partition,
            producer_id=marker.producer_id,
            producer_epoch=marker.producer_epoch,
            coordinator_epoch=marker.coordinator_epoch,
            committed=marker.commit,
            transaction_version=marker.transaction_version,
        )
        if pending is None:
            sending.answered(topic_partition, ErrorCode.NONE)
        else:
            pending.add_done_callback(
                lambda done: sending.answered(topic_partition, _code_of(done))
            )

    def _write_for_data(
        self, marker: Marker, topic_partition: TopicPartition, sending: _Sending
    ) -> None:
        replica = self._replicas.require(*topic_partition)
        now = self._world.now()
        batch = build_marker(
            commit=marker.commit,
            producer_id=marker.producer_id,
            producer_epoch=marker.producer_epoch,
            coordinator_epoch=marker.coordinator_epoch,
            timestamp=now,
        )
        appended = self._appender.append(
            replica, bytearray(batch), now, transaction_version=marker.transaction_version
        )
        offset_end = Offset(appended.last_offset + 1)
        leadership = replica.require_leadership()
        if leadership.high_watermark >= offset_end:
            sending.answered(topic_partition, ErrorCode.NONE)
            return

        def report(code: ErrorCode) -> None:
            sending.answered(topic_partition, code)

        self._waiting.park(_UncommittedMarker(leadership, offset_end, report), (replica,))


def _code_of(done: "asyncio.Future[None]") -> ErrorCode:
    error = done.exception()
    if error is None:
        return ErrorCode.NONE
    if isinstance(error, Rejected):
        return ErrorCode.NOT_LEADER_OR_FOLLOWER
    raise error
