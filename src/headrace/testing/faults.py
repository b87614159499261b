"""Injected faults: errors and delays that a test asks for, by API.

They replace ``Dispatch.request`` of a broker in this process while there are any. So a broker
without faults runs the code that it runs in production, and nothing else.
"""

import asyncio
import struct
from typing import Any

from headrace.broker.dispatch import Dispatch
from headrace.model.errors import ErrorCode, PeerBroken, Rejected
from headrace.net.link import Link, Slot
from headrace.wire.api import SERVED, ApiKey, api_name

_read_api_key = struct.Struct(">h").unpack_from


class Faults:
    """The faults of one running broker. Use it on the event loop of the broker only."""

    def __init__(self, dispatch: Dispatch, loop: asyncio.AbstractEventLoop) -> None:
        self._dispatch = dispatch
        self._loop = loop
        self._handle = dispatch.request
        self._errors: dict[int, tuple[ErrorCode, int | None]] = {}  # and how many requests to fail
        self._delays: dict[int, float] = {}  # in seconds

    def fail(self, api_key: int, code: ErrorCode, times: int | None) -> None:
        """Fail the next ``times`` requests, or all if it is None."""
        if times == 0:
            self._errors.pop(api_key, None)
        else:
            self._errors[api_key] = (code, times)
        self._install_or_remove()

    def delay(self, api_key: int, seconds: float) -> None:
        """Handle every request that much later."""
        if seconds == 0:
            self._delays.pop(api_key, None)
        else:
            self._delays[api_key] = seconds
        self._install_or_remove()

    def _install_or_remove(self) -> None:
        has_faults = self._errors or self._delays
        self._dispatch.request = self._request if has_faults else self._handle

    def _request(self, link: Link, view: memoryview, start: int, end: int) -> None:
        (api_key,) = _read_api_key(view, start) if end - start >= 2 else (None,)
        seconds = self._delays.get(api_key)
        if seconds is None:
            self._fail_or_handle(link, view, start, end, api_key)
        else:
            # The connection waits, as when a broker is slow. The view does not outlive this turn,
            # and a produced batch is stamped in place.
            frame = memoryview(bytearray(view[start:end]))
            self._loop.call_later(seconds, self._resume, link, link.hold(), frame, api_key)

    def _resume(self, link: Link, slot: Slot, frame: memoryview, api_key: int) -> None:
        """Handle a delayed request and end its turn."""
        if link.closed:
            return
        try:
            self._fail_or_handle(link, frame, 0, len(frame), api_key)
        except PeerBroken as broken:
            self._dispatch.peer_broken(link, broken)
            link.close_when_sent()
        self._dispatch.turn_ended(link)
        slot.answer(())  # the answer itself is in the slot behind this one

    def _fail_or_handle(
        self, link: Link, view: memoryview, start: int, end: int, api_key: int
    ) -> None:
        if api_key not in self._errors:
            self._handle(link, view, start, end)
            return
        code, times = self._errors[api_key]
        if times is not None:
            self.fail(api_key, code, times - 1)
        refusal = Rejected(code, "the test injected this error")
        self._dispatch.refuse(link, view, start, end, refusal)


def parse_api(api: Any) -> ApiKey:
    """The API with a name such as ``"OffsetCommit"``, or with a number."""
    if isinstance(api, int) and not isinstance(api, bool) and api in SERVED:
        return ApiKey(api)
    if isinstance(api, str):
        for key in SERVED:
            if api_name(key).lower() == api.replace("_", "").lower():
                return key
    raise ValueError(
        f"api: expected the name of an API that the broker serves, such as 'Produce' or "
        f"'OffsetCommit'; got {api!r}"
    )


def parse_error(error: Any) -> ErrorCode:
    """The error with a name such as ``"NOT_LEADER_OR_FOLLOWER"``, or with a number."""
    if isinstance(error, str) and error in ErrorCode.__members__:
        code = ErrorCode[error]
    elif isinstance(error, int) and not isinstance(error, bool) and error in set(ErrorCode):
        code = ErrorCode(error)
    else:
        code = ErrorCode.NONE
    if code is ErrorCode.NONE:
        raise ValueError(
            "error: expected the name of a Kafka error, such as 'NOT_LEADER_OR_FOLLOWER'; "
            f"got {error!r}"
        )
    return code


def parse_times(times: Any) -> int | None:
    if times is None or (isinstance(times, int) and not isinstance(times, bool) and times >= 0):
        return times
    raise ValueError(
        f"times: expected a number of requests, or None for every request; got {times!r}"
    )


def parse_delay(milliseconds: Any) -> float:
    """In seconds."""
    is_number = isinstance(milliseconds, (int, float)) and not isinstance(milliseconds, bool)
    if not is_number or not 0 <= milliseconds < float("inf"):
        raise ValueError(f"ms: expected a number of milliseconds; got {milliseconds!r}")
    return float(milliseconds) / 1000
