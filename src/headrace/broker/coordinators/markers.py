"""Transaction markers: written to partitions of this broker, committed, and reported.

A marker is written like a batch with acks=all: it counts once the high watermark has passed it.
For a partition of ``__consumer_offsets`` the group coordinator writes the marker, because its
shard has to replay it together with the append.

A partition that another broker leads answers NOT_LEADER_OR_FOLLOWER, and the transaction
coordinator tries again.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

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

# What the group coordinator says where a partition's leader would say this.
_COORDINATOR_AWAY = (
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
)

Codes = Mapping[TopicPartition, ErrorCode]


class Marker(NamedTuple):
    """The end of one producer's transaction, wherever it took part."""

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    commit: bool
    transaction_version: int


class _UncommittedMarker:
    """A marker that is written here and not yet by the followers. A waiter without a deadline."""

    def __init__(
        self, leadership: "Leadership", offset_end: Offset, tell: Callable[[ErrorCode], None]
    ) -> None:
        self._leadership = leadership
        self._offset_end = offset_end
        self._tell = tell

    def happened(self, event: Event, replica: "Replica") -> bool:
        if replica.leadership is not self._leadership or event is Event.DISK_OFFLINE:
            # The next leader may hold it, or not: it is written once more there.
            self._tell(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        elif self._leadership.high_watermark >= self._offset_end:
            self._tell(ErrorCode.NONE)
        else:
            return False
        return True

    def deadline_passed(self) -> None:
        raise AssertionError("a marker is parked without a deadline")


class _Sending:
    """One marker for several partitions; ``told`` is called with all codes, once."""

    def __init__(self, count: int, told: Callable[[Codes], None]) -> None:
        self._waiting_for = count
        self._told = told
        self._codes: dict[TopicPartition, ErrorCode] = {}

    def answered(self, topic_partition: TopicPartition, code: ErrorCode) -> None:
        self._codes[topic_partition] = code
        self._waiting_for -= 1
        if not self._waiting_for:
            self._told(self._codes)


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

    def write(
        self,
        marker: Marker,
        partitions: Iterable[TopicPartition],
        told: Callable[[Codes], None],
    ) -> None:
        """Write it everywhere; ``told`` learns what became of it, perhaps before this returns."""
        wanted = list(partitions)
        sending = _Sending(len(wanted), told)
        for topic_partition in wanted:
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
            _log.info(
                "the marker of producer %d, epoch %d, was not written to %s: %s",
                marker.producer_id,
                marker.producer_epoch,
                topic_partition,
                refusal,
            )
            sending.answered(topic_partition, code)

    def _write_for_groups(
        self, marker: Marker, topic_partition: TopicPartition, sending: _Sending
    ) -> None:
        self._replicas.require(*topic_partition)  # the right error if it is not here
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
        leadership = replica.lead()
        if leadership.high_watermark >= offset_end:
            sending.answered(topic_partition, ErrorCode.NONE)
            return

        def tell(code: ErrorCode) -> None:
            sending.answered(topic_partition, code)

        self._waiting.park(_UncommittedMarker(leadership, offset_end, tell), (replica,))


def _code_of(done: "asyncio.Future[None]") -> ErrorCode:
    error = done.exception()
    if error is None:
        return ErrorCode.NONE
    if isinstance(error, Rejected):
        return ErrorCode.NOT_LEADER_OR_FOLLOWER
    raise error
