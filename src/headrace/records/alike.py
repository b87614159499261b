"""Spans of similar sections: computed once for all sections that differ only in their values.

A client that commits the same offsets or writes the same keys repeatedly leaves batches that
differ only in their values. Compaction ignores values, so the spans of one such section are valid
for all of them. One ``struct`` splits a section into the bytes that ``spans`` reads (lengths,
deltas, keys), which are the cache key, and the bytes that it skips.
"""

from struct import Struct

from headrace.records.record import Span, spans
from headrace.records.varint import read_varint

_COUNT_MIN = 2  # caching a single record saves nothing
_LAYOUTS_KEPT = 1000


class Spans:
    """The result of ``spans``; one shared object for all similar sections, if ``is_kept``."""

    __slots__ = ("found", "is_kept")

    def __init__(self, found: list[Span]) -> None:
        self.found = found
        self.is_kept = False


class _Layout:
    """Positions of the values in sections of one size and record count, and cached spans."""

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
        """``records_kept`` bounds the memory: about 300 bytes per record."""
        self._room = records_kept
        # None for a size and count seen once: most never occur again.
        self._layouts: dict[tuple[int, int], _Layout | None] = {}

    def spans(self, data: bytes, record_count: int) -> Spans:
        """As ``record.spans``. Raises BadBatch if the bytes are not records."""
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
        self._room -= len(made.found)  # even if nothing is cached: this bounds the work, too
        holes = [_hole(data, span) for span in made.found]
        if layout is None:
            layout = self._layouts[shape] = _Layout(holes)
        elif layout.holes != holes:
            return  # this layout would split the section at the wrong positions
        made.is_kept = True
        layout.known[b"".join(layout.unpack(data))] = made


def _hole(data: bytes, span: Span) -> tuple[int, int]:
    """The bytes that ``spans`` skips: all after the first byte of the value length."""
    _, position = read_varint(data, span.start)  # length
    _, position = read_varint(data, position + 1)  # timestamp delta, after the attributes
    _, position = read_varint(data, position)  # offset delta
    _, position = read_varint(data, position)  # key length
    return position + len(span.key or b"") + 1, span.end
