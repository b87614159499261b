"""Jobs for other brokers: one request in flight to each, with all that was queued meanwhile."""

import asyncio

from headrace.broker.coordinators.outgoing import Outgoing, distinct
from headrace.broker.peers import Peers
from headrace.broker.tasks import BackgroundTasks
from headrace.model.ids import BrokerId
from headrace.world.network import dial
from tests.fakes.network_peers import until
from tests.fakes.standin import in_loop


@in_loop
async def test_one_request_is_in_flight_to_each_broker():
    failures = []
    tasks = BackgroundTasks(asyncio.get_running_loop(), failures.append)
    peers = Peers({}.get, "PLAINTEXT", dial)
    sent, gate = [], asyncio.Event()

    async def exchange(peer, jobs):
        sent.append((peer.broker_id, list(jobs)))
        await gate.wait()

    outgoing = Outgoing(tasks, lambda broker_id: peers.peer(broker_id, "test"), exchange)
    outgoing.add(BrokerId(1), "a")
    await asyncio.sleep(0)
    for broker_id, job in ((1, "b"), (2, "c"), (1, "d")):
        outgoing.add(BrokerId(broker_id), job)
    await asyncio.sleep(0)
    assert sent == [(1, ["a"]), (2, ["c"])]
    gate.set()
    await until(lambda: not len(tasks))
    assert sent == [(1, ["a"]), (2, ["c"]), (1, ["b", "d"])]
    outgoing.add(BrokerId(2), "e")
    await until(lambda: not len(tasks))
    assert sent[-1] == (2, ["e"])
    await outgoing.close()
    assert failures == []


def test_no_batch_has_two_jobs_of_one_key():
    jobs = ["a1", "b1", "a2", "c1", "a3", "b2"]
    batches = list(distinct(jobs, lambda job: job[0]))
    assert batches == [["a1", "b1", "c1"], ["a2", "b2"], ["a3"]]
    assert list(distinct([], lambda job: job)) == []
