"""Verification at the transaction coordinator of another broker."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from headrace.broker.coordinators.remote_verification import RemoteVerification
from headrace.broker.peers import Peers
from headrace.broker.tasks import BackgroundTasks
from headrace.core.transactions.answers import results
from headrace.model.errors import ErrorCode
from headrace.model.ids import BrokerId, TopicPartition
from headrace.wire import messages as m
from headrace.wire.api import ApiKey
from headrace.world.network import dial
from tests.fakes.network_peers import until
from tests.fakes.scripted_broker import scripted_broker
from tests.fakes.standin import in_loop

COORDINATOR = BrokerId(2)
FIRST, SECOND = TopicPartition("t", 0), TopicPartition("u", 4)
NONE = ErrorCode.NONE


def partitions_of(transaction):
    return [
        TopicPartition(topic.name, partition)
        for topic in transaction.topics
        for partition in topic.partitions
    ]


def all_valid(request):
    return m.AddPartitionsToTxnResponse(
        results_by_transaction=[
            results(one.transactional_id, partitions_of(one), NONE)
            for one in reversed(request.transactions)
        ]
    )


@asynccontextmanager
async def coordinator_at(answer, **options):
    failures = []
    tasks = BackgroundTasks(asyncio.get_running_loop(), failures.append)
    async with scripted_broker(answer, **options) as broker:
        known = {COORDINATOR: broker.entry(COORDINATOR)}
        remote = RemoteVerification(BrokerId(1), Peers(known.get, "PLAINTEXT", dial), tasks)
        yield broker, remote
        await remote.close()
    assert failures == []


def ask(remote, transactional_id="x", partitions=(FIRST,), *, adds=False):
    return remote.verify_or_add(COORDINATOR, transactional_id, (7, 3), partitions, adds=adds)


@in_loop
async def test_the_coordinator_is_asked_as_kafkas_brokers_ask():
    async with coordinator_at(all_valid) as (broker, remote):
        codes = await ask(remote, partitions=[FIRST, SECOND])
        assert codes == {FIRST: NONE, SECOND: NONE}
        (received,) = broker.received
        assert received.client_id == "AddPartitionsManager-client-1"
        assert received.api_version == 5
        (transaction,) = received.request.transactions
        assert transaction.transactional_id == "x"
        assert (transaction.producer_id, transaction.producer_epoch) == (7, 3)
        assert transaction.verify_only
        assert partitions_of(transaction) == [FIRST, SECOND]
        await ask(remote, adds=True)
        assert not broker.received[1].request.transactions[0].verify_only


@in_loop
async def test_waiting_transactions_share_a_request_and_one_id_is_not_in_it_twice():
    gate = asyncio.Event()

    async def answer(request):
        await gate.wait()
        return all_valid(request)

    async with coordinator_at(answer) as (broker, remote):
        first = ask(remote, "a")
        await until(lambda: broker.received)
        others = [ask(remote, name, [SECOND]) for name in ("b", "c", "b")]
        gate.set()
        assert await first == {FIRST: NONE}
        assert [await one for one in others] == [{SECOND: NONE}] * 3
        asked = [
            [one.transactional_id for one in received.request.transactions]
            for received in broker.received
        ]
        assert asked == [["a"], ["b", "c"], ["b"]]


@in_loop
async def test_a_broker_that_coordinates_no_longer_is_not_waited_for():
    gate = asyncio.Event()

    async def answer(request):
        await gate.wait()
        return all_valid(request)

    async with coordinator_at(answer) as (broker, remote):
        in_flight, stays = ask(remote, "moved"), ask(remote, "stays")
        await until(lambda: broker.received)
        queued = ask(remote, "moved", [SECOND])
        remote.coordinators_changed(lambda name: COORDINATOR if name == "stays" else None)
        assert await in_flight == {FIRST: ErrorCode.NOT_COORDINATOR}
        assert await queued == {SECOND: ErrorCode.NOT_COORDINATOR}
        assert not stays.done()
        gate.set()
        assert await stays == {FIRST: NONE}
        assert await ask(remote, "moved") == {FIRST: NONE}
        assert len(broker.received) == 2, "what is not waited for is not sent"


@in_loop
async def test_an_error_of_the_whole_request_is_that_of_each_partition():
    def refuse(request):
        return m.AddPartitionsToTxnResponse(error_code=ErrorCode.NOT_COORDINATOR)

    async with coordinator_at(refuse) as (_, remote):
        codes = await ask(remote, partitions=[FIRST, SECOND])
        assert set(codes.values()) == {ErrorCode.NOT_COORDINATOR}


@in_loop
async def test_a_partition_without_an_answer_is_not_verified():
    async with coordinator_at(lambda request: m.AddPartitionsToTxnResponse()) as (_, remote):
        assert await ask(remote) == {FIRST: ErrorCode.COORDINATOR_NOT_AVAILABLE}


@in_loop
async def test_a_lost_connection_is_an_answer_and_the_next_request_opens_another():
    lost = []

    async with coordinator_at(all_valid) as (broker, remote):

        def hang_up(request):
            lost.append(request)
            broker.hang_up()
            return all_valid(request)

        broker.answer = hang_up
        assert await ask(remote) == {FIRST: ErrorCode.NETWORK_EXCEPTION}
        broker.answer = all_valid
        assert await ask(remote) == {FIRST: NONE}
        assert len(lost) == 1


@pytest.mark.parametrize("adds", [False, True])
@in_loop
async def test_a_broker_without_an_address_cannot_be_asked(adds):
    tasks = BackgroundTasks(asyncio.get_running_loop(), lambda error: None)
    remote = RemoteVerification(BrokerId(1), Peers({}.get, "PLAINTEXT", dial), tasks)
    assert await ask(remote, adds=adds) == {FIRST: ErrorCode.NETWORK_EXCEPTION}


@in_loop
async def test_a_coordinator_without_the_api_verifies_nothing_and_adds_nothing():
    none = {ApiKey.ADD_PARTITIONS_TO_TXN: -1}
    async with coordinator_at(all_valid, highest=none) as (broker, remote):
        assert await ask(remote) == {FIRST: NONE}
        assert await ask(remote, adds=True) == {FIRST: ErrorCode.UNSUPPORTED_VERSION}
        assert broker.received == []
