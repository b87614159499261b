"""A partition as its leader sees it: the high watermark, and whether a write may be acknowledged.

The high watermark is exclusive: every in-sync replica holds all offsets below it, and consumers
see no more. It never moves back within one reign.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from headrace.model.errors import ErrorCode, Rejected
from headrace.model.ids import BrokerId, LeaderEpoch, Offset, TopicPartition


@dataclass(frozen=True, slots=True)
class HighWatermarkAdvanced:
    """Records below ``to`` are committed: acks=all may be answered, consumers may see them."""

    to: Offset


Effect = HighWatermarkAdvanced


class Leadership:
    """One reign of one broker over one partition."""

    __slots__ = (
        "broker_id",
        "leader_epoch",
        "replicas",
        "isr",
        "min_insync_replicas",
        "log_end",
        "high_watermark",
    )

    def __init__(
        self,
        broker_id: BrokerId,
        leader_epoch: LeaderEpoch,
        replicas: Iterable[BrokerId],
        isr: Iterable[BrokerId],
        min_insync_replicas: int,
        log_end: Offset,
        high_watermark: Offset,
    ) -> None:
        self.broker_id = broker_id
        self.leader_epoch = leader_epoch
        self.replicas = frozenset(replicas)
        self.isr = frozenset(isr)
        self.min_insync_replicas = min_insync_replicas
        self.log_end = log_end
        self.high_watermark = high_watermark

    @property
    def insync_required(self) -> int:
        """The effective minimum: a setting above the replica count could never be met."""
        return min(self.min_insync_replicas, len(self.replicas))

    @property
    def enough_replicas(self) -> bool:
        """Whether a write with acks=all may be taken at all."""
        count = len(self.isr)
        return count >= self.min_insync_replicas or count >= len(self.replicas)

    def check_enough_replicas(self, topic_partition: TopicPartition) -> None:
        """Raise Rejected unless a write with acks=all may be taken."""
        if not self.enough_replicas:
            raise Rejected(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"{topic_partition} has {len(self.isr)} in-sync replicas and "
                f"min.insync.replicas asks for {self.insync_required}",
            )

    def appended(self, log_end: Offset) -> list[Effect]:
        """The leader's own log now ends at ``log_end`` (exclusive), as far as it counts."""
        self.log_end = log_end
        return self._advance_high_watermark()

    def started(self) -> list[Effect]:
        """The reign begins: a lone replica holds all there is, so all of it is committed."""
        return self._advance_high_watermark()

    def bumped(self, leader_epoch: LeaderEpoch, isr: Iterable[BrokerId]) -> list[Effect]:
        """The controller raised the leader epoch, and this broker still leads."""
        self.leader_epoch = leader_epoch
        self.isr = frozenset(isr)
        return self._advance_high_watermark()

    def _advance_high_watermark(self) -> list[Effect]:
        if not self.enough_replicas:
            # KIP-966: what too few replicas hold is not shown, so that nothing seen can be lost
            # by an unclean restart of the last of them.
            return []
        alone = len(self.isr) == 1 and self.broker_id in self.isr
        if not alone or self.log_end <= self.high_watermark:
            return []
        self.high_watermark = self.log_end
        return [HighWatermarkAdvanced(self.log_end)]
