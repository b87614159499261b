"""Connections between brokers with scripted answers, in place of ``broker.peers``."""

import asyncio
from typing import Any

from headrace.client.errors import Disconnected

NEVER = object()


class AnsweringPeers:
    """``answers`` are those of the next requests; None is a lost connection, NEVER no answer."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[int, Any]] = []  # the broker id and the request
        self.open_count = 0

    def peer(self, broker_id: int, client_id: str, **options: Any) -> "AnsweringPeer":
        self.open_count += 1
        return AnsweringPeer(self, broker_id)


class AnsweringPeer:
    def __init__(self, peers: AnsweringPeers, broker_id: int) -> None:
        self._peers = peers
        self._broker_id = broker_id
        self._closed = asyncio.Event()

    async def request(self, request: Any, kind: type, **options: Any) -> Any:
        self._peers.asked.append((self._broker_id, request))
        answer = self._peers.answers.pop(0)
        if answer is NEVER:
            await self._closed.wait()
            raise Disconnected("the connection is closed")
        if answer is None:
            raise Disconnected("no broker there")
        return answer

    async def close(self) -> None:
        if not self._closed.is_set():
            self._closed.set()
            self._peers.open_count -= 1
