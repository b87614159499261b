"""The rate of throttled replication, over a window of samples, as Kafka measures it.

The window is averaged over at least all samples but one. So a short burst is allowed, and what it
took beyond the rate is waited for afterwards.
"""

from collections import deque

UNLIMITED = (1 << 63) - 1


class ReplicationQuota:
    """Counts bytes. Time is in seconds, on any clock that does not go back."""

    def __init__(self, sample_count: int, sample_s: float) -> None:
        """``replication.quota.window.num`` samples of ``.size.seconds`` each."""
        self._sample_s = sample_s
        self._window_s = sample_count * sample_s
        self._measured_s_min = max(sample_count - 1, 1) * sample_s
        self._samples: deque[tuple[float, int]] = deque()  # when each began, and its bytes

    def record(self, size: int, now: float) -> None:
        """``size`` bytes were sent or received for throttled replicas."""
        if self._samples and now < self._samples[-1][0] + self._sample_s:
            began, before = self._samples.pop()
            self._samples.append((began, before + size))
        else:
            self._samples.append((now, size))

    def is_exceeded(self, rate: int, now: float) -> bool:
        """Whether more than ``rate`` bytes per second passed in the window."""
        if rate >= UNLIMITED:
            return False
        samples = self._samples
        while samples and samples[0][0] + self._window_s <= now:
            samples.popleft()
        if not samples:
            return False
        measured_s = max(now - samples[0][0], self._measured_s_min)
        return sum(size for _, size in samples) > rate * measured_s
