"""Brokers that do what a controller tells them, behind a dial in memory, and a term over them."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

from headrace.broker.controller.broker_requests import BEING_DELETED
from headrace.broker.controller.cluster_controller import ClusterController
from headrace.broker.metadata.dynamic_config import DynamicConfig
from headrace.broker.peers import Peers
from headrace.broker.tasks import BackgroundTasks
from headrace.coordination import paths, values
from headrace.coordination.memory import Faults, MemorySession, MemoryTree
from headrace.coordination.registry import Elected, Registry
from headrace.core import features
from headrace.core.controller import CreateTopic
from headrace.core.elections import IsrProposal
from headrace.core.topics import NewTopic
from headrace.model.cluster_metadata import BrokerEntry, Endpoint, TopicState
from headrace.model.config import BrokerConfig
from headrace.model.errors import ErrorCode
from headrace.model.ids import BrokerId, LeaderEpoch, TopicId, TopicPartition
from headrace.wire import messages as m
from headrace.wire import schema
from headrace.wire.api import request_class
from headrace.wire.framing import encode_response, parse_request_header
from tests.fakes.standin import StillWorld

LIMIT_S = 10


class ToldBroker:
    """Remembers its roles and the metadata, with Kafka's checks of epochs."""

    def __init__(self, broker_id: int) -> None:
        self.broker_id = BrokerId(broker_id)
        self.broker_epoch = -1
        self.controller_epoch = -1
        self.roles: dict[TopicPartition, Any] = {}
        self.new: list[TopicPartition] = []  # hosted as new
        self.topics: dict[str, dict[int, Any]] = {}  # as in UpdateMetadata
        self.live_brokers: list[int] = []
        self.controller_id = -1
        self.deleted: list[TopicPartition] = []
        self.requests: list[Any] = []
        self.offline: set[TopicPartition] = set()  # their disk failed
        self.reachable = True
        self.answers = True  # a paused broker receives and does not answer

    def handle(self, request: Any) -> Any:
        self.requests.append(request)
        kind = {
            m.LeaderAndIsrRequest: (m.LeaderAndIsrResponse, self._lead_or_follow),
            m.UpdateMetadataRequest: (m.UpdateMetadataResponse, self._update),
            m.StopReplicaRequest: (m.StopReplicaResponse, self._stop),
        }
        answer, apply = kind[type(request)]
        if request.broker_epoch < self.broker_epoch:
            return answer(error_code=ErrorCode.STALE_BROKER_EPOCH)
        if request.controller_epoch < self.controller_epoch:
            return answer(error_code=ErrorCode.STALE_CONTROLLER_EPOCH)
        self.controller_epoch = request.controller_epoch
        return apply(request)

    def _lead_or_follow(self, request: m.LeaderAndIsrRequest) -> m.LeaderAndIsrResponse:
        response = m.LeaderAndIsrResponse
        answer = response()
        for topic in request.topic_states:
            errors = []
            for state in topic.partition_states:
                each = TopicPartition(topic.topic_name, state.partition_index)
                known = self.roles.get(each)
                code = ErrorCode.NONE
                if each in self.offline:
                    code = ErrorCode.KAFKA_STORAGE_ERROR
                elif known is not None and state.leader_epoch <= known.leader_epoch:
                    code = ErrorCode.STALE_CONTROLLER_EPOCH
                elif known is None and not state.is_new and self.broker_id in state.isr:
                    code = ErrorCode.KAFKA_STORAGE_ERROR
                else:
                    if known is None and state.is_new:
                        self.new.append(each)
                    self.roles[each] = state
                errors.append(
                    response.LeaderAndIsrPartitionError(
                        partition_index=state.partition_index, error_code=code
                    )
                )
            answer.topics.append(
                response.LeaderAndIsrTopicError(topic_id=topic.topic_id, partition_errors=errors)
            )
        return answer

    def _update(self, request: m.UpdateMetadataRequest) -> m.UpdateMetadataResponse:
        self.controller_id = request.controller_id
        self.live_brokers = [each.id for each in request.live_brokers]
        for topic in request.topic_states:
            for state in topic.partition_states:
                if state.leader == BEING_DELETED:
                    self.topics.pop(topic.topic_name, None)
                else:
                    known = self.topics.setdefault(topic.topic_name, {})
                    known[state.partition_index] = state
        return m.UpdateMetadataResponse()

    def _stop(self, request: m.StopReplicaRequest) -> m.StopReplicaResponse:
        answer = m.StopReplicaResponse()
        for topic in request.topic_states:
            for state in topic.partition_states:
                each = TopicPartition(topic.topic_name, state.partition_index)
                code = ErrorCode.NONE
                if each in self.offline:
                    code = ErrorCode.KAFKA_STORAGE_ERROR
                elif state.delete_partition:
                    self.deleted.append(each)
                    self.roles.pop(each, None)
                answer.partition_errors.append(
                    m.StopReplicaResponse.StopReplicaPartitionError(
                        topic_name=each.topic, partition_index=each.partition, error_code=code
                    )
                )
        return answer

    def leader_of(self, topic: str, partition: int = 0) -> int | None:
        state = self.topics.get(topic, {}).get(partition)
        return None if state is None else state.leader

    def count(self, kind: type) -> int:
        return sum(isinstance(each, kind) for each in self.requests)


