"""A whole broker in virtual time, on a simulated disk and network."""

import asyncio
import random

import pytest

from headrace.broker.broker import Broker
from headrace.broker.periodic import PeriodicTasks
from headrace.client.connection import Connection
from headrace.client.errors import Disconnected
from headrace.coordination.memory import MemoryTree
from headrace.model.config import BrokerConfig
from headrace.records.plain import plain_batch
from headrace.records.record import iter_records
from headrace.wire import messages as m
from tests.sim.files import SimulatedDisk
from tests.sim.loop import run_simulated
from tests.sim.network import SimulatedNetwork
from tests.sim.world import SimulatedWorld, wall_clock_ns

PORT = 9092


class Cluster:
    """A broker and the machine of its clients, on one network."""

    def __init__(self, seed):
        loop = asyncio.get_running_loop()
        self.dice = random.Random(seed)
        self.network = SimulatedNetwork(loop, self.dice)
        self.tree = MemoryTree(lambda: 0)
        self.disks = {}
        self.client_world = self._world("client")

    def _world(self, host):
        loop = self.network.loop
        disk = self.disks.setdefault(host, SimulatedDisk(lambda: wall_clock_ns(loop)))
        return SimulatedWorld(loop, self.dice, self.network, disk, host)

    async def start(self, **more_settings):
        world = self._world("broker")
        settings = {"listeners": f"PLAINTEXT://broker:{PORT}", "log.dirs": "/data"}
        settings |= {name.replace("_", "."): value for name, value in more_settings.items()}
        # The tree in a file has a thread of its own; the one in memory has none.
        broker = Broker(BrokerConfig.parse(settings), world=world, open_tree=self._open_tree)
        await broker.start()
        return broker, world

    async def _open_tree(self, logs, world):
        return self.tree.open_session()

    async def connect(self):
        dial = self.client_world.network.dial
        return await Connection.open("broker", PORT, client_id="test", dial=dial)


async def create_topic(connection):
    kind = m.CreateTopicsRequest
    topic = kind.CreatableTopic(name="t", num_partitions=1, replication_factor=1)
    response = await connection.request(
        kind(topics=[topic], timeout_ms=10_000), m.CreateTopicsResponse
    )
    assert response.topics[0].error_code == 0


async def produce(connection, value, now):
    kind = m.ProduceRequest
    partition = kind.PartitionProduceData(
        index=0, records=bytes(plain_batch([(b"key", value)], None, now))
    )
    topic = kind.TopicProduceData(name="t", partition_data=[partition])
    response = await connection.request(
        kind(acks=-1, timeout_ms=10_000, topic_data=[topic]), m.ProduceResponse, version_max=12
    )
    answer = response.responses[0].partition_responses[0]
    assert answer.error_code == 0
    return answer.base_offset


async def fetch(connection, offset, max_wait_ms=0):
    kind = m.FetchRequest
    partition = kind.FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 22)
    request = kind(
        max_wait_ms=max_wait_ms,
        min_bytes=1,
        max_bytes=1 << 22,
        session_epoch=-1,
        topics=[kind.FetchTopic(topic="t", partitions=[partition])],
    )
    response = await connection.request(request, m.FetchResponse, version_max=12)
    answer = response.responses[0].partitions[0]
    assert answer.error_code == 0
    return [bytes(record.value) for record in iter_records(bytes(answer.records or b""))]


async def produce_and_fetch(seed):
    """Returns the virtual time of each response."""
    cluster = Cluster(seed)
    loop = cluster.network.loop
    broker, world = await cluster.start()
    connection = await cluster.connect()
    await create_topic(connection)
    times = []
    for number in range(20):
        offset = await produce(connection, b"%d" % number, world.now())
        assert offset == number
        assert await fetch(connection, offset) == [b"%d" % number]
        times.append(loop.time())
    waiting = asyncio.ensure_future(fetch(await cluster.connect(), 20, max_wait_ms=5000))
    await asyncio.sleep(1)
    await produce(connection, b"awaited", world.now())
    assert await waiting == [b"awaited"]
    large = random.Random(0).randbytes(500_000)
    assert await produce(connection, large, world.now()) == 21
    assert await fetch(connection, 21) == [large]
    times.append(loop.time())
    cluster.network.cut("client", "broker")
    asking = asyncio.ensure_future(fetch(connection, 0))
    await asyncio.sleep(5)
    assert not asking.done()
    cluster.network.heal()
    assert (await asking)[0] == b"0"
    times.append(loop.time())
    await connection.close()
    await broker.stop()
    assert broker.failure is None and not broker.bugs
    return times


def test_records_are_produced_and_fetched_and_one_seed_gives_one_run():
    def run(seed):
        return run_simulated(produce_and_fetch(seed), random.Random(seed))

    first, again, other = run(1), run(1), run(2)
    assert first == again != other


def test_a_killed_broker_comes_back_with_its_records():
    async def story():
        cluster = Cluster(1)
        broker, world = await cluster.start()
        connection = await cluster.connect()
        await create_topic(connection)
        await produce(connection, b"kept", world.now())
        waiting = asyncio.ensure_future(fetch(connection, 1, max_wait_ms=60_000))
        await asyncio.sleep(1)
        world.kill()
        with pytest.raises(Disconnected, match="the broker closed the connection"):
            await waiting
        await broker.crash()
        with pytest.raises(Disconnected, match="Connection refused"):
            await cluster.connect()
        broker, world = await cluster.start()
        connection = await cluster.connect()
        assert await fetch(connection, 0) == [b"kept"]
        assert await produce(connection, b"next", world.now()) == 1
        await connection.close()
        await broker.stop()
        assert broker.failure is None and not broker.bugs

    run_simulated(story(), random.Random(1))


def test_a_periodic_task_with_an_interval_of_hours_runs_no_earlier(monkeypatch):
    rounds = []

    async def note_round(self):
        rounds.append(round(asyncio.get_running_loop().time() - started_at))

    async def story():
        nonlocal started_at
        broker, _ = await Cluster(1).start(
            producer_id_expiration_check_interval_ms=str(5 * 3_600_000)
        )
        started_at = asyncio.get_running_loop().time()
        await asyncio.sleep(11 * 3600)
        await broker.stop()

    started_at = 0.0
    monkeypatch.setattr(PeriodicTasks, "expire_producers", note_round)
    run_simulated(story(), random.Random(1))
    assert rounds == [5 * 3600, 10 * 3600]
