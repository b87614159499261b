"""Compare the replicas of one partition, step by step, below the high watermark of its leader.

Replicas whose records differ are reported once and then left out, so that the others are compared
to the end. A replica that does not answer, or does not get as far as the leader was, is left out
after ``PATIENCE_S``.
"""

import time
from collections.abc import Callable, Container
from typing import NamedTuple

from headrace.cli.replica_comparison import (
    Difference,
    Last,
    LastRecords,
    compare_batches,
    differing_keys,
    judge_keys,
)
from headrace.cli.replica_fetching import Fetched, ReplicaPlaces, fetch, high_watermark
from headrace.client.cluster import Cluster
from headrace.client.errors import ClientError
from headrace.model.errors import ErrorCode
from headrace.records.batch import BadBatch

PATIENCE_S = 10.0
_PAUSE_S = 0.1
# The broker's disk does not return the records: this is damage, not a network that is slow.
_UNREADABLE = (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.CORRUPT_MESSAGE)


class Skipped(NamedTuple):
    """A replica that was not compared, or not to the end."""

    broker: int
    reason: str


class PartitionVerification:
    """The comparison of one partition. ``advanced`` hears of each step: offset, end and bytes."""

    def __init__(
        self, cluster: Cluster, place: ReplicaPlaces, advanced: Callable[[int, int, int], None]
    ) -> None:
        self.place = place
        self.differences: list[Difference] = []
        self.skipped = [Skipped(broker, "offline or not in sync") for broker in place.others]
        self._cluster = cluster
        self._advanced = advanced
        self._brokers = list(place.in_sync)
        self._log_start = 0

    def run(self, start: int = 0, known: Container[int] = ()) -> None:
        """Compare from ``start``, where an earlier run stopped, without the brokers ``known``.

        Those differ: the earlier run found it.
        """
        self._brokers = [broker for broker in self._brokers if broker not in known]
        try:
            end = self._find_bounds()
        except ClientError as failure:
            self.skipped.append(Skipped(self.place.leader, str(failure)))
            return
        start = max(start, self._log_start)
        if self.place.is_compacted:
            self._compare_keys(self._log_start, end)
        else:
            self._compare_bytes(start, end)

    # --- bounds ------------------------------------------------------------------

    def _find_bounds(self) -> int:
        """Where the comparison ends. Leaves out the replicas that do not get that far."""
        place = self.place
        leader_end = high_watermark(self._cluster, place)
        ends: dict[int, int] = {}
        give_up_at = time.monotonic() + PATIENCE_S
        while True:
            waited_for = [broker for broker in self._brokers if broker not in ends]
            found = fetch(self._cluster, place, waited_for, leader_end, wait=False)
            for broker, one in found.items():
                if one.error is None and one.high_watermark >= leader_end:
                    ends[broker] = one.stable_end if place.is_compacted else leader_end
                    self._log_start = max(self._log_start, one.log_start)
            behind = {broker: one for broker, one in found.items() if broker not in ends}
            if not behind:
                break
            if time.monotonic() > give_up_at:
                for broker, one in behind.items():
                    why = one.error or f"its high watermark stays below {leader_end}"
                    self._leave_out(broker, why)
                break
            time.sleep(_PAUSE_S)
        return min(ends.values(), default=0)

    def _leave_out(self, broker: int, reason: str) -> None:
        self._brokers.remove(broker)
        self.skipped.append(Skipped(broker, reason))

    def _report(self, difference: Difference) -> None:
        self._brokers.remove(difference.broker)
        self.differences.append(difference)

    # --- byte by byte --------------------------------------------------------------

    def _compare_bytes(self, offset: int, end: int) -> None:
        give_up_at = time.monotonic() + PATIENCE_S
        while offset < end and len(self._brokers) > 1:
            found = fetch(self._cluster, self.place, self._brokers, offset)
            missing = {b: one for b, one in found.items() if one.error or not one.records}
            if not missing:
                step = compare_batches(
                    {broker: one.records for broker, one in found.items()},
                    self.place.leader,
                    offset,
                    end,
                )
                for difference in step.differences:
                    self._report(difference)
                offset = step.next_offset
                give_up_at = time.monotonic() + PATIENCE_S
                size = sum(len(one.records) for one in found.values())
                self._advanced(offset, end, size)
            elif any(one.code is ErrorCode.OFFSET_OUT_OF_RANGE for one in missing.values()):
                # Retention deleted these records meanwhile, at least in one replica.
                starts = [self._bounds(broker, end).log_start for broker in self._brokers]
                offset = max(offset, *starts)
            if missing and time.monotonic() > give_up_at:
                self._give_up_on(missing, offset)
            elif missing:
                time.sleep(_PAUSE_S)

    def _give_up_on(self, missing: dict[int, Fetched], offset: int) -> None:
        for broker, one in missing.items():
            if one.error is None:
                self._report(Difference(broker, offset, "returns no records"))
            elif one.code in _UNREADABLE:
                self._report(Difference(broker, offset, f"cannot be read: {one.error}"))
            else:
                self._leave_out(broker, one.error)

    # --- key by key ----------------------------------------------------------------

    def _compare_keys(self, start: int, end: int) -> None:
        lasts = self._differing_keys(start, end)
        if lasts:
            self._exclude_superseded(lasts, end)
        # A replica that could not be read any more is reported already.
        compared = {
            key: {b: last for b, last in by_broker.items() if b in self._brokers}
            for key, by_broker in lasts.items()
        }
        for difference in judge_keys(compared, self.place.leader):
            self._report(difference)

    def _differing_keys(self, start: int, end: int) -> dict[bytes, dict[int, Last | None]]:
        """What each replica holds, for the keys that are not the same everywhere.

        Only one replica is kept as a whole, because of the memory.
        """
        first: LastRecords | None = None
        others: dict[int, dict[bytes, Last | None]] = {}
        for broker in list(self._brokers):
            found = self._last_records(broker, start, end)
            if found is None:
                continue
            if first is None:
                first = found
            others[broker] = {key: found.by_key.get(key) for key in differing_keys(first, found)}
        keys = {key for differing in others.values() for key in differing}
        return {
            key: {
                broker: differing[key] if key in differing else first.by_key.get(key)
                for broker, differing in others.items()
            }
            for key in keys
            if first is not None
        }

    def _last_records(self, broker: int, offset: int, end: int) -> LastRecords | None:
        """What the replica holds below ``end``; None if it cannot be read, which is reported."""
        found = LastRecords()
        give_up_at = time.monotonic() + PATIENCE_S
        while offset < end:
            one = fetch(self._cluster, self.place, [broker], offset)[broker]
            if one.error is None and one.records:
                try:
                    offset = found.add(one.records, one.aborted, offset, end)
                except BadBatch as bad:
                    self._report(Difference(broker, offset, f"the batch is damaged: {bad}"))
                    return None
                give_up_at = time.monotonic() + PATIENCE_S
                self._advanced(offset, end, len(one.records))
            elif one.error is None and one.stable_end >= end:
                break  # a cleaning left no batch up to the end
            elif time.monotonic() > give_up_at:
                self._give_up_on({broker: one}, offset)
                return None
            elif one.code is ErrorCode.OFFSET_OUT_OF_RANGE:
                offset = max(offset, self._bounds(broker, end).log_start)
            else:
                time.sleep(_PAUSE_S)
        return found

    def _exclude_superseded(self, lasts: dict[bytes, dict[int, Last | None]], end: int) -> None:
        """Drop the keys that were written again: one replica was cleaned since, the other not yet.

        Also drop keys whose record retention has deleted since.
        """
        for broker in list(self._brokers):
            now = self._bounds(broker, end)
            newer = self._last_records(broker, end, now.stable_end)
            for key, by_broker in list(lasts.items()):
                offset = min(last.offset for last in by_broker.values() if last is not None)
                if offset < now.log_start or (newer is not None and key in newer.by_key):
                    del lasts[key]

    def _bounds(self, broker: int, offset: int) -> Fetched:
        return fetch(self._cluster, self.place, [broker], offset, wait=False)[broker]
