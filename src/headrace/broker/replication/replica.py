"""One partition on this broker: its log, its settings, and whether this broker leads it."""

import asyncio
import logging
from typing import TYPE_CHECKING

from headrace.broker.repeat_limit import RepeatLimit
from headrace.broker.replication.throttles import names_replica
from headrace.core.fetch_rules import check_leader_epoch
from headrace.model.cluster_metadata import NO_LEADER, PartitionState
from headrace.model.errors import Corrupt, ErrorCode, Rejected
from headrace.model.ids import LeaderEpoch, Offset, TopicPartition
from headrace.records.batch import CODEC_MASK, CODEC_NAMES, FLAGS_AT, NO_CODEC

if TYPE_CHECKING:
    from headrace.core.following import Following
    from headrace.core.leadership import Leadership
    from headrace.core.partition import Partition
    from headrace.core.partition_effects import Effect
    from headrace.storage.log import Log

_log = logging.getLogger("headrace.replication")

READ_UNCOMMITTED, READ_COMMITTED = 0, 1
CODEC_BY_SETTING = {"producer": None, "uncompressed": NO_CODEC} | {
    name: codec for codec, name in enumerate(CODEC_NAMES) if codec != NO_CODEC
}


class Replica:
    __slots__ = (
        "topic_partition",
        "topic_id",
        "log",
        "partition",
        "leadership",
        "last_stable_offset",
        "opens_batches",
        "codec_wanted",
        "codec_level",
        "is_throttled_as_leader",
        "is_throttled_as_follower",
        "_damage_limit",
    )

    def __init__(
        self,
        topic_partition: TopicPartition,
        log: "Log",
        partition: "Partition",
        *,
        validates_records: bool,
    ) -> None:
        self.topic_partition = topic_partition
        self.topic_id = log.topic_id
        self.log = log
        self.partition = partition
        self.leadership: Leadership | None = None  # of ``partition``, cached: every batch needs it
        self.last_stable_offset = Offset(-1)  # as last reported to waiters
        self._damage_limit = RepeatLimit()  # a consumer fetches damaged records again and again
        self.config_changed(validates_records=validates_records)

    def config_changed(self, *, validates_records: bool) -> None:
        config = self.log.config
        # A compacted topic must not get records without keys, and only decompression shows them.
        self.opens_batches = validates_records or "compact" in config.cleanup_policy
        # None: batches stay in the codec that the producer chose.
        self.codec_wanted = CODEC_BY_SETTING[config.compression_type]
        self.codec_level: int | None = getattr(
            config, f"compression_{config.compression_type}_level", None
        )
        number, broker_id = self.topic_partition.partition, self.partition.broker_id
        self.is_throttled_as_leader = names_replica(
            config.leader_replication_throttled_replicas, number, broker_id
        )
        self.is_throttled_as_follower = names_replica(
            config.follower_replication_throttled_replicas, number, broker_id
        )

    def must_unpack(self, records: memoryview) -> bool:
        """Whether a produced batch must be opened, which is done outside of the event loop."""
        if self.opens_batches:
            return True
        return (
            self.codec_wanted is not None
            and len(records) > FLAGS_AT
            and records[FLAGS_AT] & CODEC_MASK != self.codec_wanted
        )

    # --- leadership ----------------------------------------------------------

    def apply(self, state: PartitionState, now_ms: float) -> "list[Effect]":
        """Lead or follow as ``state`` says; returns the effects to carry out."""
        effects = self.partition.apply(state, self.log.log_start, self.log.log_end, now_ms)
        self.leadership = self.partition.leadership
        return effects

    def stop(self, leader_epoch: LeaderEpoch) -> "list[Effect]":
        """Neither lead nor follow; returns the effects to carry out."""
        effects = self.partition.stop(leader_epoch)
        self.leadership = self.partition.leadership
        return effects

    def require_leadership(self) -> "Leadership":
        """The leadership. Raises Rejected if this broker does not lead the partition.

        A failed disk comes first, as in Kafka: the controller may have elected another leader.
        """
        if self.log.offline is not None:
            raise self._disk_failed()
        leadership = self.leadership
        if leadership is None:
            raise self._not_leading()
        return leadership

    def require_leadership_in(self, current_leader_epoch: int) -> "Leadership":
        """The leadership. Raises Rejected if its epoch is not the client's (-1: any).

        As in Kafka, the epoch is checked before the leadership, unless the disk has failed.
        """
        leadership = self.leadership
        if (
            leadership is None or current_leader_epoch != leadership.leader_epoch
        ) and self.log.offline is None:
            check_leader_epoch(LeaderEpoch(current_leader_epoch), self.partition.leader_epoch)
        return self.require_leadership()

    def require_following_in(self, current_leader_epoch: int) -> "Following":
        """The role of a follower that serves consumers. Raises Rejected if it is another role."""
        if self.log.offline is not None:
            raise self._disk_failed()
        check_leader_epoch(LeaderEpoch(current_leader_epoch), self.partition.leader_epoch)
        following = self.partition.following
        if following is None or following.leader == NO_LEADER:
            raise self._not_leading()
        return following

    def _not_leading(self) -> Rejected:
        return Rejected(
            ErrorCode.NOT_LEADER_OR_FOLLOWER, f"this broker does not lead {self.topic_partition}"
        )

    def _disk_failed(self) -> Rejected:
        return Rejected(
            ErrorCode.KAFKA_STORAGE_ERROR,
            f"the disk of {self.topic_partition} failed: {self.log.offline}",
        )

    @property
    def high_watermark(self) -> Offset:
        """Exclusive; a follower has one too. Consumers read up to the leader's ``readable_end``."""
        return self.partition.high_watermark

    @property
    def is_gone(self) -> bool:
        """Whether its topic was deleted or its disk failed."""
        return self.log.closed or self.log.offline is not None

    # --- reading -------------------------------------------------------------

    def readable_end(self, isolation_level: int) -> Offset:
        """The exclusive end offset up to which a consumer may read."""
        high_watermark = self.require_leadership().high_watermark
        if isolation_level == READ_COMMITTED:
            return self.log.last_stable_offset(high_watermark)
        return high_watermark

    def unreadable(self, problem: Corrupt | OSError) -> Rejected:
        """The error of a client that reads damaged records; also logs what to do."""
        if isinstance(problem, OSError):
            self.log.directory.partition_failed(problem)
            return Rejected(
                ErrorCode.KAFKA_STORAGE_ERROR, f"{self.topic_partition} cannot be read: {problem}"
            )
        now = asyncio.get_running_loop().time()
        repetitions = self._damage_limit.occurred(self.topic_partition, now)
        if repetitions is not None:
            _log.error(
                "%s is damaged: %s. Records before and after the damage are served. Restore the "
                "file from a copy, or move the log start past the damage with DeleteRecords%s",
                self.topic_partition,
                problem,
                repetitions,
            )
        return Rejected(ErrorCode.CORRUPT_MESSAGE, f"{self.topic_partition} is damaged: {problem}")

    @property
    def awaits_flush(self) -> bool:
        """Whether written records wait for an fsync before they can be committed."""
        leadership = self.leadership
        return leadership is not None and leadership.log_end < self.log.log_end and not self.is_gone
