"""The throttle of moves between log directories, on the event loop's clock."""

import asyncio
from collections.abc import Callable

UNLIMITED = 2**63 - 1
_STEPS_PER_SECOND = 10
_PAUSE_S = 1  # until a paused move looks again


class MoveThrottle:
    """Limits the rate to ``replica.alter.log.dirs.io.max.bytes.per.second``.

    The rate is read before every step, so that a new value takes effect within a second. A rate of
    0 pauses the moves.
    """

    def __init__(self, bytes_per_second: Callable[[], int]) -> None:
        self._bytes_per_second = bytes_per_second

    def step_size(self) -> int | None:
        """How many bytes to copy in the next step; None for no limit."""
        rate = self._bytes_per_second()
        return None if rate >= UNLIMITED else min(rate, max(rate // _STEPS_PER_SECOND, 1))

    async def spread(self, size: int, started_at: float) -> None:
        """Wait until the step that copied ``size`` bytes is within the rate."""
        rate = self._bytes_per_second()
        took_s = asyncio.get_running_loop().time() - started_at
        await asyncio.sleep(max(size / rate - took_s, 0) if rate else _PAUSE_S)


def unlimited() -> MoveThrottle:
    return MoveThrottle(lambda: UNLIMITED)
