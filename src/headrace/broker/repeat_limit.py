"""Limit log lines about errors that clients cause again and again: one line per ten seconds."""

from collections.abc import Hashable

_REPEAT_AFTER_S = 10
_REMEMBERED_MAX = 1000  # then the limit forgets all errors, and each of them is logged again


class RepeatLimit:
    __slots__ = ("_logged",)

    def __init__(self) -> None:
        # Error -> when it was last logged, and how often it occurred since.
        self._logged: dict[Hashable, tuple[float, int]] = {}

    def occurred(self, error: Hashable, now: float) -> str | None:
        """None if ``error`` was just logged; else the end of its line: the count of repetitions.

        ``now`` is the time of the event loop.
        """
        logged_at, repeat_count = self._logged.get(error, (-_REPEAT_AFTER_S, 0))
        if now - logged_at < _REPEAT_AFTER_S:
            self._logged[error] = (logged_at, repeat_count + 1)
            return None
        if len(self._logged) >= _REMEMBERED_MAX:
            self._logged.clear()
        self._logged[error] = (now, 0)
        return f" (repeated {repeat_count} times since the last report)" if repeat_count else ""
