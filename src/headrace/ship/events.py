"""Events of a chunk of a log file: lines, or several lines that begin with a pattern. Pure."""

from collections.abc import Iterator
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

# The value of the header ``part`` of a piece of an event above the limit.
FIRST, MIDDLE, LAST = b"first", b"middle", b"last"


class Events(NamedTuple):
    """Complete events of a chunk."""

    values: list[bytes]
    offsets: list[int]  # of the first byte of each event
    parts: dict[int, bytes]  # pieces of events that were cut, by index
    size: int  # bytes of the chunk that the events cover
    inside: bool = False  # the last event is a piece, and more of it follows


class PatternInvalid(ValueError):
    """A regular expression that cannot be compiled."""


class Splitter:
    """Splits chunks that begin at an event into events of at most ``limit`` bytes.

    ``start`` is a regular expression for the first line of an event that has several lines.
    """

    def __init__(self, limit: int, start: str | None = None) -> None:
        self.limit = limit
        self.holds_last_event = start is not None
        self._start = None if start is None else compiled(f"(?m)^(?:{start})")

    def split(
        self, chunk: bytes, offset: int, *, inside: bool = False, final: bool = False
    ) -> Events:
        """The complete events of a chunk.

        ``offset`` is where the chunk begins in its file; ``inside`` means that it begins within
        an event that was cut. What follows the last complete event is held back, unless the chunk
        is ``final`` or the rest is above the limit already.
        """
        last_line_end = len(chunk) if final else chunk.rfind(b"\n") + 1
        if self._start is None and not inside and last_line_end:
            simple = self._simple(chunk, offset, last_line_end)
            if simple is not None:
                return simple
        ends = self._ends(chunk[:last_line_end], final)
        complete = ends[-1] if ends else 0
        # An unfinished event above the limit; its line end is free.
        unfinished = len(chunk) - complete > self.limit + 1
        if unfinished:
            ends.append(len(chunk))
        elif not ends:
            return Events([], [], {}, 0, inside)
        return self._cut(chunk, offset, ends, inside, unfinished)

    def _ends(self, lines: bytes, final: bool) -> list[int]:
        """The end of each complete event."""
        if self._start is None:
            ends = list(accumulate(len(line) + 1 for line in lines.split(b"\n")[:-1]))
            return ends if lines.endswith(b"\n") or not lines else [*ends, len(lines)]
        starts = [found.start() for found in self._start.finditer(lines) if found.start()]
        return [*starts, len(lines)] if final and lines else starts

    def _simple(self, chunk: bytes, offset: int, end: int) -> Events | None:
        """Lines below the limit, with little work per line; None if one is above it."""
        values = chunk[:end].split(b"\n")
        if not values[-1]:
            values.pop()
        sizes = list(map(len, values))
        if max(sizes) > self.limit:
            return None
        begins = accumulate(sizes[:-1], initial=offset)
        offsets = [begin + index for index, begin in enumerate(begins)]
        if b"\r" in chunk:
            values = [value.removesuffix(b"\r") for value in values]
        return Events(values, offsets, {}, end)

    def _cut(
        self, chunk: bytes, offset: int, ends: list[int], inside: bool, unfinished: bool
    ) -> Events:
        """Events with those above the limit in pieces."""
        events = Events([], [], {}, 0)
        size = 0
        for begin, end in pairwise([0, *ends]):
            goes_on = unfinished and end == ends[-1]
            for piece_begin, piece_end, part in self._pieces(begin, end, inside, goes_on):
                if part is not None:
                    events.parts[len(events.values)] = part
                value = chunk[piece_begin:piece_end]
                if piece_end == end and not goes_on:
                    value = value.removesuffix(b"\n").removesuffix(b"\r")
                events.values.append(value)
                events.offsets.append(offset + piece_begin)
                size = piece_end
            inside = False
        return events._replace(size=size, inside=unfinished)

    def _pieces(
        self, begin: int, end: int, inside: bool, goes_on: bool
    ) -> Iterator[tuple[int, int, bytes | None]]:
        """The pieces of one event. If it goes on behind the chunk, its last piece is left."""
        limit = self.limit
        if not inside and not goes_on and end - begin <= limit + 1:
            yield begin, end, None
            return
        while end - begin > limit + 1:
            yield begin, begin + limit, MIDDLE if inside else FIRST
            begin += limit
            inside = True
        if not goes_on:
            yield begin, end, LAST


def compiled(pattern: str) -> Any:
    """A regular expression for bytes, linear in its input."""
    import re2

    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(pattern.encode(), options)
    except re2.error as error:
        reason = error.args[0] if error.args else error
        text = reason.decode() if isinstance(reason, bytes) else reason
        raise PatternInvalid(f"invalid regular expression {pattern!r}: {text}") from None
