"""A week of one node in virtual time: retention, expired sessions, long polls.

``python -m tests.sim.week SEED`` prints what happened and a digest of everything that
clients saw, with the virtual time of each response. One seed gives one digest, under any hash seed.
"""

import asyncio
import hashlib
import random
import sys
from typing import Any

from headrace.broker.broker import Broker
from headrace.client.connection import Connection
from headrace.coordination.memory import MemoryTree
from headrace.model.config import BrokerConfig
from headrace.model.errors import ErrorCode
from headrace.records.plain import plain_batch
from headrace.wire import messages as m
from headrace.wire.schema import encoder
from tests.sim.files import SimulatedDisk
from tests.sim.loop import run_simulated
from tests.sim.network import SimulatedNetwork
from tests.sim.world import SimulatedWorld, wall_clock_ns

PORT = 9092
HOUR_S = 3600.0
WEEK_S = 7 * 24 * HOUR_S
RETENTION_MS = 24 * 3_600_000
SESSION_MS = 300_000
SETTINGS = {
    "log.retention.ms": str(RETENTION_MS),
    "log.segment.delete.delay.ms": "1000",
    "log.roll.ms": str(6 * 3_600_000),
    "group.initial.rebalance.delay.ms": "3000",
    "offsets.topic.num.partitions": "1",
    "connections.max.idle.ms": "600000",
    # Their defaults are seconds, and most rounds would find nothing to do.
    "replica.high.watermark.checkpoint.interval.ms": "60000",
    "log.cleaner.backoff.ms": "600000",
}