class _Line(asyncio.Transport):
    """Decodes requests, and answers them in the next turn of the loop."""

    def __init__(self, broker: ToldBroker, protocol: asyncio.BufferedProtocol) -> None:
        super().__init__()
        self._broker = broker
        self._protocol = protocol
        self._open = True

    def write(self, data: Any) -> None:
        frame = bytes(data)
        position = 0
        while position < len(frame):
            end = position + 4 + int.from_bytes(frame[position : position + 4])
            asyncio.get_running_loop().call_soon(self._answer, frame[position + 4 : end])
            position = end

    def _answer(self, frame: bytes) -> None:
        if not self._open or not self._broker.answers:
            return
        if not self._broker.reachable:
            self.abort()
            return
        header = parse_request_header(frame, 0, len(frame))
        decode = schema.decoder(request_class(header.api_key), header.api_version)
        request, _ = decode(frame, header.body_position, len(frame))
        answer = self._broker.handle(request)
        out = bytes(
            encode_response(header.api_key, header.api_version, header.correlation_id, answer)
        )
        while out:
            buffer = self._protocol.get_buffer(len(out))
            size = min(len(out), len(buffer))
            buffer[:size] = out[:size]
            self._protocol.buffer_updated(size)
            out = out[size:]

    def abort(self) -> None:
        if self._open:
            self._open = False
            asyncio.get_running_loop().call_soon(self._protocol.connection_lost, None)

    def close(self) -> None:
        self.abort()


