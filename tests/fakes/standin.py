"""A broker without sockets and logs: a real controller service and tree, and recording fakes."""

import asyncio
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from inspect import isawaitable
from pathlib import Path
from typing import Any

from headrace.broker.context import Context
from headrace.broker.controller.changes import ClusterChanges
from headrace.broker.controller.producer_ids import ProducerIds
from headrace.broker.controller.service import ControllerService
from headrace.broker.controller.startup import FoundPartition, Startup
from headrace.broker.handlers import handler
from headrace.broker.metadata.cache import MetadataCache
from headrace.broker.metadata.dynamic_config import DynamicConfig
from headrace.coordination.embedded import EmbeddedTree
from headrace.coordination.registry import Registry
from headrace.model.cluster_metadata import ClusterMetadata, Endpoint, PartitionState
from headrace.model.config import BrokerConfig, TopicConfig
from headrace.model.errors import ErrorCode, Rejected
from headrace.model.ids import BrokerId, Millis, TopicPartition
from headrace.wire import schema
from headrace.wire.api import SERVED, request_class, response_class
from headrace.world.world import World

PLAIN = {"PLAINTEXT": Endpoint("127.0.0.1", 9092)}


def in_loop(story: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test that is a coroutine in its own event loop."""

    @functools.wraps(story)
    def run(*arguments: Any, **fixtures: Any) -> None:
        asyncio.run(story(*arguments, **fixtures))

    return run


class StillWorld(World):
    def now(self) -> Millis:
        return Millis(1_700_000_000_000)


class RecordedReplicas:
    """Records the partitions to host, in place of the broker's replica manager."""

    def __init__(self) -> None:
        self.hosted: dict[TopicPartition, PartitionState] = {}
        self.configs: dict[str, TopicConfig] = {}
        self.refused: set[TopicPartition] = set()  # there is no disk space for these
        self.deleted: list[TopicPartition] = []
        self.before_delete: asyncio.Event | None = None  # deletions wait for it
        self.delete_reached = asyncio.Event()

    async def apply(self, states: Iterable[PartitionState]) -> None:
        for state in states:
            if state.topic_partition in self.refused:
                raise Rejected(ErrorCode.KAFKA_STORAGE_ERROR, "no room")
            self.hosted[state.topic_partition] = state

    async def delete(self, topic_partitions: Iterable[TopicPartition]) -> None:
        self.delete_reached.set()
        if self.before_delete is not None:
            await self.before_delete.wait()
        for topic_partition in topic_partitions:
            self.hosted.pop(topic_partition, None)
            self.deleted.append(topic_partition)

    def update_topic_config(self, topic: str, config: TopicConfig) -> None:
        self.configs[topic] = config


class RecordedDirectory:
    path = Path("logs")
    directory_id = "a-directory"
    is_new = False
    offline: str | None = None


class RecordedLogs:
    def __init__(self) -> None:
        self.directories = [RecordedDirectory()]
        self.deleted: list[TopicPartition] = []
        self.offline: dict[TopicPartition, str] = {}

    def mark_offline(self, topic_partition: TopicPartition, reason: str) -> None:
        self.offline[topic_partition] = reason

    def abandon_offline(self, topic_partition: TopicPartition) -> None:
        self.offline.pop(topic_partition, None)

    def offline_partitions(self) -> list[TopicPartition]:
        return list(self.offline)

    def copy_directory_ids(self, topic_partition: TopicPartition) -> set[str]:
        return set()

    def delete(self, topic_partition: TopicPartition) -> None:
        self.offline.pop(topic_partition, None)
        self.deleted.append(topic_partition)

    def place(self, topic_partitions: Iterable[TopicPartition]) -> dict[TopicPartition, str]:
        return dict.fromkeys(topic_partitions, RecordedDirectory.directory_id)


class StandIn:
    """The part of a broker that handlers and the controller service use."""

    def __init__(self, settings: dict[str, str] | None = None) -> None:
        self.file_config = BrokerConfig.parse(settings or {})
        self.broker_id = BrokerId(self.file_config.int("node.id"))
        self.dynamic_config: DynamicConfig
        self.metadata_cache = MetadataCache(asyncio.get_running_loop(), self.fail)
        self.world = StillWorld()
        self.replicas = RecordedReplicas()
        self.logs = RecordedLogs()
        self.changes: ClusterChanges
        self.controller: ControllerService
        self.producer_ids: ProducerIds
        self.served_apis = SERVED

    @property
    def config(self) -> BrokerConfig:
        return self.dynamic_config.config

    @property
    def metadata(self) -> ClusterMetadata:
        return self.metadata_cache.current

    @staticmethod
    def fail(error: BaseException) -> None:
        raise error

    async def ask(
        self, api_key: int, api_version: int, *, listener: str = "PLAINTEXT", **fields: Any
    ) -> Any:
        """The response to a request, both encoded and decoded in ``api_version``."""
        request = _carried(request_class(api_key)(**fields), api_version)
        context = Context(api_key, api_version, 1, "test", listener, "127.0.0.1")
        answer = handler(api_key)(self, context, request)
        if isawaitable(answer):
            waited: Awaitable[Any] = answer
            answer = await waited
        assert isinstance(answer, response_class(api_key))
        return _carried(answer, api_version)


def _carried(message: Any, api_version: int) -> Any:
    out = bytearray()
    schema.encoder(type(message), api_version)(message, out)
    carried, end = schema.decoder(type(message), api_version)(bytes(out), 0, len(out))
    assert end == len(out)
    return carried


@asynccontextmanager
async def running(
    directory: Path,
    settings: dict[str, str] | None = None,
    *,
    endpoints: dict[str, Endpoint] | None = None,
    cluster_id: str | None = None,
    found: Iterable[FoundPartition] = (),
    offline: str | None = None,
) -> AsyncIterator[StandIn]:
    """A started controller service in ``directory``, closed at the end so that it can restart."""
    broker = StandIn(settings)
    broker.logs.directories[0].offline = offline
    tree = await EmbeddedTree.open(directory, broker.world.now)
    registry = Registry(tree, broker.broker_id)
    broker.dynamic_config = DynamicConfig(registry.configs, broker.file_config, broker.broker_id)
    startup = Startup(
        registry,
        broker_id=broker.broker_id,
        endpoints=endpoints or PLAIN,
        cluster_id=cluster_id,
        world=broker.world,
        dynamic_config=broker.dynamic_config,
        metadata_cache=broker.metadata_cache,
        logs=broker.logs,
        replicas=broker.replicas,
    )
    broker.producer_ids = ProducerIds(registry.reserve_producer_ids)
    try:
        broker.changes = await startup.run(found)
        broker.controller = ControllerService(
            broker.changes, broker.dynamic_config, broker.metadata_cache, broker.world
        )
        yield broker
    finally:
        await registry.close()
