"""The only place that reads the time. Machines get it passed in."""

import time

from headrace.model.ids import Millis


class Clock:
    """Wall time stamps records; monotonic time measures waits, whatever the wall clock does."""

    def now(self) -> Millis:
        return Millis(time.time_ns() // 1_000_000)

    def monotonic_ms(self) -> float:
        return time.monotonic() * 1000
