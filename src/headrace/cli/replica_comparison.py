"""Do the replicas of a partition hold the same? Compares what they returned. Pure.

Replicas of a topic that is not compacted have the same batches, byte for byte: a follower appends
what the leader wrote. Each replica of a compacted topic is cleaned at its own time, so there only
the last record of each key is compared.
"""

from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import NamedTuple

from headrace.model.errors import ErrorCode
from headrace.records.batch import BadBatch, BatchHeader, crc_holds, headers, read_header
from headrace.records.record import ABORT, iter_records, marker_type

_DIGEST_SIZE = 16


class Difference(NamedTuple):
    broker: int
    offset: int
    problem: str
    is_tie: bool = False  # no majority of the replicas holds something else


class Compared(NamedTuple):
    next_offset: int  # everything below is the same, except for ``differences``
    differences: list[Difference]


def compare_batches(
    fetched: Mapping[int, memoryview], leader: int, offset: int, end: int
) -> Compared:
    """Compare the batches that each broker returned for ``offset``, up to ``end``.

    Stops at the first difference: the caller goes on at the same offset without the brokers that
    differ. A response begins with a complete batch. It may end with a truncated one.
    """
    shared = min(map(len, fetched.values()))
    first = next(iter(fetched.values()))
    if all(one[:shared] == first[:shared] for one in fetched.values()):
        try:
            return Compared(_walk(first[:shared], offset, end), [])
        except BadBatch:
            pass  # the same damage everywhere; below, each broker is named
    position = 0
    while offset < end:
        batches = {broker: _batch_at(data, position) for broker, data in fetched.items()}
        if position and any(batch is None for batch in batches.values()):
            break
        differences = _judge({broker: batch or b"" for broker, batch in batches.items()}, leader)
        if differences:
            return Compared(offset, [one._replace(offset=offset) for one in differences])
        (batch, *_) = batches.values()
        assert batch is not None  # an empty one is a difference
        header = read_header(batch)
        offset, position = header.next_offset, position + header.size
    return Compared(offset, [])


def _walk(data: memoryview, offset: int, end: int) -> int:
    """The offset after the complete batches in ``data``."""
    for position, header in headers(data):
        if offset >= end:
            break
        _check_crc(data[position : position + header.size], header)
        offset = header.next_offset
    return offset


def _batch_at(data: memoryview, position: int) -> bytes | None:
    """The batch at ``position``; None if it is truncated, or its header is damaged."""
    try:
        header = read_header(data, position)
    except BadBatch:
        return None
    end = position + header.size
    return bytes(data[position:end]) if end <= len(data) else None


def _judge(batches: Mapping[int, bytes], leader: int) -> list[Difference]:
    """The brokers whose batch is wrong, and why. An intact batch is right, then the majority's."""
    intact: dict[bytes, list[int]] = {}
    damaged = []
    for broker, batch in batches.items():
        if _is_intact(batch):
            intact.setdefault(batch, []).append(broker)
        else:
            damaged.append(Difference(broker, 0, "the batch is damaged: wrong CRC or header"))
    verdict = _verdict(list(intact.values()), leader)
    found = [
        Difference(broker, 0, f"the batch differs from {verdict.others}", verdict.is_tie)
        for broker in verdict.wrong
    ]
    return sorted([*damaged, *found])


class _Verdict(NamedTuple):
    right: list[int]
    wrong: list[int]
    is_tie: bool
    leader: int

    @property
    def others(self) -> str:
        if not self.is_tie:
            return listed(self.right)
        leads = ", which leads" if self.right == [self.leader] else ""
        return f"{listed(self.right)}{leads}; there is no majority"


def _verdict(camps: Sequence[list[int]], leader: int) -> _Verdict:
    """Which of the brokers are right; each camp holds the same. In a tie, the leader's camp."""
    if not camps:
        return _Verdict([], [], False, leader)
    right = max(camps, key=lambda camp: (len(camp), leader in camp))
    wrong = [broker for camp in camps if camp is not right for broker in camp]
    is_tie = sum(len(camp) == len(right) for camp in camps) > 1
    return _Verdict(right, wrong, is_tie, leader)


def _is_intact(batch: bytes) -> bool:
    try:
        return crc_holds(memoryview(batch), read_header(batch))
    except BadBatch:
        return False


