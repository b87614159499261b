"""Producer state against a simple model that keeps every batch ever written."""

from typing import NamedTuple

import hypothesis.strategies as st
from hypothesis import given

from headrace.core.producer_state import EndMarker, Origin, Producers
from headrace.model.errors import ErrorCode, Rejected
from headrace.records.batch import CONTROL, TRANSACTIONAL, BatchHeader

WRAP = 2**31


class Seen(NamedTuple):
    producer: int
    epoch: int
    first: int
    count: int
    offset: int


class Twin:
    """Keeps every batch in a list and derives each answer from the whole list."""

    def __init__(self):
        self.batches: list[Seen] = []
        self.markers: list[tuple[int, int, int]] = []  # producer, epoch, offset

    def epoch(self, producer):
        written = [(b.offset, b.epoch) for b in self.batches if b.producer == producer]
        ended = [(offset, epoch) for p, epoch, offset in self.markers if p == producer]
        return max(written + ended, default=(None, None))[1]

    def answer(self, producer, epoch, first, count):
        known = self.epoch(producer)
        if known is None:
            return "taken"
        if epoch < known:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        if epoch > known:
            return "taken" if first == 0 else ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        mine = [b for b in self.batches if b.producer == producer and b.epoch == epoch]
        expected = (mine[-1].first + mine[-1].count) % WRAP if mine else 0
        if first == expected:
            return "taken"
        for seen in mine[-5:]:
            if (seen.first, seen.count) == (first, count):
                return seen.offset
        return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


# Few producers, epochs and sequences, so that duplicates, gaps and bumps are frequent.
sends = st.tuples(
    st.just("send"),
    st.integers(1, 2),
    st.integers(0, 2),
    st.sampled_from([0, 1, 2, 3, WRAP - 2, WRAP - 1]),
    st.integers(1, 3),
    st.booleans(),
)
repeats = st.tuples(st.just("repeat"), st.integers(0, 7))
nexts = st.tuples(st.just("next"), st.integers(1, 2), st.integers(1, 3))
marks = st.tuples(st.just("mark"), st.integers(1, 2), st.integers(0, 2))
writes = st.tuples(st.sampled_from(["written", "undo", "snapshot"]))


@given(st.lists(st.one_of(sends, repeats, nexts, nexts, marks, writes), max_size=60))
def test_producers_answer_as_if_they_remembered_everything(steps):
    producers, twin = Producers(), Twin()
    log_end = 0
    saved = ([], [], 0)
    for step in steps:
        if step[0] == "written":
            producers.written()
            saved = (list(twin.batches), list(twin.markers), log_end)
            continue
        if step[0] == "undo":
            producers.undo()
            twin.batches, twin.markers, log_end = list(saved[0]), list(saved[1]), saved[2]
            continue
        if step[0] == "snapshot":
            snapshot = list(producers.snapshot())
            again = Producers()
            again.restore(snapshot, 0)
            assert list(again.snapshot()) == snapshot
            continue
        if step[0] == "mark":
            _, producer, epoch = step
            if (twin.epoch(producer) or 0) > epoch:
                continue
            header = BatchHeader(
                0, 78, 0, 2, 0, CONTROL | TRANSACTIONAL, 0, 1, 1, producer, epoch, -1, 1
            )
            marker = EndMarker(True, 0, 1)
            producers.append(header, log_end, 1, Origin.COORDINATOR, marker)
            twin.markers.append((producer, epoch, log_end))
            log_end += 1
            continue
        if step[0] == "repeat":
            if not twin.batches:
                continue
            seen = twin.batches[-1 - step[1] % len(twin.batches)]
            producer, epoch, first, count = seen[:4]
        elif step[0] == "next":
            _, producer, count = step
            mine = [b for b in twin.batches if b.producer == producer]
            epoch = mine[-1].epoch if mine else 0
            first = (mine[-1].first + mine[-1].count) % WRAP if mine else 0
        else:
            _, producer, epoch, first, count, _ = step
        header = BatchHeader(0, 99, 0, 2, 0, 0, count - 1, 1, 1, producer, epoch, first, count)
        try:
            found = producers.append(header, log_end, 1, Origin.CLIENT)
            answer = "taken" if found is None else found.base_offset
        except Rejected as refusal:
            answer = refusal.code
        assert answer == twin.answer(producer, epoch, first, count)
        if answer == "taken":
            twin.batches.append(Seen(producer, epoch, first, count, log_end))
            log_end += count
