"""Other brokers, as a list of answers: what a broker sends them is recorded."""

import asyncio
from collections import deque
from typing import Any

from headrace.client.errors import Disconnected


class ScriptedPeers:
    """In place of ``broker.peers.Peers``. A request waits until the test adds an answer."""

    def __init__(self) -> None:
        self.requests: list[Any] = []
        self.made: list[ScriptedPeer] = []
        self._answers: deque[Any] = deque()
        self._added = asyncio.Event()

    def peer(self, broker_id: int, client_id: str, **options: Any) -> "ScriptedPeer":
        made = ScriptedPeer(self, broker_id, client_id, options)
        self.made.append(made)
        return made

    def answer(self, *answers: Any) -> None:
        """Answer the next requests; an exception is raised, a function gets the request."""
        self._answers += answers
        self._added.set()

    async def next_answer(self, request: Any) -> Any:
        while not self._answers:
            self._added.clear()
            await self._added.wait()
        answer = self._answers.popleft()
        if isinstance(answer, Exception):
            raise answer
        return answer(request) if callable(answer) else answer


class ScriptedPeer:
    def __init__(
        self, peers: ScriptedPeers, broker_id: int, client_id: str, options: dict[str, Any]
    ) -> None:
        self._peers = peers
        self.broker_id = broker_id
        self.client_id = client_id
        self.options = options
        self.closed = asyncio.Event()

    async def request(self, request: Any, kind: Any, **options: Any) -> Any:
        self._peers.requests.append(request)
        answering = asyncio.ensure_future(self._peers.next_answer(request))
        closing = asyncio.ensure_future(self.closed.wait())
        try:
            await asyncio.wait((answering, closing), return_when=asyncio.FIRST_COMPLETED)
            if answering.done():
                return answering.result()
            raise Disconnected("closed")
        finally:
            answering.cancel()
            closing.cancel()

    async def close(self) -> None:
        self.closed.set()
