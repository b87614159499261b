"""Producer ids in blocks from the controller: none twice, and the next block early."""

import asyncio

import pytest

from headrace.broker.controller.allocated_producer_ids import AllocatedProducerIds
from headrace.broker.tasks import BackgroundTasks
from headrace.model.errors import ErrorCode, Rejected
from headrace.wire import messages as m
from tests.fakes.answering_peers import NEVER, AnsweringPeers
from tests.fakes.standin import in_loop
from tests.fakes.waiting import until_true


def a_block(first, size=10):
    return m.AllocateProducerIdsResponse(producer_id_start=first, producer_id_len=size)


def refused(code):
    return m.AllocateProducerIdsResponse(error_code=code)


class Source:
    def __init__(self, *answers, **limits):
        self.peers = AnsweringPeers(*answers)
        self.failures = []
        self.tasks = BackgroundTasks(asyncio.get_running_loop(), self.failures.append)
        self.controller_id = 5
        self.ids = AllocatedProducerIds(
            self.peers, self.tasks, 3, lambda: 77, lambda: self.controller_id, **limits
        )

    async def fetched(self):
        await until_true(lambda: not len(self.tasks))
        assert self.failures == []


@in_loop
async def test_a_producer_waits_while_the_first_block_is_fetched():
    source = Source(a_block(100))
    assert await asyncio.gather(*(source.ids.next() for _ in range(3))) == [100, 101, 102]
    ((broker_id, request),) = source.peers.asked
    assert (broker_id, request.broker_id, request.broker_epoch) == (5, 3, 77)
    assert source.peers.open_count == 0


@in_loop
async def test_the_next_block_is_fetched_before_the_last_id_is_used():
    source = Source(a_block(100), a_block(500))
    source.ids.prefetch()
    source.ids.prefetch()
    await source.fetched()
    assert [await source.ids.next() for _ in range(9)] == list(range(100, 109))
    assert len(source.peers.asked) == 1
    assert await source.ids.next() == 109
    await source.fetched()
    assert len(source.peers.asked) == 2
    assert [await source.ids.next() for _ in range(2)] == [500, 501]


@in_loop
async def test_a_refusal_or_a_lost_connection_is_retried():
    source = Source(None, refused(ErrorCode.NOT_CONTROLLER), a_block(0))
    assert await source.ids.next() == 0
    await source.fetched()
    assert len(source.peers.asked) == 3


@in_loop
async def test_a_producer_is_told_to_come_back_if_no_controller_answers():
    source = Source(None, a_block(0), wait_s_max=0.01)
    with pytest.raises(Rejected) as refusal:
        await source.ids.next()
    assert refusal.value.code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    await source.fetched()
    assert await source.ids.next() == 0


@in_loop
async def test_a_controller_that_does_not_answer_is_left_for_its_successor():
    source = Source(NEVER, a_block(0))
    source.ids.prefetch()
    await until_true(lambda: len(source.peers.asked) == 1)
    source.controller_id = 6
    await source.fetched()
    assert [broker_id for broker_id, _ in source.peers.asked] == [5, 6]
    assert source.peers.open_count == 0
    assert await source.ids.next() == 0
