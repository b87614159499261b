"""Bugs in the handling of a request, before anything was appended: each closes one connection."""

import logging
from collections import deque
from typing import TYPE_CHECKING, Any

from headrace.broker.context import Context
from headrace.broker.error_responses import refused
from headrace.model.errors import ErrorCode, Rejected
from headrace.wire.api import api_name
from headrace.wire.framing import encode_response
from headrace.wire.schema import Message

if TYPE_CHECKING:
    from headrace.net.link import Link

_log = logging.getLogger("headrace.broker")

_KEPT_MAX = 100


class Bugs:
    def __init__(self) -> None:
        # The latest. A client that repeats its request may meet the same bug for days.
        self.met: deque[Exception] = deque(maxlen=_KEPT_MAX)

    def answer(self, link: "Link", context: Context, request: Any, error: Exception) -> Message:
        """Log the stack trace, respond with UNKNOWN_SERVER_ERROR, and close the connection.

        ``request`` is None if it could not be decoded.
        """
        _log.error(
            "Internal error in %s version %d (client id %s); closing the connection from %s",
            api_name(context.api_key),
            context.api_version,
            context.client_id,
            link,
            exc_info=error,
        )
        # The log has the traceback, and its frames would keep the request in memory.
        self.met.append(error.with_traceback(None))
        link.close_when_sent()
        return refused(context, request, Rejected(ErrorCode.UNKNOWN_SERVER_ERROR))

    def frame(self, link: "Link", context: Context, request: Any, error: Exception) -> bytearray:
        """The same response, encoded."""
        answer = self.answer(link, context, request, error)
        return encode_response(context.api_key, context.api_version, context.correlation_id, answer)
