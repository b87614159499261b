"""Producer ids come from reserved blocks, and each id is used once."""

import asyncio

from headrace.broker.controller.producer_ids import ProducerIds
from tests.fakes.standin import in_loop


@in_loop
async def test_concurrent_requests_get_different_ids_from_blocks_reserved_on_demand():
    blocks = iter([range(0, 3), range(7, 10)])
    reserved = []

    async def reserve():
        await asyncio.sleep(0)
        reserved.append(next(blocks))
        return reserved[-1]

    ids = ProducerIds(reserve)
    assert reserved == []
    drawn = await asyncio.gather(*(ids.next() for _ in range(5)))
    assert sorted(drawn) == [0, 1, 2, 7, 8]
    assert len(reserved) == 2
