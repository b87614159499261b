"""Leaders and replicas that break one rule each, to prove that the tests notice.

The numbers are those of the design's correctness rules.
"""

from headrace.core.leadership import Leadership
from headrace.core.partition import Partition
from headrace.core.partition_effects import Truncate
from headrace.model.errors import ErrorCode


class CountsTheConfirmedIsrOnly(Leadership):
    """Rule 1."""

    @property
    def maximal_isr(self):
        return self.isr


class JoinsAtTheHighWatermark(Leadership):
    """Rule 2: whatever the first offset of the leader epoch."""

    def may_join(self, progress):
        return progress.log_end >= self.high_watermark


class AnswersLatestAtOnce(Leadership):
    """Rule 2: with the stale high watermark of a new leader."""

    @property
    def is_high_watermark_current(self):
        return True


class TruncatesToTheHighWatermark(Partition):
    """Rule 3."""

    def _follow(self, leader, leader_epoch):
        return [Truncate(self.high_watermark), *super()._follow(leader, leader_epoch)]


class AcknowledgesWhatTheLeaderHas(Leadership):
    """Rule 7."""

    def acknowledgement(self, offset_end):
        return ErrorCode.NONE if self.log_end >= offset_end else None


class CommitsBelowTheMinimum(Leadership):
    """Rule 8."""

    def _advance_high_watermark(self):
        enough, self.enough_replicas = self.enough_replicas, True
        effects = super()._advance_high_watermark()
        self.enough_replicas = enough
        return effects


class KeepsProgressAcrossSkippedEpochs(Leadership):
    """No rule of its own: it follows from rule 1. Another broker may have led in between."""

    def epoch_bumped(self, state, log_end, now):
        self.leader_epoch = state.leader_epoch - 1
        return super().epoch_bumped(state, log_end, now)
