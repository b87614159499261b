"""How far a generation is acknowledged: chunks complete in any order, positions in theirs. Pure."""

from collections import deque
from collections.abc import Callable
from typing import Any

from headrace.ship.generations import Generation, Mark


class Chunk:
    """The events of one read; ``delivered`` is called once for each of them."""

    __slots__ = ("_completed", "_failed", "counted", "left", "mark")

    def __init__(
        self, mark: Mark, count: int, completed: Callable[[], None], failed: Callable[[Any], None]
    ) -> None:
        self.mark = mark  # the position behind the chunk
        self.left = count
        self.counted: Callable[[], None] = lambda: None  # called once all are acknowledged
        self._completed = completed
        self._failed = failed

    def delivered(self, error: Any, record: object = None) -> None:
        """An event was acknowledged, or not; a chunk with a failure never completes."""
        if error is not None:
            self._failed(error)
            return
        self.left -= 1
        if not self.left:
            self.counted()
            self._completed()


class Acknowledgements:
    """The chunks of one generation that are in flight, in the order of the file."""

    def __init__(self, generation: Generation) -> None:
        self._generation = generation
        self._chunks: deque[Chunk] = deque()

    def __bool__(self) -> bool:
        """Whether chunks are in flight."""
        return bool(self._chunks)

    @property
    def end(self) -> int:
        """The offset behind the last chunk in flight; 0 without one."""
        return self._chunks[-1].mark.offset if self._chunks else 0

    def sent(self, mark: Mark, count: int, failed: Callable[[Any], None]) -> Chunk:
        """A chunk of ``count`` events that ends at ``mark`` is about to be sent."""
        chunk = Chunk(mark, count, self._advance, failed)
        self._chunks.append(chunk)
        return chunk

    def drop(self) -> None:
        """Forget the chunks in flight: their positions are no longer valid."""
        self._chunks.clear()

    def _advance(self) -> None:
        while self._chunks and not self._chunks[0].left:
            self._generation.acknowledged = self._chunks.popleft().mark
