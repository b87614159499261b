"""Positions advance in the order of the file, however acknowledgements arrive."""

from hypothesis import given
from hypothesis import strategies as st

from headrace.ship.acknowledgements import Acknowledgements
from headrace.ship.generations import START, Generation, Mark


def generation() -> Generation:
    return Generation("g", "/a", "/a", 1, 1, START.tail)


def mark(offset: int) -> Mark:
    return Mark.after(offset, b"x" * offset)


@given(order=st.permutations(range(6)))
def test_a_position_moves_only_over_complete_chunks(order):
    known = generation()
    acknowledgements = Acknowledgements(known)
    chunks = [acknowledgements.sent(mark(10 * n), 1, lambda error: None) for n in range(1, 7)]
    done: set[int] = set()
    for index in order:
        chunks[index].delivered(None)
        done.add(index)
        prefix = next((n for n in range(6) if n not in done), 6)
        assert known.acknowledged.offset == 10 * prefix
    assert not acknowledgements


def test_a_refused_event_stops_the_position():
    known = generation()
    acknowledgements = Acknowledgements(known)
    failures: list[object] = []
    first = acknowledgements.sent(mark(10), 2, failures.append)
    second = acknowledgements.sent(mark(20), 1, failures.append)
    first.delivered(None)
    first.delivered("too large")
    second.delivered(None)
    assert failures == ["too large"] and known.acknowledged == START and acknowledgements


def test_dropped_chunks_change_nothing():
    known = generation()
    acknowledgements = Acknowledgements(known)
    chunk = acknowledgements.sent(mark(10), 1, lambda error: None)
    assert acknowledgements.end == 10
    acknowledgements.drop()
    chunk.delivered(None)
    assert known.acknowledged == START and acknowledgements.end == 0
