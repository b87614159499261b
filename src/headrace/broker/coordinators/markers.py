"""Transaction markers on their way into partitions, of this broker or of others.

A marker is written like a batch with acks=all: it counts once the high watermark has passed it.
Where the partition belongs to groups' offsets, the group coordinator writes it, because its shard
has to learn of it in the same breath.

On one node every leader is this broker. A partition that another broker leads is answered with
NOT_LEADER_OR_FOLLOWER, and the coordinator of the transaction tries again.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from headrace.core.topics import OFFSETS_TOPIC
from headrace.model.errors import ErrorCode, Rejected
from headrace.model.ids import LeaderEpoch, Offset, TopicPartition
from headrace.records.record import build_marker
from headrace.storage.log import COORDINATOR

if TYPE_CHECKING:
    from headrace.broker.broker import Broker
    from headrace.broker.replication.replica_manager import Replica
    from headrace.core.leadership import Leadership

_log = logging.getLogger(__name__)

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


class _Unreplicated(NamedTuple):
    """One marker that is written here and not yet by the followers."""

    leadership: "Leadership"
    offset_end: Offset
    tell: Callable[[ErrorCode], None]


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


class Markers:
    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        # All and only the replicas with markers that wait for the high watermark.
        self.unreplicated: dict[Replica, list[_Unreplicated]] = {}

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
        self._broker.replica(*topic_partition)  # the right error if it is not here
        pending = self._broker.groups.write_marker(
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
        replica = self._broker.replica(*topic_partition)
        leadership = replica.lead()
        if not leadership.enough_replicas:
            raise Rejected(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"{topic_partition} has fewer in-sync replicas than it needs",
            )
        now = self._broker.clock.now()
        batch = build_marker(
            commit=marker.commit,
            producer_id=marker.producer_id,
            producer_epoch=marker.producer_epoch,
            coordinator_epoch=marker.coordinator_epoch,
            timestamp=now,
        )
        appended = replica.log.append_as_leader(
            memoryview(bytearray(batch)),
            LeaderEpoch(leadership.leader_epoch),
            now,
            origin=COORDINATOR,
            transaction_version=marker.transaction_version,
        )
        if replica.write_staged():
            self._broker.flush(replica)
        offset_end = Offset(appended.last_offset + 1)
        if leadership.high_watermark >= offset_end:
            sending.answered(topic_partition, ErrorCode.NONE)
            return
        self.unreplicated.setdefault(replica, []).append(
            _Unreplicated(
                leadership, offset_end, lambda code: sending.answered(topic_partition, code)
            )
        )

    def committed(self, replica: "Replica") -> None:
        """The high watermark of a partition has moved, or the partition is led elsewhere now."""
        waiting = self.unreplicated.pop(replica, None)
        if waiting is None:
            return
        still_waiting = []
        for one in waiting:
            if one.leadership is not replica.leadership:
                # It may survive under the new leader, or not: it is written once more there.
                one.tell(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            elif one.leadership.high_watermark >= one.offset_end:
                one.tell(ErrorCode.NONE)
            else:
                still_waiting.append(one)
        if still_waiting:
            self.unreplicated.setdefault(replica, []).extend(still_waiting)


def _code_of(done: "asyncio.Future[None]") -> ErrorCode:
    error = done.exception()
    if error is None:
        return ErrorCode.NONE
    if isinstance(error, Rejected):
        return ErrorCode.NOT_LEADER_OR_FOLLOWER
    raise error
