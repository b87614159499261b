"""Percentiles of many durations in constant memory. Pure."""

import math

# The ratio of neighboring buckets: percentiles are within half a percent.
_GROWTH = 1.01
_LOG_GROWTH = math.log(_GROWTH)
_SMALLEST_S = 1e-7

SHOWN = (50.0, 75.0, 90.0, 95.0, 99.0, 99.9)


class Percentiles:
    """A histogram with logarithmic buckets, about 2,500 for durations up to an hour."""

    def __init__(self) -> None:
        self.count = 0
        self.largest_s = 0.0
        self._buckets: dict[int, int] = {}

    def add(self, seconds: float) -> None:
        bucket = math.ceil(math.log(max(seconds, _SMALLEST_S) / _SMALLEST_S) / _LOG_GROWTH)
        self._buckets[bucket] = self._buckets.get(bucket, 0) + 1
        self.count += 1
        if seconds > self.largest_s:
            self.largest_s = seconds

    def at(self, percent: float) -> float:
        """The duration that ``percent`` of all durations do not exceed."""
        wanted = math.ceil(self.count * percent / 100)
        seen = 0
        for bucket in sorted(self._buckets):
            seen += self._buckets[bucket]
            if seen >= wanted:
                return min(_SMALLEST_S * _GROWTH**bucket, self.largest_s)
        return self.largest_s

    def named_ms(self) -> dict[str, float] | None:
        """``p50`` … ``p99.9`` and ``max``, in milliseconds; None without durations."""
        if not self.count:
            return None
        found = {f"p{percent:g}": round(self.at(percent) * 1000, 3) for percent in SHOWN}
        return {**found, "max": round(self.largest_s * 1000, 3)}
