"""The partitions that this broker hosts: each a log, and its leadership while it leads.

Appends are staged while one connection's frames are handled and written together at the end of
its turn, one write per partition. Who needs to know of new committed records (parked fetches,
parked acks) is told through ``on_committed``.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import assert_never

from headrace.broker.clock import Clock
from headrace.core.partition import Effect, HighWatermarkAdvanced, Leadership
from headrace.model.cluster_metadata import PartitionState
from headrace.model.config import TopicConfig
from headrace.model.errors import Corrupt, ErrorCode, Rejected
from headrace.model.ids import (
    NO_TOPIC_ID,
    BrokerId,
    LeaderEpoch,
    Offset,
    TopicId,
    TopicPartition,
)
from headrace.records.batch import ATTRIBUTES_AT, CODEC_MASK, CODEC_NAMES, NO_CODEC
from headrace.storage.log import Appended, Log
from headrace.storage.log_manager import LogManager

_log = logging.getLogger(__name__)

READ_UNCOMMITTED, READ_COMMITTED = 0, 1
_FLUSH_TRIES = 3
_FLUSH_AGAIN_AFTER_S = 1
CODEC_BY_SETTING = {"producer": None, "uncompressed": NO_CODEC} | {
    name: codec for codec, name in enumerate(CODEC_NAMES) if codec != NO_CODEC
}


class Replica:
    """One partition on this broker."""

    __slots__ = (
        "topic_partition",
        "topic_id",
        "log",
        "leadership",
        "opens_batches",
        "codec_wanted",
        "codec_level",
        "_owner",
    )

    def __init__(self, topic_partition: TopicPartition, log: Log, owner: "ReplicaManager") -> None:
        self.topic_partition = topic_partition
        self.topic_id = log.topic_id
        self.log = log
        self.leadership: Leadership | None = None
        self._owner = owner
        self.config_changed()

    def config_changed(self) -> None:
        config = self.log.config
        # Keyless records must not reach a compacted topic, which only unpacking shows.
        self.opens_batches = self._owner.validates_records or "compact" in config.cleanup_policy
        # None: batches stay in the codec that the producer chose.
        self.codec_wanted = CODEC_BY_SETTING[config.compression_type]
        self.codec_level: int | None = getattr(
            config, f"compression_{config.compression_type}_level", None
        )

    def must_unpack(self, records: memoryview) -> bool:
        """Whether a produced batch has to be opened, which is done off the loop."""
        if self.opens_batches:
            return True
        return (
            self.codec_wanted is not None
            and len(records) > ATTRIBUTES_AT + 1
            and records[ATTRIBUTES_AT + 1] & CODEC_MASK != self.codec_wanted
        )

    def lead(self) -> Leadership:
        """The reign, if this broker leads the partition."""
        leadership = self.leadership
        if leadership is None:
            raise Rejected(
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                f"this broker does not lead {self.topic_partition}",
            )
        if self.log.offline is not None:
            raise Rejected(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"the disk of {self.topic_partition} failed: {self.log.offline}",
            )
        return leadership

    def lead_in(self, current_leader_epoch: int) -> Leadership:
        """The reign that a client knows of (-1: any).

        One that knows another must learn of ours, or wait until we know of its.
        """
        leadership = self.lead()
        if current_leader_epoch in (-1, leadership.leader_epoch):
            return leadership
        if current_leader_epoch < leadership.leader_epoch:
            raise Rejected(
                ErrorCode.FENCED_LEADER_EPOCH,
                f"{self.topic_partition} is in leader epoch {leadership.leader_epoch}, "
                f"not {current_leader_epoch}",
            )
        raise Rejected(
            ErrorCode.UNKNOWN_LEADER_EPOCH,
            f"{self.topic_partition} is only in leader epoch {leadership.leader_epoch}, "
            f"not yet {current_leader_epoch}",
        )

    def unreadable(self, problem: Corrupt | OSError) -> Rejected:
        """What a client is told when the log cannot be read; the log says what to do."""
        if isinstance(problem, OSError):
            self.log.directory.partition_failed(problem)
            return Rejected(
                ErrorCode.KAFKA_STORAGE_ERROR, f"{self.topic_partition} cannot be read: {problem}"
            )
        _log.error(
            "%s is damaged: %s. Records before and after the damage are served; restore the file "
            "from a copy, or move the log's start past it with DeleteRecords",
            self.topic_partition,
            problem,
        )
        return Rejected(ErrorCode.CORRUPT_MESSAGE, f"{self.topic_partition} is damaged: {problem}")

    @property
    def high_watermark(self) -> Offset:
        return self.lead().high_watermark

    def readable_end(self, isolation_level: int) -> Offset:
        """Up to where (exclusive) a consumer may read."""
        high_watermark = self.lead().high_watermark
        if isolation_level == READ_COMMITTED:
            return self.log.last_stable_offset(high_watermark)
        return high_watermark

    def append(self, records: memoryview, acks: int, produce_version: int) -> Appended:
        """Stage one produced batch as leader; ``ReplicaManager.write_staged`` writes it."""
        leadership = self.lead()
        if acks == -1 and not leadership.enough_replicas:
            raise Rejected(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"{self.topic_partition} has {len(leadership.isr)} in-sync replicas and "
                f"min.insync.replicas asks for {leadership.insync_required}",
            )
        owner = self._owner
        appended = self.log.append_as_leader(
            records,
            leadership.leader_epoch,
            owner.clock.now(),
            produce_version=produce_version,
        )
        owner.staged[self] = None
        return appended

    def write_staged(self) -> bool:
        """Write what was staged and carry out what follows from the longer log.

        True if ``flush.messages`` asks for an fsync first: then that follows in
        ``ReplicaManager.flush``, to which the caller must see.
        """
        self.log.write_staged()
        if self._flush_is_due:
            return True
        if self.leadership is not None:
            self._owner.run(self, self.leadership.appended(self.log.log_end))
        return False

    @property
    def _flush_is_due(self) -> bool:
        log = self.log
        return log.log_end - log.flusher.recovery_point >= log.config.flush_messages

    @property
    def is_gone(self) -> bool:
        """With its topic or its disk."""
        return self.log.closed or self.log.offline is not None

    @property
    def awaits_flush(self) -> bool:
        """Whether something is written that does not count yet, and may one day."""
        leadership = self.leadership
        return leadership is not None and leadership.log_end < self.log.log_end and not self.is_gone

    def flushed(self) -> None:
        """Let count what an fsync has made durable."""
        log = self.log
        end = log.flusher.recovery_point if self._flush_is_due else log.log_end
        if self.leadership is not None and end > self.leadership.log_end:
            self._owner.run(self, self.leadership.appended(end))


class ReplicaManager:
    def __init__(
        self,
        broker_id: BrokerId,
        logs: LogManager,
        clock: Clock,
        config_of: Callable[[str], TopicConfig],
    ) -> None:
        self.broker_id = broker_id
        self.config_of = config_of
        self.logs = logs
        self.clock = clock
        self.validates_records = False  # headrace.validate.records
        self.staged: dict[Replica, None] = {}  # all and only those with staged batches
        self.on_committed: Callable[[Replica], None] = lambda replica: None
        # Bumped when a partition comes, goes or changes: what remembers a replica looks here.
        self.generation = 0
        self._by_name: dict[str, dict[int, Replica]] = {}
        self._by_id: dict[TopicId, dict[int, Replica]] = {}

    # --- finding -------------------------------------------------------------

    def get(self, topic: str, partition: int) -> Replica | None:
        partitions = self._by_name.get(topic)
        return partitions.get(partition) if partitions is not None else None

    def get_by_id(self, topic_id: TopicId, partition: int) -> Replica | None:
        partitions = self._by_id.get(topic_id)
        return partitions.get(partition) if partitions is not None else None

    def of_topic(self, topic: str) -> list[Replica]:
        return list(self._by_name.get(topic, {}).values())

    def __iter__(self) -> Iterator[Replica]:
        for partitions in self._by_name.values():
            yield from partitions.values()

    # --- what the controller decides -----------------------------------------

    async def apply(self, states: Iterable[PartitionState]) -> None:
        """Host what the states give to this broker, and lead what they say it leads."""
        for state in states:
            if self.broker_id not in state.replicas:
                continue
            topic_partition = TopicPartition(state.topic, state.partition)
            config = self.config_of(state.topic)
            replica = self.get(state.topic, state.partition)
            if replica is None:
                log = self.logs.get(topic_partition)
                if log is None:
                    log = self.logs.create(topic_partition, state.topic_id, config)
                elif log.config is not config:
                    log.update_config(config)
                if log.topic_id == NO_TOPIC_ID:
                    # Its partition.metadata was lost, or not yet written when the process died.
                    log.adopt_topic_id(state.topic_id)
                replica = Replica(topic_partition, log, self)
                self._by_name.setdefault(state.topic, {})[state.partition] = replica
                self._by_id.setdefault(state.topic_id, {})[state.partition] = replica
            self._lead_or_follow(replica, state, config)
        self.generation += 1

    def _lead_or_follow(self, replica: Replica, state: PartitionState, config: TopicConfig) -> None:
        if state.leader != self.broker_id:
            replica.leadership = None
            return
        leadership = replica.leadership
        if leadership is not None and leadership.leader_epoch == state.leader_epoch:
            return
        log = replica.log
        log.leader_epochs.assign(LeaderEpoch(state.leader_epoch), log.log_end)
        replica.leadership = Leadership(
            self.broker_id,
            LeaderEpoch(state.leader_epoch),
            state.replicas,
            state.isr,
            config.min_insync_replicas,
            log.log_end,
            log.log_start,
        )
        self.run(replica, replica.leadership.started())

    async def delete(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """Stop hosting, and delete the files."""
        for topic_partition in topic_partitions:
            replica = self._by_name.get(topic_partition.topic, {}).pop(
                topic_partition.partition, None
            )
            if replica is None:
                self.logs.delete(topic_partition)  # one that could not be opened
                continue
            replica.leadership = None
            by_id = self._by_id.get(replica.topic_id, {})
            by_id.pop(topic_partition.partition, None)
            if not by_id:
                self._by_id.pop(replica.topic_id, None)
            if not self._by_name[topic_partition.topic]:
                del self._by_name[topic_partition.topic]
            self.staged.pop(replica, None)
            self.logs.delete(topic_partition)
            self.on_committed(replica)  # whoever waits on it learns that it is gone
        self.generation += 1

    def update_topic_config(self, topic: str, config: TopicConfig) -> None:
        for replica in self.of_topic(topic):
            replica.log.update_config(config)
            replica.config_changed()
            if replica.leadership is not None:
                replica.leadership.min_insync_replicas = config.min_insync_replicas
        self.generation += 1

    # --- effects -------------------------------------------------------------

    def write_staged(self) -> tuple[dict[Replica, Rejected], dict[Replica, Offset]]:
        """Write every staged batch.

        Returns the partitions whose disk refused, with why, and those to ``flush`` before
        anything further of them counts, with up to where (exclusive).
        """
        failed: dict[Replica, Rejected] = {}
        unflushed: dict[Replica, Offset] = {}
        staged, self.staged = self.staged, {}
        for replica in staged:
            try:
                if replica.write_staged():
                    unflushed[replica] = replica.log.log_end
            except Rejected as refusal:
                failed[replica] = refusal
        return failed, unflushed

    async def flush(self, unflushed: Mapping[Replica, Offset]) -> dict[Replica, Rejected]:
        """Make that durable; returns the partitions whose disk did not, with why."""
        ends = unflushed.items()
        await asyncio.gather(*(self._flush_until(replica, end) for replica, end in ends))
        return {
            replica: Rejected(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"{replica.topic_partition} could not be flushed as flush.messages asks",
            )
            for replica, end in ends
            if replica.log.flusher.recovery_point < end
        }

    async def _flush_until(self, replica: Replica, offset_end: Offset) -> None:
        """Return when it is done, or is not to be expected soon.

        What fails for want of a file handle is tried again: the records stay, and a client told
        otherwise would give their sequence numbers to others, which then pass for duplicates.
        """
        log = replica.log
        for tries_left in reversed(range(_FLUSH_TRIES)):
            if replica.is_gone or log.flusher.recovery_point >= offset_end:
                break
            try:
                await log.flusher.flush()
            except OSError as error:
                log.directory.partition_failed(error)
            if log.flusher.recovery_point < offset_end and tries_left and not replica.is_gone:
                await asyncio.sleep(_FLUSH_AGAIN_AFTER_S)
        replica.flushed()

    def run(self, replica: Replica, effects: Iterable[Effect]) -> None:
        """Carry out effects in order. Nothing here decides, and nothing awaits."""
        for effect in effects:
            match effect:
                case HighWatermarkAdvanced(to):
                    producers = replica.log.producers
                    if producers.unreplicated:
                        producers.high_watermark_advanced(to)
                    self.on_committed(replica)
                case _:
                    assert_never(effect)
