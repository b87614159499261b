"""Receive buffers: pooled, borrowed only while bytes are pending, bounded in total.

An idle connection has none: a buffer of 256 KiB each would cost 256 MB for a thousand idle
clients. A connection that stopped after the first bytes of a frame has none either (see ``link``).
Large buffers are reused too: page faults in newly allocated memory cost more than a copy.
"""

_SIZE_USUAL = 1 << 18
_SIZE_PREFIX = 4  # before each request; the bound does not count it
_USUAL_KEPT_MAX = 16
_LARGE_KEPT_MAX = 4
_LARGE_KEPT_SIZE_MAX = 1 << 23


class Buffer:
    __slots__ = ("data", "view")

    def __init__(self, size: int) -> None:
        self.data = bytearray(size)
        self.view = memoryview(self.data)


class BufferPool:
    """All receive buffers of a broker.

    ``size_max`` (``queued.max.request.bytes``) bounds the memory of partly received requests that
    do not fit into a buffer of the usual size. A connection that needs more is closed, so that
    a flood of half-sent large requests cannot use up the memory.
    """

    def __init__(self, size_max: int) -> None:
        self.size_max = size_max
        self.large_size = 0  # bytes of borrowed buffers above the usual size
        self._usual: list[Buffer] = []
        self._large: list[Buffer] = []

    def borrow(self, size_hint: int = 0) -> Buffer:
        """A buffer to receive into; a large one if the pool has one for ``size_hint``."""
        if size_hint > _SIZE_USUAL:
            for slot, buffer in enumerate(self._large):
                if size_hint <= len(buffer.data) <= self._size_left():
                    self.large_size += len(buffer.data)
                    return self._large.pop(slot)
        return self._usual.pop() if self._usual else Buffer(_SIZE_USUAL)

    def grow(self, buffer: Buffer, start: int, end: int, size_needed: int) -> Buffer | None:
        """Move ``[start, end)`` into a larger buffer; None when the bound is reached.

        The size doubles, so that pooled buffers fit many requests. Near the bound it is exact, so
        that a single request of ``size_max`` bytes fits.
        """
        size_wanted = min(2 * len(buffer.data), 1 << (size_needed - 1).bit_length())
        size_left = self._size_left() + (len(buffer.data) if len(buffer.data) > _SIZE_USUAL else 0)
        larger: Buffer | None = None
        for slot, kept in enumerate(self._large):
            if size_wanted <= len(kept.data) <= size_left:
                larger = self._large.pop(slot)
                break
        if larger is None:
            if size_wanted > size_left:
                size_wanted = min(size_wanted, size_needed)
            if size_wanted > size_left:
                return None
            larger = Buffer(size_wanted)
        self.large_size += len(larger.data)
        larger.view[: end - start] = buffer.view[start:end]
        self.give_back(buffer)
        return larger

    def _size_left(self) -> int:
        return self.size_max + _SIZE_PREFIX - self.large_size

    def give_back(self, buffer: Buffer) -> None:
        size = len(buffer.data)
        if size == _SIZE_USUAL:
            if len(self._usual) < _USUAL_KEPT_MAX:
                self._usual.append(buffer)
            return
        self.large_size -= size
        if size <= _LARGE_KEPT_SIZE_MAX and len(self._large) < _LARGE_KEPT_MAX:
            self._large.append(buffer)
