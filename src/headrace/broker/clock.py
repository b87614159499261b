"""The only place that reads the time. Machines get it passed in."""

import time

from headrace.model.ids import Millis


class Clock:
    """Wall time stamps records; monotonic time measures waits, whatever the wall clock does."""

    def now(self) -> Millis:
        return Millis(time.time_ns() // 1_000_000)

    def monotonic_ms(self) -> float:
        return time.monotonic() * 1000


class SteadyClock:
    """Wall time that does not jump.

    Machines set deadlines on the clock that they record. If somebody sets the wall clock an hour
    ahead, no session may end by it. So a difference is made up for slowly, in either direction;
    one of more than a day means that the time was not known before, and is taken at once.
    """

    __slots__ = ("_ahead_ms", "_clock", "_read_at")

    STEP_MS = 86_400_000.0
    SLEW = 1 / 16

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._read_at = clock.monotonic_ms()
        self._ahead_ms = clock.now() - self._read_at  # of the monotonic clock

    def now(self) -> Millis:
        monotonic_ms = self._clock.monotonic_ms()
        difference = self._clock.now() - monotonic_ms - self._ahead_ms
        slewed_max = (monotonic_ms - self._read_at) * self.SLEW
        if -slewed_max <= difference <= slewed_max or abs(difference) > self.STEP_MS:
            self._ahead_ms += difference
        else:
            self._ahead_ms += slewed_max if difference > 0 else -slewed_max
        self._read_at = monotonic_ms
        return Millis(int(monotonic_ms + self._ahead_ms))
