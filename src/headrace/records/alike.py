"""Spans of sections that are alike: found once for all that differ in their values alone.

Who commits the same offsets or writes the same keys again and again leaves batches of which only
the values change. Compaction does not look at values, so what it has found out about one such
section holds for all of them. A section is cut into what ``spans`` reads (lengths, deltas, keys)
and what it steps over, with one ``struct``; the first is what sections are known by.
"""

from struct import Struct

from headrace.records.record import Span, spans
from headrace.records.varint import read_varint

_COUNT_MIN = 2  # for a single record nothing is won
_LAYOUTS_KEPT = 1000


class Spans:
    """``found`` is what ``spans`` finds; one object for all sections that are alike, if kept."""

    __slots__ = ("found", "is_kept")

    def __init__(self, found: list[Span]) -> None:
        self.found = found
        self.is_kept = False


class _Layout:
    """Where sections of one size and count have their values, and what is known of them."""

    __slots__ = ("holes", "known", "unpack")

    def __init__(self, holes: list[tuple[int, int]]) -> None:
        codes = []
        position = 0
        for start, end in holes:
            codes.append(f"{start - position}s{end - start}x")
            position = end
        self.holes = holes
        self.unpack = Struct("".join(codes)).unpack_from
        self.known: dict[bytes, Spans] = {}


class AlikeSections:
    def __init__(self, records_kept: int = 50_000) -> None:
        """Memory is bounded by how many records may be remembered: about 300 bytes each."""
        self._room = records_kept
        # None for a size and count that was met once: most never come again.
        self._layouts: dict[tuple[int, int], _Layout | None] = {}

    def spans(self, data: bytes, record_count: int) -> Spans:
        """As ``record.spans``; raises BadBatch for bytes that are no records."""
        shape = len(data), record_count
        layout = self._layouts.get(shape)
        if layout is not None:
            read = b"".join(layout.unpack(data))
            known = layout.known.get(read)
            if known is not None:
                return known
        made = Spans(spans(data, record_count))
        if _COUNT_MIN <= record_count <= self._room:
            self._remember(shape, data, made)
        return made

    def _remember(self, shape: tuple[int, int], data: bytes, made: Spans) -> None:
        if shape not in self._layouts:
            if len(self._layouts) < _LAYOUTS_KEPT:
                self._layouts[shape] = None
            return
        layout = self._layouts[shape]
        self._room -= len(made.found)  # also if it comes to nothing: the work is bounded by this
        holes = [_hole(data, span) for span in made.found]
        if layout is None:
            layout = self._layouts[shape] = _Layout(holes)
        elif layout.holes != holes:
            return  # cut in the wrong places, it would be taken for another
        made.is_kept = True
        layout.known[b"".join(layout.unpack(data))] = made


def _hole(data: bytes, span: Span) -> tuple[int, int]:
    """What ``spans`` does not read: all but the first byte of the value's size, to the end."""
    _, position = read_varint(data, span.start)  # length
    _, position = read_varint(data, position + 1)  # timestamp delta, behind the attributes
    _, position = read_varint(data, position)  # offset delta
    _, position = read_varint(data, position)  # size of the key
    return position + len(span.key or b"") + 1, span.end
