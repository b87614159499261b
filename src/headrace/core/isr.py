"""The ISR: what a leader knows about each follower, and what a refused ISR change means."""

from enum import Enum, auto

from headrace.model.errors import ErrorCode
from headrace.model.ids import Offset

NO_BROKER_EPOCH = -1
UNKNOWN_OFFSET = Offset(-1)


class FollowerProgress:
    """One follower, as far as its fetches prove it to the leader.

    A fetch at offset N proves that the follower holds all records below N.
    """

    __slots__ = (
        "broker_epoch",
        "caught_up_at",
        "fetched_at",
        "has_left",
        "log_end",
        "log_start",
        "refused_at",
        "_leader_log_end",
    )

    def __init__(self, caught_up_at: float | None) -> None:
        self.log_end = UNKNOWN_OFFSET
        self.log_start = UNKNOWN_OFFSET
        self.broker_epoch = NO_BROKER_EPOCH
        self.caught_up_at = caught_up_at  # None: never in this leadership
        self.fetched_at: float | None = None
        self.has_left = False  # it is not registered; a fetch proves that it is back
        # The controller did not let it join the ISR: it shuts down, for example.
        self.refused_at: float | None = None
        self._leader_log_end = UNKNOWN_OFFSET  # at the time of the last fetch

    def leader_epoch_began(self, caught_up_at: float | None) -> None:
        """The leader leads in a new epoch; what the follower's fetches proved stays proven."""
        self.caught_up_at = caught_up_at
        self.has_left = False

    def left(self) -> None:
        """The broker of the follower is no longer registered."""
        self.has_left = True

    def fetched(
        self,
        fetch_offset: Offset,
        log_start: Offset,
        broker_epoch: int,
        leader_log_end: Offset,
        now: float,
    ) -> bool:
        """Take a validated fetch; False if it is ignored.

        A late fetch of the follower's process before its restart proves nothing about the new
        process, which may have lost the tail of its log (KIP-903).
        """
        if NO_BROKER_EPOCH < broker_epoch < self.broker_epoch:
            return False
        if fetch_offset >= leader_log_end:
            self.caught_up_at = now
        elif self.fetched_at is not None and fetch_offset >= self._leader_log_end:
            # It reached the log end of its last fetch. Under constant load a follower never
            # reaches the current one.
            self.caught_up_at = self.fetched_at
        self.log_end = fetch_offset
        self.log_start = log_start
        self.broker_epoch = max(self.broker_epoch, broker_epoch)
        self.fetched_at = now
        self.has_left = False
        self._leader_log_end = leader_log_end
        return True

    def ticked(self, leader_log_end: Offset, now: float) -> None:
        """Note that a follower with all records is caught up until the next record is written.

        In a fetch session it does not repeat its position, so its fetches do not show that.
        """
        if self.log_end >= leader_log_end and not self.has_left:
            self.caught_up_at = now
        if self.refused_at is not None and (self.fetched_at or 0) > self.refused_at:
            self.refused_at = None  # it is still there: try again

    def may_be_waited_for(self, leader_log_end: Offset, now: float, lag_time_ms_max: int) -> bool:
        """Whether the high watermark waits for it although it is not in the ISR.

        A follower that keeps up is about to join. Without waiting, a leader under load would move
        its high watermark away from the follower again and again.
        """
        return self.refused_at is None and self.is_caught_up(leader_log_end, now, lag_time_ms_max)

    def is_caught_up(self, leader_log_end: Offset, now: float, lag_time_ms_max: int) -> bool:
        """Whether the follower keeps up.

        A follower with all records keeps up, however long ago it fetched: nothing was produced.
        """
        if self.has_left:
            return False
        if self.log_end >= leader_log_end:
            return True
        return self.caught_up_at is not None and now - self.caught_up_at <= lag_time_ms_max


class IsrRefusal(Enum):
    """What the leader knows after an ISR proposal was not confirmed."""

    NOT_APPLIED = auto()  # the controller vouches that the ISR is unchanged
    OUTCOME_UNKNOWN = auto()  # send the same proposal again
    AWAIT_CONTROLLER = auto()  # this leadership is out of date; a new state is on its way


_REFUSALS = {
    ErrorCode.INELIGIBLE_REPLICA: IsrRefusal.NOT_APPLIED,
    ErrorCode.OPERATION_NOT_ATTEMPTED: IsrRefusal.NOT_APPLIED,
    ErrorCode.FENCED_LEADER_EPOCH: IsrRefusal.AWAIT_CONTROLLER,
    ErrorCode.INVALID_UPDATE_VERSION: IsrRefusal.AWAIT_CONTROLLER,
    ErrorCode.UNKNOWN_TOPIC_ID: IsrRefusal.AWAIT_CONTROLLER,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: IsrRefusal.AWAIT_CONTROLLER,
    ErrorCode.INVALID_REQUEST: IsrRefusal.AWAIT_CONTROLLER,
    ErrorCode.NEW_LEADER_ELECTED: IsrRefusal.AWAIT_CONTROLLER,
}


def refusal_of(error_code: ErrorCode) -> IsrRefusal:
    """What an error in an AlterPartition answer means; also for REQUEST_TIMED_OUT and the like.

    Any other error may hide a change that was applied, as with a controller that died before it
    answered.
    """
    return _REFUSALS.get(error_code, IsrRefusal.OUTCOME_UNKNOWN)
