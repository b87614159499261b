"""Three brokers on one event loop, in a thread of the test, with one tree in memory."""

import asyncio
import threading
from pathlib import Path
from typing import Any

from headrace.broker.broker import Broker
from headrace.coordination.memory import MemorySession, MemoryTree
from headrace.model.config import BrokerConfig
from headrace.model.ids import Millis
from headrace.world.world import World

LIMIT_S = 30

SETTINGS = {
    "listeners": "PLAINTEXT://127.0.0.1:0",
    "offsets.topic.num.partitions": "2",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.num.partitions": "2",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "replica.lag.time.max.ms": "1000",
    "zookeeper.session.timeout.ms": "1000",
    "controlled.shutdown.retry.backoff.ms": "50",
    "group.initial.rebalance.delay.ms": "0",
}


class ClusterOnOneLoop:
    """``with ClusterOnOneLoop(tmp_path) as cluster``; the broker ids are 0, 1, 2."""

    def __init__(self, data: Path, broker_count: int = 3, **settings: str) -> None:
        self._data = data
        self._count = broker_count
        self._settings = settings
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="cluster")
        self.tree = MemoryTree(lambda: Millis(1))
        self.brokers: dict[int, Broker] = {}
        self._ports: dict[int, int] = {}  # a broker that is started again has the same
        self.sessions: dict[int, MemorySession] = {}

    def __enter__(self) -> "ClusterOnOneLoop":
        self._thread.start()
        try:
            for broker_id in range(self._count):
                self.start(broker_id)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        failures = []
        for broker in list(self.brokers.values()):
            self.run(broker.stop())
            failures += [each for each in (broker.failure, *broker.bugs) if each is not None]
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(LIMIT_S)
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()
        assert failures == []

    def run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(LIMIT_S)

    # --- brokers

    def start(self, broker_id: int, world: World | None = None, **settings: str) -> None:
        self.run(self._start(broker_id, world, settings))

    async def _start(self, broker_id: int, world: World | None, settings: dict[str, str]) -> None:
        own = {"broker.id": str(broker_id), "log.dirs": str(self._data / str(broker_id))}
        if broker_id in self._ports:
            own["listeners"] = f"PLAINTEXT://127.0.0.1:{self._ports[broker_id]}"
        config = BrokerConfig.parse(SETTINGS | own | self._settings | settings, strict=True)

        async def open_tree(logs: Any, world: Any) -> MemorySession:
            self.sessions[broker_id] = self.open_session()
            return self.sessions[broker_id]

        if config.is_on_zookeeper:
            broker = Broker(config)
        else:
            broker = Broker(config, world=world, open_tree=open_tree, is_tree_shared=True)
        await broker.start()
        self.brokers[broker_id] = broker
        self._ports[broker_id] = next(iter(broker.addresses.values()))[1]

    def open_session(self) -> Any:
        """The next session of a broker, for tests to replace."""
        return self.tree.open_session()

    def stop(self, broker_id: int) -> None:
        self.run(self.brokers.pop(broker_id).stop())

    def kill(self, broker_id: int) -> None:
        """Crash the broker, and let its session expire."""
        self.run(self.brokers.pop(broker_id).crash())
        self.tree.expire(self.sessions[broker_id].session_id)

    def tree_session(self) -> MemorySession:
        """Another program's session with the tree."""

        async def open_session() -> MemorySession:
            return self.tree.open_session()

        session: MemorySession = self.run(open_session())
        return session

    # --- what the brokers know

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(
            f"{host}:{port}"
            for broker in self.brokers.values()
            for host, port in broker.addresses.values()
        )

    def state(self, topic: str, partition: int = 0, broker_id: int | None = None) -> Any:
        """The state of a partition, as one broker knows it."""
        broker = next(iter(self.brokers.values())) if broker_id is None else self.brokers[broker_id]
        assert broker.services is not None
        return broker.services.metadata.partition(topic, partition)

    @property
    def controller_id(self) -> int:
        for broker_id, broker in self.brokers.items():
            if broker.services is not None and broker.services.membership.is_controller:
                return broker_id
        return -1
