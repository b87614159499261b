"""Connections between brokers with scripted answers, in place of ``broker.peers``."""

from typing import Any

from headrace.client.errors import Disconnected


class AnsweringPeers:
    """``answers`` are those of the next requests; None is a lost connection."""

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

    async def request(self, request: Any, kind: type, **options: Any) -> Any:
        self._peers.asked.append((self._broker_id, request))
        answer = self._peers.answers.pop(0)
        if answer is None:
            raise Disconnected("no broker there")
        return answer

    async def close(self) -> None:
        self._peers.open_count -= 1
