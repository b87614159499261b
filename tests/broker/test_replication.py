"""Replication between brokers on loopback: followers copy, the ISR decides, leaders change."""

import asyncio

from headrace.model.errors import ErrorCode
from tests.fakes.logs import read_bytes
from tests.fakes.replicated import replicated, until
from tests.fakes.standin import in_loop


@in_loop
async def test_acks_all_is_answered_when_every_replica_has_the_record(tmp_path):
    async with replicated(tmp_path) as cluster:
        answer = await cluster.produce(1, b"a", b"b")
        assert (answer.error_code, answer.base_offset) == (0, 0)
        for broker_id in cluster.ids:
            assert cluster.values(broker_id) == [b"a", b"b"]
        assert cluster.replica(1).high_watermark == 2
        assert cluster.proposals == []


@in_loop
async def test_followers_learn_the_high_watermark_with_the_next_response(tmp_path):
    async with replicated(tmp_path) as cluster:
        await cluster.produce(1, b"a")
        await until(lambda: cluster.replica(2).high_watermark == 1)


@in_loop
async def test_replicas_have_the_same_bytes(tmp_path):
    async with replicated(tmp_path, 2, partitions=3) as cluster:
        for number in range(20):
            await cluster.produce(1, b"%d" % number, partition=number % 3)
        for partition in range(3):
            logs = [cluster.log(broker_id, partition) for broker_id in (1, 2)]
            contents = [read_bytes(log, 0) for log in logs]
            assert contents[0] == contents[1] != b""


@in_loop
async def test_a_follower_takes_over_and_the_old_leader_drops_what_it_alone_has(tmp_path):
    async with replicated(tmp_path, 2) as cluster:
        await cluster.produce(1, b"a")
        await until(lambda: cluster.replica(2).high_watermark == 1)
        # The follower leads now; the old leader has not heard of it, and takes another record.
        cluster.decide(2, (2,), tell=(2,))
        lost = await cluster.produce(1, b"lost", acks=1)
        assert lost.error_code == 0
        await cluster.produce(2, b"b")
        assert cluster.values(1) == [b"a", b"lost"]
        cluster.tell(1)
        await until(lambda: cluster.values(1) == [b"a", b"b"])
        await until(lambda: cluster.states[0].isr == (1, 2))
        assert cluster.log(1).leader_epochs.entries == cluster.log(2).leader_epochs.entries


@in_loop
async def test_a_follower_that_stops_fetching_leaves_the_isr_and_returns(tmp_path):
    async with replicated(tmp_path, 3) as cluster:
        await cluster.produce(1, b"a")
        services = cluster.services(3)
        await services.replicas.stop()
        answer = await cluster.produce(1, b"b", timeout_ms=20_000)
        assert answer.error_code == 0
        assert cluster.states[0].isr == (1, 2)


@in_loop
async def test_a_broker_that_loses_leadership_answers_waiting_writes_at_once(tmp_path):
    async with replicated(tmp_path, 2) as cluster:
        await cluster.services(2).replicas.stop()
        waiting = asyncio.create_task(cluster.produce(1, b"a", timeout_ms=60_000))
        await until(lambda: cluster.log(1).log_end == 1)
        cluster.decide(2, (2,), tell=(1,))
        answer = await waiting
        assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
