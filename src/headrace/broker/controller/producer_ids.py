"""Producer ids: drawn from blocks that the cluster hands out, so that no id is ever used twice."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator

from headrace.model.ids import ProducerId


class ProducerIds:
    def __init__(self, reserve: Callable[[], Awaitable[range]]) -> None:
        """``reserve`` gets a block that no other broker has or will have."""
        self._reserve = reserve
        self._left: Iterator[int] = iter(range(0))  # of the block in hand
        self._drawing = asyncio.Lock()

    async def next(self) -> ProducerId:
        """An id that no producer of this cluster ever had."""
        async with self._drawing:
            producer_id = next(self._left, None)
            if producer_id is None:
                self._left = iter(await self._reserve())
                producer_id = next(self._left)
        return ProducerId(producer_id)
