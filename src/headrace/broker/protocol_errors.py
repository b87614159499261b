"""Log clients that send invalid requests, without flooding the log.

A client that reconnects at once and sends the same bytes again would repeat the same line.
"""

import logging

from headrace.model.errors import PeerBroken
from headrace.net.link import Link

_log = logging.getLogger("headrace.broker")

_REPEAT_AFTER_S = 10
_REMEMBERED_MAX = 1000  # then the log forgets all errors, and reports each of them again


class ProtocolErrorLog:
    __slots__ = ("_reported",)

    def __init__(self) -> None:
        # Host, listener and error -> when it was last logged, and how often it occurred since.
        self._reported: dict[tuple[str, str, str], tuple[float, int]] = {}

    def report(self, link: Link, broken: PeerBroken, now: float) -> None:
        """Log a new error at once, and a repeated one every ten seconds with its count."""
        error = (link.peer_host, link.listener_name, str(broken))
        reported_at, repeat_count = self._reported.get(error, (-_REPEAT_AFTER_S, 0))
        if now - reported_at < _REPEAT_AFTER_S:
            self._reported[error] = (reported_at, repeat_count + 1)
            return
        if len(self._reported) >= _REMEMBERED_MAX:
            self._reported.clear()
        self._reported[error] = (now, 0)
        _log.warning(
            "Closing the connection from %s on %s: it sent %s%s",
            link,
            link.listener_name,
            broken,
            f" (repeated {repeat_count} times since the last report)" if repeat_count else "",
        )
