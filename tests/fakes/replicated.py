"""Brokers that replicate with each other, driven by a controller that the test is."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from headrace.broker.broker import Broker
from headrace.broker.peers import Peers
from headrace.broker.replication.replica import Replica
from headrace.client.connection import Connection
from headrace.core.partition_effects import ProposeIsr
from headrace.model.cluster_metadata import (
    BrokerEntry,
    ClusterMetadata,
    Endpoint,
    PartitionState,
    TopicState,
)
from headrace.model.config import BrokerConfig
from headrace.model.errors import ErrorCode
from headrace.model.ids import BrokerId, LeaderEpoch, TopicId
from headrace.wire import messages as m
from headrace.world.network import dial
from tests.fakes.logs import batch, read_all

TOPIC_ID = TopicId(bytes(range(16)))
LIMIT_S = 10
_QUICK = {
    "replica.fetch.wait.max.ms": "100",
    "replica.fetch.backoff.ms": "100",
    "replica.lag.time.max.ms": "1000",
}


async def until(condition: Callable[[], Any]) -> None:
    """Wait for ``condition``; each broker of the test shares this loop."""
    async with asyncio.timeout(LIMIT_S):
        while not condition():  # noqa: ASYNC110 - replication has no event for it
            await asyncio.sleep(0.001)


class Cluster:
    """Brokers with ids from 1 on that host one topic; ``decide`` is the controller."""

    def __init__(self, directory: Path, count: int, partitions: int, **settings: str) -> None:
        self._directory = directory
        self._settings = _QUICK | {name.replace("_", "."): v for name, v in settings.items()}
        self.ids = [BrokerId(number) for number in range(1, count + 1)]
        self.nodes: dict[BrokerId, Broker] = {}
        self.proposals: list[ProposeIsr] = []
        self.confirms_isr = True
        self.states = [
            PartitionState(
                "t", number, TOPIC_ID, BrokerId(-1), LeaderEpoch(-1), (), tuple(self.ids), 0
            )
            for number in range(partitions)
        ]

    # --- brokers

    async def start(self, broker_id: int) -> None:
        broker_id = BrokerId(broker_id)
        config = BrokerConfig.parse(
            self._settings
            | {
                "node.id": str(broker_id),
                "broker.rack": f"rack-{broker_id}",
                "listeners": "PLAINTEXT://127.0.0.1:0",
                "log.dirs": str(self._directory / str(broker_id)),
            },
            strict=True,
        )
        node = self.nodes[broker_id] = Broker(config)
        await node.start()
        self.publish()
        services = self.services(broker_id)
        services.replicas.start(
            Peers(lambda other: services.metadata.brokers.get(other), "PLAINTEXT", dial),
            services.dynamic_config,
            broker_epoch=lambda: 1000 + broker_id,
            fail=node.fail,
        )
        services.replicas.effects.connect(isr_proposals=_Confirming(self))

    async def crash(self, broker_id: int) -> None:
        node = self.nodes.pop(BrokerId(broker_id))
        await self._end(node)
        await node.crash()

    async def stop(self) -> None:
        for node in self.nodes.values():
            await self._end(node)
            await node.stop()
            assert node.failure is None
            assert not node.bugs

    @staticmethod
    async def _end(node: Broker) -> None:
        if node.services is not None:
            await node.services.replicas.stop()

    def services(self, broker_id: int) -> Any:
        services = self.nodes[BrokerId(broker_id)].services
        assert services is not None
        return services

    def replica(self, broker_id: int, partition: int = 0) -> Replica:
        found: Replica = self.services(broker_id).replicas.require("t", partition)
        return found

    def log(self, broker_id: int, partition: int = 0) -> Any:
        return self.replica(broker_id, partition).log

    def values(self, broker_id: int, partition: int = 0) -> list[bytes | None]:
        return [value for _, value in read_all(self.log(broker_id, partition))]

    # --- the controller

    def publish(self) -> None:
        brokers = {
            broker_id: BrokerEntry(
                broker_id,
                {"PLAINTEXT": Endpoint(*node.addresses["PLAINTEXT"])},
                f"rack-{broker_id}",
                1000 + broker_id,
            )
            for broker_id, node in self.nodes.items()
        }
        topic = TopicState("t", TOPIC_ID, tuple(self.states), False)
        for node in self.nodes.values():
            if node.services is not None:
                before = node.services.metadata.generation
                node.services.metadata_cache.publish(
                    ClusterMetadata("c", self.ids[0], brokers, {"t": topic}, before + 1)
                )

    def decide(
        self,
        leader: int,
        isr: tuple[int, ...] = (),
        *,
        partition: int = 0,
        tell: tuple[int, ...] = (),
        is_new: bool = False,
    ) -> dict[int, ErrorCode]:
        """Give a partition a leader in the next leader epoch; ``tell`` these brokers, or all."""
        state = self.states[partition]
        self.states[partition] = state = state._replace(
            leader=BrokerId(leader),
            leader_epoch=LeaderEpoch(state.leader_epoch + 1),
            isr=tuple(map(BrokerId, isr)) or state.isr or tuple(self.ids),
            partition_epoch=state.partition_epoch + 1,
        )
        self.publish()
        return {
            broker_id: self.tell(broker_id, partition, is_new) for broker_id in tell or self.nodes
        }

    def tell(self, broker_id: int, partition: int = 0, is_new: bool = False) -> ErrorCode:
        services = self.services(broker_id)
        code: ErrorCode = services.replicas.lead_or_follow(self.states[partition], is_new=is_new)
        services.waiting.serve()
        return code

    # --- clients

    async def connect(self, broker_id: int) -> Connection:
        host, port = self.nodes[BrokerId(broker_id)].addresses["PLAINTEXT"]
        return await Connection.open(host, port, client_id="test")

    async def produce(
        self,
        broker_id: int,
        *values: bytes,
        partition: int = 0,
        acks: int = -1,
        timeout_ms: int = 5000,
    ) -> m.ProduceResponse.PartitionProduceResponse:
        request = m.ProduceRequest
        data = request.PartitionProduceData(index=partition, records=batch(*values))
        connection = await self.connect(broker_id)
        try:
            answer = await connection.request(
                request(
                    acks=acks,
                    timeout_ms=timeout_ms,
                    topic_data=[request.TopicProduceData(name="t", partition_data=[data])],
                ),
                m.ProduceResponse,
                api_version=11,
            )
        finally:
            await connection.close()
        return answer.responses[0].partition_responses[0]


class _Confirming:
    """In place of the proposals over the wire: the test's controller confirms them at once."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def propose(self, replica: Replica, proposal: ProposeIsr) -> None:
        self._cluster.proposals.append(proposal)
        if self._cluster.confirms_isr:
            asyncio.get_running_loop().call_soon(self._confirm, replica, proposal)

    def _confirm(self, replica: Replica, proposal: ProposeIsr) -> None:
        leadership = replica.leadership
        state = self._cluster.states[replica.topic_partition.partition]
        if leadership is None or proposal.leader_epoch != state.leader_epoch:
            return
        state = self._cluster.states[replica.topic_partition.partition] = state._replace(
            isr=tuple(sorted(proposal.isr)), partition_epoch=state.partition_epoch + 1
        )
        services = self._cluster.services(leadership.broker_id)
        effects = leadership.isr_confirmed(
            proposal, proposal.isr, state.partition_epoch, services.loop.time() * 1000
        )
        services.replicas.effects.carry_out(replica, effects)
        services.waiting.serve()


@asynccontextmanager
async def replicated(
    directory: Path, count: int = 3, *, partitions: int = 1, **settings: str
) -> AsyncIterator[Cluster]:
    """A cluster whose partitions are led by broker 1, with all replicas in sync."""
    cluster = Cluster(directory, count, partitions, **settings)
    try:
        for broker_id in cluster.ids:
            await cluster.start(broker_id)
        for partition in range(partitions):
            codes = cluster.decide(1, partition=partition, is_new=True)
            assert set(codes.values()) == {ErrorCode.NONE}
        yield cluster
    finally:
        await cluster.stop()
