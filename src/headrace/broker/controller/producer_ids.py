"""Producer ids, from blocks that the cluster assigns to brokers, so that no id is used twice."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Protocol

from headrace.model.ids import ProducerId


class ProducerIdSource(Protocol):
    async def next(self) -> ProducerId:
        """An id that no producer of this cluster has had before."""
        ...


class ProducerIds:
    """The source of a cluster of one, whose broker reserves blocks itself."""

    def __init__(self, reserve: Callable[[], Awaitable[range]]) -> None:
        """``reserve`` gets a block of ids that no other broker ever gets."""
        self._reserve = reserve
        self._left: Iterator[int] = iter(range(0))  # in the current block
        self._drawing = asyncio.Lock()

    async def next(self) -> ProducerId:
        """An id that no producer of this cluster has had before."""
        async with self._drawing:
            producer_id = next(self._left, None)
            if producer_id is None:
                self._left = iter(await self._reserve())
                producer_id = next(self._left)
        return ProducerId(producer_id)
