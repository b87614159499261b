"""The clients of the simulation, on one node that is killed while they work."""

import asyncio
import random

import pytest

from headrace.broker.broker import Broker
from headrace.coordination.memory import MemoryTree
from headrace.model.config import BrokerConfig
from headrace.model.ids import TopicPartition
from headrace.wire import messages as m
from tests.history.checker import anomalies
from tests.history.history import Ending, History, Outcome
from tests.sim.clients.consumers import Consumer, read_to_end
from tests.sim.clients.groups import GroupMember
from tests.sim.clients.producers import Producer
from tests.sim.clients.session import ClientSession, refuse
from tests.sim.clients.transactions import TransactionalProducer
from tests.sim.files import SimulatedDisk
from tests.sim.loop import run_simulated
from tests.sim.network import SimulatedNetwork
from tests.sim.world import SimulatedWorld, wall_clock_ns

PLACES = [TopicPartition("t", 0), TopicPartition("t", 1)]
SETTINGS = {
    "listeners": "PLAINTEXT://broker:9092",
    "log.dirs": "/data",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "100",
    "offsets.topic.num.partitions": "2",
    "transaction.state.log.num.partitions": "2",
}


class Node:
    """One broker that is killed and started again on the same disk."""

    def __init__(self, dice):
        loop = asyncio.get_running_loop()
        self.dice = dice
        self.network = SimulatedNetwork(loop, dice)
        self.tree = MemoryTree(lambda: 0)
        self.disk = SimulatedDisk(lambda: wall_clock_ns(loop))
        client_disk = SimulatedDisk(lambda: wall_clock_ns(loop))
        self.clients = SimulatedWorld(loop, dice, self.network, client_disk, "clients")
        self.history = History()

    async def start(self):
        self.world = SimulatedWorld(self.network.loop, self.dice, self.network, self.disk, "broker")
        config = BrokerConfig.parse(SETTINGS)
        self.broker = Broker(config, world=self.world, open_tree=self._open_tree)
        await self.broker.start()

    async def _open_tree(self, logs, world):
        return self.tree.open_session()

    async def kill(self):
        self.world.kill()
        await self.broker.crash()

    def session(self, name):
        dice = random.Random(self.dice.getrandbits(64))
        return ClientSession(name, self.clients.network.dial, [("broker", 9092)], dice)

    async def create_topic(self):
        topic = m.CreateTopicsRequest.CreatableTopic(
            name="t", num_partitions=len(PLACES), replication_factor=1
        )
        request = m.CreateTopicsRequest(topics=[topic], timeout_ms=10_000)
        session = self.session("admin")
        response = await session.ask_any(request, m.CreateTopicsResponse, 5)
        refuse(response.topics[0].error_code, "CreateTopics")
        await session.close()


async def all_clients_on_one_node(seed, *, new_protocol):
    dice = random.Random(seed)
    node = Node(dice)
    await node.start()
    await node.create_topic()
    history = node.history
    producers = [
        Producer(node.session(f"p{number}"), history, place, idempotent=bool(number % 2))
        for number, place in enumerate(PLACES * 2)
    ]
    transactional = TransactionalProducer(
        node.session("tx"), history, PLACES, new_protocol=new_protocol, timeout_s=10
    )
    consumers = [
        Consumer(node.session(f"c{number}"), history, place, committed_only=bool(number))
        for number, place in enumerate(PLACES)
    ]
    members = [
        GroupMember(node.session(f"m{number}"), history, "g", PLACES, session_timeout_s=2)
        for number in range(2)
    ]
    finite = [asyncio.ensure_future(p.run(60, pause_s=0.1)) for p in producers]
    finite.append(asyncio.ensure_future(transactional.run(10, pause_s=0.1)))
    endless = [asyncio.ensure_future(c.run(pause_s=0.05)) for c in [*consumers, *members]]
    for _ in range(3):
        await asyncio.sleep(dice.uniform(0.5, 2))
        await node.kill()
        await asyncio.sleep(dice.uniform(0, 2))
        await node.start()
    await asyncio.gather(*finite)
    await asyncio.sleep(3)
    for actor in [*consumers, *members]:
        actor.stop()
    await asyncio.gather(*endless)
    reader = node.session("last")
    for place in PLACES:
        for committed_only in (False, True):
            await read_to_end(reader, history, place, committed_only=committed_only)
    await reader.close()
    await node.broker.stop()
    assert node.broker.failure is None and not node.broker.bugs
    return history, members


@pytest.mark.parametrize("new_protocol", [False, True])
def test_every_client_gets_through_kills_of_one_node_without_an_anomaly(new_protocol):
    for seed in range(1, 4):
        story = all_clients_on_one_node(seed, new_protocol=new_protocol)
        history, members = run_simulated(story, random.Random(seed))
        assert anomalies(history) == []
        outcomes = [sent.outcome for sent in history.sent if sent.transaction is None]
        assert outcomes.count(Outcome.ACKNOWLEDGED) > 200
        assert set(history.endings.values()) >= {Ending.COMMITTED, Ending.ABORTED}
        assert sum(len(reading.entries) for reading in history.readings) > 400
        assert len(history.latest) > 10
        assert all(member.commit_count for member in members)
