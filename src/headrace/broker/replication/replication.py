"""Replication with other brokers: fetchers of followers, ISR changes and lag checks of leaders."""

import asyncio
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from headrace.broker.replication.fetchers import Fetchers
from headrace.broker.replication.isr_proposals import IsrProposals
from headrace.broker.replication.waiting import Waiting

if TYPE_CHECKING:
    from headrace.broker.metadata.cache import MetadataCache
    from headrace.broker.metadata.dynamic_config import DynamicConfig
    from headrace.broker.peers import Peers
    from headrace.broker.replication.append import Appender
    from headrace.broker.replication.replica import Replica
    from headrace.broker.replication.replica_manager import ReplicaManager

_PARTITIONS_PER_STEP = 200  # checked for lag without a pause


class Replication:
    """Carries out the effects that concern other brokers, from its creation until ``stop``."""

    def __init__(
        self,
        replicas: "ReplicaManager",
        waiting: Waiting,
        peers: "Peers",
        metadata: "MetadataCache",
        appender: "Appender",
        dynamic_config: "DynamicConfig",
        broker_epoch: Callable[[], int],
        fail: Callable[[BaseException], None],
    ) -> None:
        self._replicas = replicas
        self._waiting = waiting
        self._metadata = metadata
        self._appender = appender
        self._dynamic_config = dynamic_config
        self._fail = fail
        self._loop = asyncio.get_running_loop()
        effects = replicas.effects
        self._fetchers = Fetchers(
            replicas.broker_id, peers, effects, waiting, dynamic_config, broker_epoch, fail
        )
        self._isr_proposals = IsrProposals(
            replicas.broker_id, peers, metadata, effects, waiting, broker_epoch, fail
        )
        effects.connect(
            replication=self, fetchers=self._fetchers, isr_proposals=self._isr_proposals
        )
        self._ticking: asyncio.Task[None] | None = None
        self._flushing: dict[Replica, asyncio.Task[None]] = {}

    def start(self) -> None:
        self._ticking = self._loop.create_task(self._tick_regularly())

    async def stop(self) -> None:
        self._replicas.effects.disconnect()
        tasks = [*self._flushing.values()]
        if self._ticking is not None:
            tasks.append(self._ticking)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._fetchers.stop()
        await self._isr_proposals.stop()

    async def _tick_regularly(self) -> None:
        try:
            while True:
                lag_ms = self._dynamic_config.config.int("replica.lag.time.max.ms")
                await asyncio.sleep(lag_ms / 2 / 1000)
                await self.tick()
        except Exception as error:  # noqa: BLE001 - a bug while effects are applied
            self._fail(error)

    async def tick(self) -> None:
        """Let followers that lag leave the ISR."""
        for count, replica in enumerate(self._replicas.leading()):
            if count and count % _PARTITIONS_PER_STEP == 0:
                self._waiting.serve()
                await asyncio.sleep(0)
            self._tick(replica)
        self._waiting.serve()

    def _tick(self, replica: "Replica") -> None:
        leadership = replica.leadership
        if leadership is not None and leadership.followers and not replica.is_gone:
            effects = leadership.tick(self._loop.time() * 1000)
            self._replicas.effects.carry_out(replica, effects)

    def check_live(self, replicas: Iterable["Replica"]) -> None:
        """Stop waiting for followers that are no longer registered."""
        live = self._metadata.current.brokers
        for replica in replicas:
            leadership = replica.leadership
            if leadership is None or not leadership.followers or replica.is_gone:
                continue
            left = [follower for follower in leadership.followers if follower not in live]
            if left:
                effects = leadership.brokers_left(left, self._loop.time() * 1000)
                self._replicas.effects.carry_out(replica, effects)
        self._waiting.serve()

    def flush_to_shrink(self, replica: "Replica") -> None:
        """Flush the log, so that the ISR may fall below min.insync.replicas."""
        if replica not in self._flushing:
            self._flushing[replica] = self._loop.create_task(self._flush_to_shrink(replica))

    async def _flush_to_shrink(self, replica: "Replica") -> None:
        try:
            # If it fails, the next regular tick asks again.
            await self._appender.flush({replica: replica.log.log_end})
            self._tick(replica)
            self._waiting.serve()
        except Exception as error:  # noqa: BLE001 - a bug while effects are applied
            self._fail(error)
        finally:
            del self._flushing[replica]