def _check_crc(batch: memoryview, header: BatchHeader) -> None:
    if not crc_holds(batch, header):
        raise BadBatch(ErrorCode.CORRUPT_MESSAGE, "wrong CRC")


def listed(brokers: Sequence[int]) -> str:
    """``broker 1`` or ``brokers 1, 2``."""
    return f"broker{'s' if len(brokers) > 1 else ''} {', '.join(map(str, sorted(brokers)))}"


# --- compacted topics ------------------------------------------------------------------


class Last(NamedTuple):
    """The last record of a key; ``digest`` is of its value, None for a tombstone."""

    offset: int
    digest: bytes | None


class LastRecords:
    """The last committed record of each key in one replica.

    Keys are kept as digests: about 200 bytes of memory for each.
    """

    def __init__(self) -> None:
        self.by_key: dict[bytes, Last] = {}

    def add(
        self,
        fetched: memoryview,
        aborted: Iterable[tuple[int, int]],
        offset: int,
        end: int,
    ) -> int:
        """Take the records in ``[offset, end)`` of a response; the offset after them.

        ``aborted`` are the producers of aborted transactions with their first offsets. Raises
        BadBatch for a damaged batch.
        """
        waiting = sorted(aborted, key=lambda one: one[1])
        aborting: set[int] = set()
        for position, header in headers(fetched):
            if offset >= end:
                break
            batch = fetched[position : position + header.size]
            _check_crc(batch, header)
            while waiting and waiting[0][1] <= header.last_offset:
                aborting.add(waiting.pop(0)[0])
            self._add_batch(batch, header, aborting, offset)
            offset = header.next_offset
        return offset

    def _add_batch(
        self, batch: memoryview, header: BatchHeader, aborting: set[int], offset: int
    ) -> None:
        if header.is_control:
            for record in iter_records(batch):
                if marker_type(record.key) == ABORT:
                    aborting.discard(header.producer_id)
            return
        if header.is_transactional and header.producer_id in aborting:
            return
        for record in iter_records(batch):
            if record.key is None or record.offset < offset:
                continue
            digest = None if record.value is None else _digest(record.value)
            self.by_key[_digest(record.key)] = Last(record.offset, digest)


def differing_keys(one: LastRecords, other: LastRecords) -> dict[bytes, int]:
    """The keys whose last records differ, each with the lowest of their offsets.

    A tombstone is the same as no record: a cleaning drops it in each replica at another time.
    """
    found = {}
    for key in one.by_key.keys() | other.by_key.keys():
        lasts = [one.by_key.get(key), other.by_key.get(key)]
        values = [last for last in lasts if last is not None and last.digest is not None]
        if values and (len(values) < 2 or values[0] != values[1]):
            found[key] = min(last.offset for last in lasts if last is not None)
    return found


def judge_keys(lasts: Mapping[bytes, Mapping[int, Last | None]], leader: int) -> list[Difference]:
    """The brokers with wrong last records: by key, what each broker holds. The majority is right.

    One difference for each broker, at its lowest offset.
    """
    verdicts: dict[int, list[tuple[int, _Verdict]]] = {}
    for by_broker in lasts.values():
        camps: dict[Last | None, list[int]] = {}
        for broker, last in by_broker.items():
            is_value = last is not None and last.digest is not None
            camps.setdefault(last if is_value else None, []).append(broker)
        verdict = _verdict(list(camps.values()), leader)
        offset = min((last.offset for last in by_broker.values() if last is not None), default=0)
        for broker in verdict.wrong:
            verdicts.setdefault(broker, []).append((offset, verdict))
    return [_of_keys(broker, found) for broker, found in sorted(verdicts.items())]


def _of_keys(broker: int, verdicts: Sequence[tuple[int, _Verdict]]) -> Difference:
    # Keys that a majority decides tell more than ties.
    is_tie = all(verdict.is_tie for _, verdict in verdicts)
    chosen = [one for one in verdicts if one[1].is_tie == is_tie]
    offset, verdict = min(chosen, key=lambda one: one[0])
    keys = "1 key" if len(chosen) == 1 else f"{len(chosen):,} keys"
    problem = f"{keys} with another last value than on {verdict.others}"
    return Difference(broker, offset, problem, is_tie)


def _digest(data: bytes) -> bytes:
    return blake2b(data, digest_size=_DIGEST_SIZE).digest()
