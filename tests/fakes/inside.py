"""Access to the inside of a running in-process broker, on its own event loop."""

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from headrace.broker.replication.replica import Replica
from headrace.broker.services import Services
from headrace.coordination.memory import MemorySession
from headrace.model.ids import BrokerId, LeaderEpoch
from headrace.testing import Broker, Cluster
from headrace.testing.environments import Threads
from headrace.testing.runners import ThreadRunner
from headrace.world.world import World

T = TypeVar("T")


class Inside:
    def __init__(self, broker: Broker) -> None:
        runner = broker.runner
        assert isinstance(runner, ThreadRunner), "a broker in another process has no inside here"
        self.node = runner.node
        self.loop = runner.loop
        assert self.node.services is not None
        self.services: Services = self.node.services

    def do(self, action: Callable[[], T]) -> T:
        """Run ``action`` on the broker's loop, and serve the waiters that it woke."""

        async def body() -> T:
            result = action()
            self.services.waiting.serve()
            return result

        return asyncio.run_coroutine_threadsafe(body(), self.loop).result(20)

    def run(self, work: Any) -> Any:
        """Run a coroutine on the broker's loop."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(20)

    def replica(self, topic: str, partition: int = 0) -> Replica:
        return self.services.replicas.require(topic, partition)

    def in_sync(self, topic: str, partition: int = 0, **followers: Any) -> None:
        """As the function ``in_sync``, on the broker's loop."""
        self.do(lambda: in_sync(self.services, topic, partition, **followers))

    def lag(self, topic: str, partition: int = 0) -> None:
        """From now on a follower does not get the records that are written."""
        self.in_sync(topic, partition, isr=(1, 2))

    def catch_up(self, topic: str, partition: int = 0) -> None:
        self.in_sync(topic, partition, isr=(1,))


class ClusterInside:
    """The brokers of a cluster, and its tree."""

    def __init__(self, cluster: Cluster) -> None:
        self._brokers = cluster._brokers

    def _member(self, broker_id: int) -> Any:
        return self._brokers.slot(broker_id).member

    def process_id(self, broker_id: int) -> int:
        """Of a broker in a child process; raises RuntimeError while it is down."""
        pid: int = self._member(broker_id).process_id
        return pid

    def world(self, broker_id: int) -> World:
        """Clock and files of a broker in this process."""
        world: World = self._member(broker_id).runner.node.world
        return world

    def read(self, path: str) -> bytes | None:
        """The value of a node of the tree."""
        return self._brokers.environment.read(path)

    def open_session(self) -> MemorySession:
        """A session of the tree in memory that belongs to no broker of the cluster."""
        environment = self._brokers.environment
        assert isinstance(environment, Threads)
        sessions = environment.sessions
        return sessions.tree.open_session()


def in_sync(
    services: Services,
    topic: str,
    partition: int = 0,
    *,
    isr: tuple[int, ...],
    replicas: tuple[int, ...] = (1, 2),
    leader: int = 1,
    min_isr: int = 1,
) -> None:
    """Tell a broker with id 1 the controller's next decision about a partition.

    One node has no followers. A follower in the ISR of such a decision does not get the records
    that are written from now on; without it, the leader is alone again.
    """
    replica = services.replicas.require(topic, partition)
    config = replica.log.config
    if config.min_insync_replicas != min_isr:
        changed = config._replace(min_insync_replicas=min_isr)
        services.replicas.update_topic_config(topic, changed)
    state = services.metadata.partition(topic, partition)
    assert state is not None
    services.replicas.lead_or_follow(
        state._replace(
            leader=BrokerId(leader),
            leader_epoch=LeaderEpoch(replica.partition.leader_epoch + 1),
            isr=tuple(map(BrokerId, isr)),
            replicas=tuple(map(BrokerId, replicas)),
        ),
        is_new=False,
    )
    services.waiting.serve()


def lose_leadership(services: Services, topic: str, partition: int = 0) -> None:
    """As if the controller had made another broker the leader."""
    in_sync(services, topic, partition, isr=(1, 2), leader=2)


def regain_leadership(services: Services, topic: str, partition: int = 0) -> None:
    """As if the controller had made this broker the leader again, alone in the ISR."""
    in_sync(services, topic, partition, isr=(1,))
