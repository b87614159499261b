"""What is said of clients that send what is no request.

One of them that connects again at once would fill the log with one and the same line.
"""

import logging

from headrace.model.errors import PeerBroken
from headrace.net.link import Link

_log = logging.getLogger("headrace.broker")

_SILENT_S = 10
_KINDS_MAX = 1000  # then all are forgotten, and said once more


class ProtocolErrorLog:
    __slots__ = ("_told",)

    def __init__(self) -> None:
        # Who and what -> when it was said, and how often it was not since.
        self._told: dict[tuple[str, str, str], tuple[float, int]] = {}

    def say(self, link: Link, broken: PeerBroken, now: float) -> None:
        """Once, and then no more than every ten seconds, with how often."""
        kind = (link.peer_host, link.listener_name, str(broken))
        told_at, silent_count = self._told.get(kind, (-_SILENT_S, 0))
        if now - told_at < _SILENT_S:
            self._told[kind] = (told_at, silent_count + 1)
            return
        if len(self._told) >= _KINDS_MAX:
            self._told.clear()
        self._told[kind] = (now, 0)
        _log.warning(
            "closing the connection from %s on %s: it sent %s%s",
            link,
            link.listener_name,
            broken,
            f" ({silent_count} times more since this was last said)" if silent_count else "",
        )
