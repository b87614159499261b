"""Which fetches a leader serves: the leader epoch, the replica, and the position in the log.

    a fetch with                                        is answered with
    an older leader epoch than the broker's             FENCED_LEADER_EPOCH
    a newer one                                         UNKNOWN_LEADER_EPOCH
    the broker's, but the broker does not lead          NOT_LEADER_OR_FOLLOWER
    a replica id that is not among the replicas         UNKNOWN_LEADER_EPOCH
    a last fetched epoch above all that the log has     OFFSET_OUT_OF_RANGE
    an offset below the log start, above the log end    OFFSET_OUT_OF_RANGE
    records that the log does not have                  the diverging epoch, and no error

An offset between the high watermark and the log end is in range: a consumer gets no records
there, and waits.
"""

from collections.abc import Container

from headrace.core.leader_epochs import UNDEFINED, EpochEnd, LeaderEpochs
from headrace.model.errors import ErrorCode, Rejected
from headrace.model.ids import NO_LEADER_EPOCH, BrokerId, LeaderEpoch, Offset


def check_leader_epoch(asked: LeaderEpoch, current: LeaderEpoch) -> None:
    """Reject a client or follower that knows another leader epoch (-1: it knows none)."""
    if asked in (NO_LEADER_EPOCH, current):
        return
    if asked < current:
        raise Rejected(
            ErrorCode.FENCED_LEADER_EPOCH,
            f"leader epoch {asked} has ended; the current one is {current}",
        )
    raise Rejected(
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        f"leader epoch {asked} is not known here yet; the current one is {current}",
    )


def check_follower(follower: BrokerId, replicas: Container[BrokerId]) -> None:
    if follower not in replicas:
        # It may know a newer assignment than this broker, and tries again.
        raise Rejected(
            ErrorCode.UNKNOWN_LEADER_EPOCH,
            f"broker {follower} is not among the replicas that are known here",
        )


def find_divergence(
    fetch_offset: Offset,
    last_fetched_epoch: LeaderEpoch,
    epochs: LeaderEpochs,
    log_start: Offset,
    log_end: Offset,
) -> EpochEnd | None:
    """Where the reader's records stop being records of this log; None if all of them are.

    ``last_fetched_epoch`` is the epoch of the record before ``fetch_offset``, or -1.
    """
    if fetch_offset < log_start:
        raise _out_of_range(fetch_offset, log_start, log_end)
    if last_fetched_epoch >= 0:
        end = epochs.end_of(last_fetched_epoch, log_end)
        if end == UNDEFINED:
            raise Rejected(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"the log has no leader epoch {last_fetched_epoch}; the last is {epochs.latest}",
            )
        if end.leader_epoch < last_fetched_epoch or end.end_offset < fetch_offset:
            return end
    if fetch_offset > log_end:
        raise _out_of_range(fetch_offset, log_start, log_end)
    return None


def _out_of_range(fetch_offset: Offset, log_start: Offset, log_end: Offset) -> Rejected:
    return Rejected(
        ErrorCode.OFFSET_OUT_OF_RANGE,
        f"offset {fetch_offset} is out of range: the log holds {log_start} to {log_end}",
    )
