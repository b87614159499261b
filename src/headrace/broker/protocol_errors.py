"""Log clients that send invalid requests, without flooding the log.

A client that reconnects at once and sends the same bytes again would repeat the same line.
"""

import logging

from headrace.broker.repeat_limit import RepeatLimit
from headrace.model.errors import PeerBroken
from headrace.net.link import Link

_log = logging.getLogger("headrace.broker")


class ProtocolErrorLog:
    __slots__ = ("_limit",)

    def __init__(self) -> None:
        self._limit = RepeatLimit()

    def report(self, link: Link, broken: PeerBroken, now: float) -> None:
        """Log a new error at once, and a repeated one every ten seconds with its count."""
        error = (link.peer_host, link.listener_name, str(broken))
        repetitions = self._limit.occurred(error, now)
        if repetitions is not None:
            _log.warning(
                "Closing the connection from %s on %s: it sent %s%s",
                link,
                link.listener_name,
                broken,
                repetitions,
            )
