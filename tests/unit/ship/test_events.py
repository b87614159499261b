"""Splitting a chunk into events: lines, patterns, limits."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.ship.events import PatternInvalid, Splitter, compiled

START = r"\d\d "


def shipped(splitter: Splitter, data: bytes, chunk_size: int) -> list[tuple[int, bytes, object]]:
    """All events of a file that is read in chunks of at most so many bytes."""
    found: list[tuple[int, bytes, object]] = []
    offset, inside = 0, False
    while True:
        chunk = data[offset : offset + chunk_size]
        final = offset + len(chunk) == len(data)
        events = splitter.split(chunk, offset, inside=inside)
        if not events.values and final:
            events = splitter.split(chunk, offset, inside=inside, final=True)
        if not events.values:
            assert final
            return found
        for index, value in enumerate(events.values):
            found.append((events.offsets[index], value, events.parts.get(index)))
        offset += events.size
        inside = events.inside


def test_a_partial_last_line_is_held():
    events = Splitter(100).split(b"one\ntwo\nthr", 50)
    assert (events.values, events.offsets, events.size) == ([b"one", b"two"], [50, 54], 8)


def test_carriage_returns_belong_to_the_line_end():
    assert Splitter(100).split(b"one\r\n\r\n", 0).values == [b"one", b""]


def test_a_final_chunk_needs_no_line_end():
    assert Splitter(100).split(b"one\ntwo", 0, final=True).values == [b"one", b"two"]


def test_a_line_above_the_limit_is_cut_and_marked():
    events = Splitter(4).split(b"ab\n0123456789\ncd\n", 0)
    assert events.values == [b"ab", b"0123", b"4567", b"89", b"cd"]
    assert events.offsets == [0, 3, 7, 11, 14]
    assert events.parts == {1: b"first", 2: b"middle", 3: b"last"}


def test_a_line_that_is_too_long_leaves_before_it_ends():
    splitter = Splitter(4)
    events = splitter.split(b"0123456789", 0)
    assert events.values == [b"0123", b"4567"] and events.inside
    rest = splitter.split(b"89\nab\n", 8, inside=True)
    assert rest.values == [b"89", b"ab"] and rest.parts == {0: b"last"} and not rest.inside


def test_an_event_lasts_until_the_next_start():
    splitter = Splitter(100, START)
    events = splitter.split(b"01 a\n at x\n at y\n02 b\n at z\n", 0)
    assert events.values == [b"01 a\n at x\n at y"] and events.size == 17
    held = splitter.split(b"02 b\n at z\n", 17, final=True)
    assert held.values == [b"02 b\n at z"] and held.offsets == [17]


def test_a_wrong_pattern_is_explained():
    with pytest.raises(PatternInvalid, match=r"invalid regular expression '\('"):
        compiled("(")


LINES = st.lists(st.sampled_from([b"", b"01 ", b"ab", b"02 xyz", b"0123456789abcdef"]), max_size=12)


@given(lines=LINES, chunk_size=st.integers(14, 40), end=st.booleans())
def test_lines_do_not_depend_on_how_they_are_read(lines, chunk_size, end):
    data = b"\n".join(lines) + (b"\n" if end else b"")
    splitter = Splitter(6)
    events = shipped(splitter, data, chunk_size)
    assert events == shipped(splitter, data, 1000)
    whole: list[bytes] = []
    for _, value, part in events:
        if part in (None, b"first"):
            whole.append(value)
        else:
            whole[-1] += value
    assert whole == (data.removesuffix(b"\n").split(b"\n") if data else [])


@given(lines=LINES, chunk_size=st.integers(14, 40))
def test_events_of_several_lines_cover_every_byte_once(lines, chunk_size):
    data = b"".join(line + b"\n" for line in lines)
    end = 0
    for offset, value, _ in shipped(Splitter(12, START), data, chunk_size):
        assert data[end:offset].strip(b"\n") == b""
        assert data[offset : offset + len(value)] == value
        end = offset + len(value)
    assert data[end:].strip(b"\n") == b""