class Trace:
    """A digest of all responses and their times."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._digest = hashlib.sha256()
        self.response_count = 0

    def add(self, actor: str, response: Any, version: int) -> None:
        out = bytearray()
        encoder(type(response), version)(response, out)
        self._digest.update(f"{actor} {self._loop.time():.6f} ".encode())
        self._digest.update(out)
        self.response_count += 1

    @property
    def text(self) -> str:
        return self._digest.hexdigest()


class Actor:
    """A client with a connection of its own that keeps to fixed versions."""

    def __init__(self, name: str, connection: Connection, trace: Trace) -> None:
        self.name = name
        self._connection = connection
        self._trace = trace

    async def ask(self, request: Any, kind: Any, version: int) -> Any:
        response = await self._connection.request(
            request, kind, api_version=version, timeout_s=2 * HOUR_S
        )
        self._trace.add(self.name, response, version)
        return response

    async def close(self) -> None:
        await self._connection.close()


class Week:
    def __init__(self, seed: int) -> None:
        loop = asyncio.get_running_loop()
        self.loop = loop
        self.dice = random.Random(seed)
        self.network = SimulatedNetwork(loop, self.dice)
        self.trace = Trace(loop)
        self.ends_at = loop.time() + WEEK_S
        self.produced = 0
        self.fetched = 0
        self.log_start = 0
        self.expired_sessions = 0
        disk = SimulatedDisk(lambda: wall_clock_ns(loop))
        self.world = SimulatedWorld(loop, self.dice, self.network, disk, "broker")
        self.client_world = SimulatedWorld(loop, self.dice, self.network, disk, "client")

    @property
    def is_over(self) -> bool:
        return self.loop.time() >= self.ends_at

    async def run(self) -> None:
        settings = {
            **SETTINGS,
            "listeners": f"PLAINTEXT://broker:{PORT}",
            "log.dirs": "/data",
        }
        tree = MemoryTree(lambda: 0)

        async def open_tree(logs: Any, world: Any) -> Any:
            return tree.open_session()

        broker = Broker(BrokerConfig.parse(settings), world=self.world, open_tree=open_tree)
        await broker.start()
        admin = await self.actor("admin")
        topic = m.CreateTopicsRequest.CreatableTopic(
            name="t", num_partitions=1, replication_factor=1
        )
        await admin.ask(
            m.CreateTopicsRequest(topics=[topic], timeout_ms=10_000), m.CreateTopicsResponse, 5
        )
        find = m.FindCoordinatorRequest(key="g", key_type=0)
        await admin.ask(find, m.FindCoordinatorResponse, 2)  # creates the topic of offsets
        await asyncio.sleep(5)
        await admin.close()
        await asyncio.gather(self.produce(), self.poll(), self.join("a"), self.join("b"))
        await broker.stop()
        assert broker.failure is None and not broker.bugs

    async def actor(self, name: str) -> Actor:
        connection = await Connection.open(
            "broker", PORT, client_id=name, versions={}, dial=self.client_world.network.dial
        )
        return Actor(name, connection, self.trace)

    # --- what clients do

    async def produce(self) -> None:
        """A record every ten minutes, more or less."""
        actor = await self.actor("producer")
        kind = m.ProduceRequest
        while not self.is_over:
            records = bytes(plain_batch([(b"k", b"%d" % self.produced)], None, self.world.now()))
            data = kind.PartitionProduceData(index=0, records=records)
            request = kind(
                acks=-1,
                timeout_ms=10_000,
                topic_data=[kind.TopicProduceData(name="t", partition_data=[data])],
            )
            response = await actor.ask(request, m.ProduceResponse, 9)
            (answer,) = response.responses[0].partition_responses
            assert (answer.error_code, answer.base_offset) == (0, self.produced)
            self.produced += 1
            await asyncio.sleep(self.dice.uniform(500, 700))
            # The broker closes idle connections after ten minutes, and clients come again.
            await actor.close()
            actor = await self.actor("producer")
        await actor.close()

    async def poll(self) -> None:
        """One long poll after the other."""
        actor = await self.actor("consumer")
        kind = m.FetchRequest
        while not self.is_over:
            wanted = kind.FetchPartition(
                partition=0, fetch_offset=self.fetched, partition_max_bytes=1 << 20
            )
            request = kind(
                max_wait_ms=300_000,
                min_bytes=1,
                max_bytes=1 << 20,
                session_epoch=-1,
                topics=[kind.FetchTopic(topic="t", partitions=[wanted])],
            )
            response = await actor.ask(request, m.FetchResponse, 11)
            (answer,) = response.responses[0].partitions
            assert answer.error_code == 0
            self.log_start = answer.log_start_offset
            if answer.records:
                self.fetched += 1
        await actor.close()

    async def join(self, name: str) -> None:
        """A member that works for some hours, falls silent, and comes back after its session."""
        while not self.is_over:
            actor = await self.actor(f"member-{name}")
            member_id, generation = await self._joined(actor)
            falls_silent_at = self.loop.time() + self.dice.uniform(1, 12) * HOUR_S
            while self.loop.time() < falls_silent_at and not self.is_over:
                await asyncio.sleep(100)
                beat = m.HeartbeatRequest(
                    group_id="g", generation_id=generation, member_id=member_id
                )
                response = await actor.ask(beat, m.HeartbeatResponse, 3)
                if response.error_code:
                    member_id, generation = await self._joined(actor, member_id)
            await asyncio.sleep(SESSION_MS / 1000 + self.dice.uniform(1, 3600))
            await actor.close()  # the broker may have closed it: it was idle
            actor = await self.actor(f"member-{name}")
            beat = m.HeartbeatRequest(group_id="g", generation_id=generation, member_id=member_id)
            response = await actor.ask(beat, m.HeartbeatResponse, 3)
            assert response.error_code == ErrorCode.UNKNOWN_MEMBER_ID, (
                "the session of a silent member expires"
            )
            self.expired_sessions += 1
            await actor.close()

    async def _joined(self, actor: Actor, member_id: str = "") -> tuple[str, int]:
        kind = m.JoinGroupRequest
        while True:
            request = kind(
                group_id="g",
                session_timeout_ms=SESSION_MS,
                rebalance_timeout_ms=SESSION_MS,
                member_id=member_id,
                protocol_type="consumer",
                protocols=[kind.JoinGroupRequestProtocol(name="range", metadata=b"")],
            )
            joined = await actor.ask(request, m.JoinGroupResponse, 5)
            if joined.error_code == ErrorCode.MEMBER_ID_REQUIRED:
                member_id = joined.member_id
                continue
            if joined.error_code:
                gone = joined.error_code == ErrorCode.UNKNOWN_MEMBER_ID
                member_id = "" if gone else member_id
                await asyncio.sleep(1)
                continue
            sync = m.SyncGroupRequest(
                group_id="g", generation_id=joined.generation_id, member_id=joined.member_id
            )
            if joined.leader == joined.member_id:
                sync.assignments = [
                    m.SyncGroupRequest.SyncGroupRequestAssignment(
                        member_id=member.member_id, assignment=b"x"
                    )
                    for member in joined.members
                ]
            synced = await actor.ask(sync, m.SyncGroupResponse, 3)
            if not synced.error_code:
                return joined.member_id, joined.generation_id
            member_id = joined.member_id


def run_week(seed: int) -> Week:
    async def story() -> Week:
        week = Week(seed)
        await week.run()
        return week

    week: Week = run_simulated(story(), random.Random(seed))
    return week


if __name__ == "__main__":
    done = run_week(int(sys.argv[1]))
    print(
        f"{done.produced} records, {done.log_start} expired, {done.expired_sessions} sessions, "
        f"{done.trace.response_count} responses, digest {done.trace.text}"
    )
