"""Wall-clock time that does not jump, for deadlines that are recorded in logs."""

from collections.abc import Callable

from headrace.model.ids import Millis


class SteadyClock:
    """Follows the wall clock, but slowly.

    Coordinators compute deadlines from recorded times. If the wall clock is set an hour ahead, no
    session may expire because of that. So a difference is corrected gradually, in either
    direction. A difference of more than a day means that the wall clock was not set before; it is
    corrected at once.
    """

    __slots__ = ("_ahead_ms", "_monotonic_s", "_read_at", "_wall")

    STEP_MS = 86_400_000.0
    SLEW = 1 / 16

    def __init__(self, wall: Callable[[], Millis], monotonic_s: Callable[[], float]) -> None:
        self._wall = wall
        self._monotonic_s = monotonic_s
        self._read_at = monotonic_s() * 1000
        self._ahead_ms = wall() - self._read_at  # of the monotonic clock

    def now(self) -> Millis:
        monotonic_ms = self._monotonic_s() * 1000
        difference = self._wall() - monotonic_ms - self._ahead_ms
        slewed_max = (monotonic_ms - self._read_at) * self.SLEW
        if -slewed_max <= difference <= slewed_max or abs(difference) > self.STEP_MS:
            self._ahead_ms += difference
        else:
            self._ahead_ms += slewed_max if difference > 0 else -slewed_max
        self._read_at = monotonic_ms
        return Millis(int(monotonic_ms + self._ahead_ms))