class ToldCluster:
    """A tree in memory, fake brokers, and real controllers, each in a session of its own."""

    def __init__(self, *broker_ids: int, settings: dict[str, str] | None = None) -> None:
        self.tree = MemoryTree(StillWorld().now)
        self.settings = settings or {}
        self.brokers = {BrokerId(each): ToldBroker(each) for each in broker_ids}
        self.sessions: dict[BrokerId, MemorySession] = {}
        self.controllers: list[ClusterController] = []
        self.fenced: list[ClusterController] = []
        self.failures: list[BaseException] = []
        self.entries: dict[BrokerId, BrokerEntry] = {}
        self.racks: dict[int, str] = {}

    async def dial(self, protocol: asyncio.BufferedProtocol, host: str, port: int) -> None:
        broker = self.brokers[BrokerId(port)]
        if not broker.reachable:
            raise ConnectionRefusedError(f"broker {port} is not reachable")
        protocol.connection_made(_Line(broker, protocol))

    async def register(self, *broker_ids: int) -> None:
        for broker_id in map(BrokerId, broker_ids or sorted(self.brokers)):
            session = self.tree.open_session()
            registry = Registry(session, broker_id)
            await registry.create_persistent_nodes()
            entry = BrokerEntry(
                broker_id,
                {"PLAINTEXT": Endpoint("told", broker_id)},
                self.racks.get(broker_id),
                -1,
                features.SUPPORTED,
            )
            self.entries[broker_id] = await registry.register(entry, StillWorld().now())
            self.sessions[broker_id] = session
            broker = self.brokers[broker_id]
            broker.broker_epoch = self.entries[broker_id].broker_epoch
            broker.reachable = True

    def crash(self, broker_id: int) -> None:
        """Kill a broker; it loses its roles and keeps its files."""
        self.brokers[BrokerId(broker_id)].reachable = False
        self.tree.expire(self.sessions.pop(BrokerId(broker_id)).session_id)

    def session(self, faults: Faults | None = None) -> MemorySession:
        return self.tree.open_session(faults)

    async def elect(self, broker_id: int = 1, faults: Faults | None = None) -> ClusterController:
        """A new controller in a session of its own, which has not started yet."""
        session = self.tree.open_session(faults)
        registry = Registry(session, BrokerId(broker_id))
        elected = await registry.take_controllership(StillWorld().now())
        assert isinstance(elected, Elected), elected
        dynamic_config = DynamicConfig(
            registry.configs, BrokerConfig.parse(self.settings), BrokerId(broker_id)
        )
        await dynamic_config.load(StillWorld().now())
        loop = asyncio.get_running_loop()
        controller = ClusterController(
            registry,
            elected,
            broker_id=BrokerId(broker_id),
            cluster_id="c",
            dynamic_config=dynamic_config,
            peers=Peers({}.get, "PLAINTEXT", self.dial),
            world=StillWorld(),
            tasks=BackgroundTasks(loop, self.failures.append),
            fail=self.failures.append,
            on_fenced=lambda: self.fenced.append(controller),
        )
        self.controllers.append(controller)
        self.controller_session = session
        return controller

    async def start(self, broker_id: int = 1) -> ClusterController:
        controller = await self.elect(broker_id)
        await controller.start()
        return controller

    async def kill_controller(self) -> None:
        """The session of the controller ends without a goodbye."""
        self.tree.expire(self.controller_session.session_id)
        await self.controllers[-1].stop()

    async def stop(self) -> None:
        for controller in self.controllers:
            await controller.stop()
        assert self.failures == []


@asynccontextmanager
async def told_cluster(
    *broker_ids: int, settings: dict[str, str] | None = None
) -> AsyncIterator[ToldCluster]:
    """All brokers are registered; no controller is elected."""
    cluster = ToldCluster(*(broker_ids or (1, 2, 3)), settings=settings)
    await cluster.register()
    try:
        yield cluster
    finally:
        await cluster.stop()


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not condition():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.001)


def proposal(
    controller: ClusterController, topic: str, isr: Iterable[int], **changes: Any
) -> IsrProposal:
    state = controller.metadata.topics[topic].partitions[0]
    made = IsrProposal(
        TopicId(state.topic_id),
        0,
        LeaderEpoch(state.leader_epoch),
        state.partition_epoch,
        tuple(map(BrokerId, isr)),
        {},
    )
    return made._replace(**changes)


async def make_topic(
    controller: ClusterController, *replicas: tuple[int, ...], name: str = "t"
) -> TopicState:
    """Create a topic with one partition per assignment; without any, on brokers 1, 2 and 3."""
    assignments = [
        (number, tuple(map(BrokerId, assigned)))
        for number, assigned in enumerate(replicas or [(1, 2, 3)])
    ]
    new = NewTopic(name, assignments=assignments)
    (answer,) = await controller.create_topics([new], timeout_s=5)
    assert isinstance(answer, CreateTopic), answer
    return answer.topic


async def state_in_tree(cluster: ToldCluster, topic: str = "t", partition: int = 0) -> Any:
    """Leader, leader epoch and ISR."""
    session = cluster.session()
    node = await session.get(paths.state(topic, partition))
    await session.close()
    assert node is not None
    return values.decode_state(topic, partition, node.value)
