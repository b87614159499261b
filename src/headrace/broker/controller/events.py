"""The controller's events, handled one after the other, each kind at most once in the queue."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from headrace.coordination.tree import Conflict
from headrace.model.errors import Corrupt, ErrorCode, Rejected

_log = logging.getLogger("headrace.controller")

_RETRY_S = 1.0
_ENDED = Rejected(ErrorCode.NOT_CONTROLLER, "This broker is not the controller.")

Handle = Callable[[], Awaitable[None]]
Handled = asyncio.Future[Rejected | None]


class Events:
    def __init__(self, retry_s: float = _RETRY_S) -> None:
        self._retry_s = retry_s
        self._due: dict[Handle, list[Handled]] = {}
        self._wake = asyncio.Event()
        self._closed = False

    def post(self, handle: Handle) -> Handled:
        """Call ``handle`` soon; once if it is posted again before. The result is its refusal."""
        handled: Handled = asyncio.get_running_loop().create_future()
        if self._closed:
            handled.set_result(_ENDED)
            return handled
        self._due.setdefault(handle, []).append(handled)
        self._wake.set()
        return handled

    async def run(self) -> None:
        """Handle events until cancelled, or until the term has ended."""
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                while self._due:
                    handle = next(iter(self._due))
                    waiting = self._due.pop(handle)
                    refusal = await self._handle(handle)
                    _resolve(waiting, refusal)
                    if refusal is not None and refusal.code == ErrorCode.NOT_CONTROLLER:
                        return
        finally:
            self.close()

    def close(self) -> None:
        """Handle nothing more."""
        self._closed = True
        for waiting in self._due.values():
            _resolve(waiting, _ENDED)
        self._due = {}

    async def _handle(self, handle: Handle) -> Rejected | None:
        try:
            await handle()
        except Corrupt as error:
            # Written by another program. It must not stop the controller.
            _log.error("%s. Correct or delete that node", error)
        except Conflict as conflict:
            # Another program changed the same nodes. The handler reads them again.
            return self._retry(
                handle, Rejected(ErrorCode.UNKNOWN_SERVER_ERROR, f"Write refused: {conflict}")
            )
        except Rejected as refusal:
            if refusal.code != ErrorCode.NOT_CONTROLLER:
                return self._retry(handle, refusal)
            return refusal
        return None

    def _retry(self, handle: Handle, refusal: Rejected) -> Rejected:
        _log.error("Controller task failed: %s. Retrying in %g s", refusal, self._retry_s)
        asyncio.get_running_loop().call_later(self._retry_s, self.post, handle)
        return refusal


def _resolve(waiting: list[Handled], refusal: Rejected | None) -> None:
    for handled in waiting:
        if not handled.done():
            handled.set_result(refusal)
