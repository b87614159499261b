"""What every simulated client needs: connections, leaders, coordinators, and retries.

The retry rules are a stock client's. Metadata with an older leader epoch than the known one is
ignored: it comes from a broker that has not heard of the new leader yet.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple, TypeVar

from headrace.client.connection import Connection
from headrace.client.errors import Disconnected, Refused, error_code
from headrace.model.ids import TopicPartition
from headrace.wire import messages as m
from headrace.world.network import Dial
from tests.sim.world import wall_clock_ns

GROUP, TRANSACTION = 0, 1  # FindCoordinator's key types
_METADATA_VERSION = 12
_FIND_COORDINATOR_VERSION = 3
_Result = TypeVar("_Result")


class ClientTimes(NamedTuple):
    """In seconds. Shorter than a stock client's, in proportion to the brokers' time-outs."""

    request: float = 2.0
    delivery: float = 12.0
    backoff: float = 0.05
    backoff_max: float = 0.5


class Leader(NamedTuple):
    broker_id: int
    epoch: int


class ClientSession:
    """One client's connections and its knowledge of the cluster."""

    def __init__(
        self,
        name: str,
        dial: Dial,
        bootstrap: Sequence[tuple[str, int]],
        dice: random.Random,
        times: ClientTimes | None = None,
    ) -> None:
        self.name = name
        self.dice = dice
        self.times = times or ClientTimes()
        self._dial = dial
        self._bootstrap = list(bootstrap)
        self._addresses: dict[int, tuple[str, int]] = {}
        self._connections: dict[tuple[str, int], Connection] = {}
        self._leaders: dict[TopicPartition, Leader] = {}
        self._coordinators: dict[tuple[int, str], int] = {}

    @property
    def now(self) -> float:
        return asyncio.get_running_loop().time()

    @property
    def wall_clock_ms(self) -> int:
        """For the timestamps of records: brokers forget producers of a long time ago."""
        return wall_clock_ns(asyncio.get_running_loop()) // 1_000_000

    async def close(self) -> None:
        for connection in self._connections.values():
            await connection.close()
        self._connections.clear()

    # --- retries

    async def pause(self, attempt: int) -> None:
        longest = min(self.times.backoff_max, self.times.backoff * 2 ** min(attempt, 10))
        await asyncio.sleep(longest * self.dice.uniform(0.8, 1.2))

    async def persistently(
        self, attempt: Callable[[], Awaitable[_Result]], give_up_at: float | None = None
    ) -> _Result:
        """Repeat until it succeeds or is refused for good. Raises Disconnected after that time."""
        count = 0
        while True:
            try:
                return await attempt()
            except Disconnected:
                pass
            except Refused as refused:
                if not refused.retriable:
                    raise
            self.forget()
            if give_up_at is not None and self.now > give_up_at:
                raise Disconnected("the time is over")
            await self.pause(count)
            count += 1

    def forget(self) -> None:
        """Ask again who leads and who coordinates; older leader epochs stay refused."""
        self._coordinators.clear()
        self._leaders = {place: Leader(-1, leader.epoch) for place, leader in self._leaders.items()}

    # --- requests

    async def connection(self, broker_id: int) -> Connection:
        if broker_id not in self._addresses:
            raise Disconnected(f"no address of broker {broker_id}")
        return await self._connect(self._addresses[broker_id])

    async def ask(
        self, broker_id: int, request: Any, kind: Any, version: int, timeout_s: float | None = None
    ) -> Any:
        connection = await self.connection(broker_id)
        return await connection.request(request, kind, api_version=version, timeout_s=timeout_s)

    async def ask_any(self, request: Any, kind: Any, version: int) -> Any:
        addresses = list(dict.fromkeys([*self._bootstrap, *self._addresses.values()]))
        return await self.ask_host(self.dice.choice(addresses), request, kind, version)

    async def ask_host(
        self, address: tuple[str, int], request: Any, kind: Any, version: int
    ) -> Any:
        connection = await self._connect(address)
        return await connection.request(request, kind, api_version=version)

    async def _connect(self, address: tuple[str, int]) -> Connection:
        connection = self._connections.get(address)
        if connection is None or not connection.is_open:
            connection = await Connection.open(
                *address,
                client_id=self.name,
                versions={},
                timeout_s=self.times.request,
                dial=self._dial,
            )
            self._connections[address] = connection
        return connection

    # --- the cluster

    async def refresh(self, topic: str) -> Any:
        """The metadata of a topic. Raises Refused or Disconnected."""
        wanted = m.MetadataRequest.MetadataRequestTopic(name=topic)
        request = m.MetadataRequest(topics=[wanted], allow_auto_topic_creation=False)
        response = await self.ask_any(request, m.MetadataResponse, _METADATA_VERSION)
        for broker in response.brokers:
            self._addresses[broker.node_id] = (broker.host, broker.port)
        (found,) = response.topics
        refuse(found.error_code, topic)
        for partition in found.partitions:
            place = TopicPartition(topic, partition.partition_index)
            known = self._leaders.get(place)
            if known is None or partition.leader_epoch >= known.epoch:
                self._leaders[place] = Leader(partition.leader_id, partition.leader_epoch)
        return found

    async def leader(self, place: TopicPartition) -> Leader:
        known = self._leaders.get(place)
        if known is None or known.broker_id < 0:
            await self.refresh(place.topic)
            known = self._leaders.get(place)
        if known is None or known.broker_id < 0:
            raise Disconnected(f"{place} has no leader")
        return known

    async def coordinator(self, key_type: int, key: str) -> int:
        if (key_type, key) not in self._coordinators:
            request = m.FindCoordinatorRequest(key=key, key_type=key_type)
            response = await self.ask_any(
                request, m.FindCoordinatorResponse, _FIND_COORDINATOR_VERSION
            )
            refuse(response.error_code, f"coordinator of {key}")
            self._addresses[response.node_id] = (response.host, response.port)
            self._coordinators[key_type, key] = response.node_id
        return self._coordinators[key_type, key]


def refuse(number: int, what: str) -> None:
    """Raise Refused if the broker's error code is not NONE."""
    if number:
        raise Refused(error_code(number), what)
