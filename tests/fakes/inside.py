"""The one way for tests to look inside a running in-process broker, on its own event loop."""

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from headrace.broker.replication.replica import Replica
from headrace.broker.services import Services
from headrace.model.ids import BrokerId, LeaderEpoch
from headrace.testing import Broker
from headrace.testing.runners import ThreadRunner

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
        """Run ``action`` on the broker's loop, and serve what it woke."""

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
        """From now on a follower has nothing of what is written."""
        self.in_sync(topic, partition, isr=(1, 2))

    def catch_up(self, topic: str, partition: int = 0) -> None:
        self.in_sync(topic, partition, isr=(1,))


def in_sync(
    services: Services,
    topic: str,
    partition: int = 0,
    *,
    isr: tuple[int, ...],
    replicas: tuple[int, ...] | None = None,
    min_isr: int | None = None,
) -> None:
    """Give a partition followers, which one node does not have.

    A follower that is in sync has nothing of what is written from now on.
    """
    replica = services.replicas.require(topic, partition)
    leadership = replica.lead()
    if replicas is not None:
        leadership.replicas = frozenset(replicas)
    if min_isr is not None:
        leadership.min_insync_replicas = min_isr
    services.appender.carry_out(replica, leadership.bumped(leadership.leader_epoch, isr))
    services.waiting.serve()


def lose_leadership(services: Services, topic: str, partition: int = 0) -> None:
    """As if the controller had made another broker the leader."""
    state = services.metadata.partition(topic, partition)
    assert state is not None
    elsewhere = state._replace(
        leader=BrokerId(99), leader_epoch=LeaderEpoch(state.leader_epoch + 1)
    )
    services.replicas.lead_or_follow(elsewhere)
    services.waiting.serve()


def regain_leadership(services: Services, topic: str, partition: int = 0) -> None:
    """As if the controller had made this broker the leader again, two epochs later."""
    state = services.metadata.partition(topic, partition)
    assert state is not None
    services.replicas.lead_or_follow(
        state._replace(leader_epoch=LeaderEpoch(state.leader_epoch + 2))
    )
    services.waiting.serve()
