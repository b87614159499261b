"""Power cuts in a cluster, one scripted case each: what was acknowledged is still there."""

import asyncio
import json
import random

from headrace.client.errors import Disconnected
from headrace.model.ids import TopicPartition
from headrace.wire import messages as m
from tests.fakes.logs import read_all
from tests.history.history import History
from tests.sim.clients.consumers import read_to_end
from tests.sim.clients.producers import Producer
from tests.sim.cluster import SimulatedCluster
from tests.sim.loop import run_simulated
from tests.sim.tree import TreeFaultRates

PLACE = TopicPartition("t", 0)
SESSION_S = 1.0
SETTINGS = {
    "min.insync.replicas": "2",
    "zookeeper.session.timeout.ms": str(int(SESSION_S * 1000)),
    "replica.lag.time.max.ms": "1000",
    "replica.fetch.wait.max.ms": "200",
    "controlled.shutdown.enable": "false",
}


class Story:
    """Three brokers with one partition on all of them."""

    def __init__(self):
        self.cluster = SimulatedCluster(
            random.Random(1),
            3,
            SETTINGS,
            session_timeout_s=SESSION_S,
            tree_rates=TreeFaultRates(lost=0, lag=0, lag_s_max=0),
            releases_sessions=False,
        )
        self.tree = self.cluster.ensemble.tree.open_session()
        self.history = History()
        self.brokers = self.cluster.brokers

    async def start(self, **config):
        await self.cluster.start()
        session = self.cluster.session("admin")
        kind = m.CreateTopicsRequest
        assignment = kind.CreatableReplicaAssignment(partition_index=0, broker_ids=[0, 1, 2])
        topic = kind.CreatableTopic(
            name="t",
            num_partitions=-1,
            replication_factor=-1,
            assignments=[assignment],
            configs=[kind.CreatableTopicConfig(name=name, value=config[name]) for name in config],
        )

        async def create():
            response = await session.ask_any(kind(topics=[topic]), m.CreateTopicsResponse, 5)
            if response.topics[0].error_code:
                raise Disconnected("not all brokers have arrived")

        await session.persistently(create)
        await session.close()
        await self.until(lambda state: state["leader"] == 0)

    async def produce(self, **options):
        producer = Producer(
            self.cluster.session("p"), self.history, PLACE, idempotent=True, **options
        )
        await producer.run(20, 0.01)

    async def state(self):
        node = await self.tree.get("/brokers/topics/t/partitions/0/state")
        return json.loads(node.value) if node is not None else {"leader": -1, "isr": []}

    async def until(self, reached):
        give_up_at = self.cluster.loop.time() + 60
        while not reached(state := await self.state()):
            assert self.cluster.loop.time() < give_up_at, state
            await asyncio.sleep(0.05)

    async def check(self):
        """Nothing is lost."""
        session = self.cluster.session("reader")
        await read_to_end(session, self.history, PLACE, committed_only=False)
        await session.close()
        found = [entry.value for entry in self.history.contents[PLACE].entries]
        sent = [record.value for record in self.history.sent]
        assert len(sent) >= 20 and found == sent
        await self.cluster.stop()
        assert self.cluster.failures == []


def played(story):
    async def play():
        await story(Story())

    run_simulated(play(), random.Random(1))


def test_a_broker_that_lost_power_does_not_lead_while_intact_members_of_the_isr_are_down():
    async def story(s):
        await s.start()
        await s.produce()
        await s.brokers[0].kill(power_loss=True)
        await s.brokers[1].kill()
        await s.brokers[2].kill()
        await s.brokers[0].start()
        await s.until(lambda state: state["leader"] == -1 and state["isr"] == [1, 2])
        await asyncio.sleep(5)
        assert (await s.state())["leader"] == -1, "it waits for an intact member"
        await s.brokers[1].start()
        await s.until(lambda state: state["leader"] == 1)
        await s.brokers[2].start()
        await s.until(lambda state: sorted(state["isr"]) == [0, 1, 2])
        await s.check()

    played(story)


def test_a_broker_that_is_killed_before_a_controller_knows_of_its_losses_tells_them_again():
    async def story(s):
        await s.start()
        await s.brokers[0].stop()  # flushes its empty log: the power cut leaves it there
        await s.brokers[0].start()
        await s.until(lambda state: state["leader"] == 1 and len(state["isr"]) == 3)
        await s.produce()
        for broker in s.brokers:
            await broker.kill(power_loss=broker.broker_id == 0)
        # Its process starts, and is killed while it waits for the session of the last one.
        await s.brokers[0].start()
        await asyncio.sleep(SESSION_S / 2)
        await s.brokers[0].kill()
        await s.brokers[0].start()
        await s.until(lambda state: state["leader"] == -1 and state["isr"] == [1, 2])
        await s.brokers[2].start()
        await s.until(lambda state: state["leader"] == 2)
        await s.brokers[1].start()
        await s.until(lambda state: sorted(state["isr"]) == [0, 1, 2])
        await s.check()

    played(story)


def test_the_last_member_of_the_isr_loses_power_and_no_acknowledged_record():
    async def story(s):
        await s.start()
        await s.produce()
        await s.brokers[1].kill()
        await s.brokers[2].kill()
        await s.until(lambda state: state["isr"] == [0])
        await s.brokers[0].kill(power_loss=True)
        await s.brokers[0].start()
        await s.until(lambda state: state["leader"] == 0)
        for broker in s.brokers[1:]:
            await broker.start()
        await s.until(lambda state: sorted(state["isr"]) == [0, 1, 2])
        await s.check()

    played(story)


def test_a_dead_member_leads_next_if_the_last_live_one_loses_power_too_early_to_flush():
    async def story(s):
        await s.start()
        await s.produce()
        await s.brokers[2].kill()
        await s.until(lambda state: sorted(state["isr"]) == [0, 1])
        await s.brokers[1].kill()
        await s.brokers[0].kill(power_loss=True)
        await s.brokers[0].start()
        await s.until(lambda state: state["isr"] == [1])
        await s.brokers[1].start()
        await s.until(lambda state: state["leader"] == 1)
        await s.brokers[2].start()
        await s.until(lambda state: sorted(state["isr"]) == [0, 1, 2])
        await s.check()

    played(story)


def test_a_broker_that_lost_the_middle_of_a_compacted_log_gets_it_again():
    """The disk has a later segment, but not the end of the one before it."""

    async def story(s):
        await s.start(**{"cleanup.policy": "compact"})
        log = s.brokers[0].broker.services.logs.get(PLACE)
        await s.produce(keys=100)
        await log.flusher.flush()
        log.directory.offsets.set_cleaned_end(PLACE, log.log_end)  # as after a compaction
        s.brokers[0].broker.services.logs.checkpoint()
        log.flusher.postpone(True)  # the disk is too slow for the flush after a roll
        await s.produce(keys=100)
        log.roll(log.directory.world.now())
        await s.produce(keys=100)
        s.brokers[0].disk.write_back(log.segments.active.path("log"))
        await s.brokers[0].kill(power_loss=True)
        await s.until(lambda state: sorted(state["isr"]) == [1, 2])
        await s.brokers[0].start()
        await s.until(lambda state: sorted(state["isr"]) == [0, 1, 2])
        kept = [read_all(each.broker.services.logs.get(PLACE)) for each in s.brokers]
        assert len(kept[0]) == len(s.history.sent)
        assert kept[0] == kept[1] == kept[2]
        await s.check()

    played(story)
