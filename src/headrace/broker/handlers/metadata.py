"""Metadata and DescribeTopicPartitions: the cluster metadata, as clients of one listener see it.

Any broker can describe the whole cluster. Clients get the addresses that the
brokers advertise for the client's listener.
"""

from collections.abc import Awaitable, Iterable
from typing import Protocol

from headrace.broker.context import Context
from headrace.broker.needs import NeedsConfig, NeedsController, NeedsMetadata
from headrace.core.topics import is_legal_name
from headrace.model.cluster_metadata import NO_LEADER, ClusterMetadata, PartitionState, TopicState
from headrace.model.errors import ErrorCode, Rejected
from headrace.model.ids import NO_TOPIC_ID, TopicId
from headrace.wire import messages as m

# Bit sets of the allowed operations, by Kafka's numbers. Without an authorizer every client may do
# everything. On a topic: READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE, DESCRIBE_CONFIGS,
# ALTER_CONFIGS.
TOPIC_OPERATIONS = sum(1 << operation for operation in (3, 4, 5, 6, 7, 8, 10, 11))
# On the cluster: CREATE, ALTER, DESCRIBE, CLUSTER_ACTION, DESCRIBE_CONFIGS, ALTER_CONFIGS,
# IDEMPOTENT_WRITE.
CLUSTER_OPERATIONS = sum(1 << operation for operation in (5, 7, 8, 9, 10, 11, 12))
NOT_ASKED = -(2**31)

# Requests of earlier versions always create missing topics, if the broker allows it.
_FIRST_VERSION_WITH_CONSENT = 4
_FIRST_VERSION_WITH_LISTENER_ERROR = 6
# Versions 10 and 11 have the fields, but their responses cannot omit the name.
_FIRST_VERSION_BY_ID = 12

Partition = m.MetadataResponse.MetadataResponsePartition
Topic = m.MetadataResponse.MetadataResponseTopic


class Needs(NeedsConfig, NeedsController, NeedsMetadata, Protocol):
    """What these handlers use of the broker."""


def metadata(
    broker: Needs, context: Context, request: m.MetadataRequest
) -> m.MetadataResponse | Awaitable[m.MetadataResponse]:
    _require_names(context, request)
    if not broker.metadata_cache.can_be_told:
        return _wait_and_answer(broker, context, request)
    return _answer(broker, context, request)


async def _wait_and_answer(
    broker: Needs, context: Context, request: m.MetadataRequest
) -> m.MetadataResponse:
    await broker.metadata_cache.wait_to_be_told()
    answer = _answer(broker, context, request)
    return answer if isinstance(answer, m.MetadataResponse) else await answer


def _answer(
    broker: Needs, context: Context, request: m.MetadataRequest
) -> m.MetadataResponse | Awaitable[m.MetadataResponse]:
    if broker.config.bool("auto.create.topics.enable") and (
        request.allow_auto_topic_creation or context.api_version < _FIRST_VERSION_WITH_CONSENT
    ):
        missing = _missing(broker.metadata, context, request)
        if missing:
            return _create_and_answer(broker, context, request, missing)
    return build_metadata(broker.metadata, context, request)


def _require_names(context: Context, request: m.MetadataRequest) -> None:
    if context.api_version < _FIRST_VERSION_BY_ID and any(
        wanted.name is None or wanted.topic_id != NO_TOPIC_ID for wanted in request.topics or ()
    ):
        raise Rejected(
            ErrorCode.INVALID_REQUEST,
            f"topic ids are supported from version {_FIRST_VERSION_BY_ID}",
        )


def _missing(metadata: ClusterMetadata, context: Context, request: m.MetadataRequest) -> list[str]:
    if request.topics is None or _asks_for_all(context, request):
        return []
    return [
        name
        for name in dict.fromkeys(wanted.name for wanted in request.topics)
        if name is not None and name not in metadata.topics and is_legal_name(name)
    ]


async def _create_and_answer(
    broker: Needs, context: Context, request: m.MetadataRequest, missing: list[str]
) -> m.MetadataResponse:
    refusals = await broker.controller.auto_create(missing)
    return build_metadata(broker.metadata, context, request, refusals)


def build_metadata(
    metadata: ClusterMetadata,
    context: Context,
    request: m.MetadataRequest,
    refusals: dict[str, ErrorCode] | None = None,
) -> m.MetadataResponse:
    """The response from ``metadata``. ``refusals`` say why a topic could not be created."""
    listener = context.listener
    operations = TOPIC_OPERATIONS if request.include_topic_authorized_operations else NOT_ASKED
    if request.topics is None or _asks_for_all(context, request):
        topics = [
            _topic(metadata, topic, context, operations) for topic in metadata.topics.values()
        ]
    else:
        # A repeated name gets one entry, so that the response cannot outgrow the request.
        wanted = dict.fromkeys((w.name, TopicId(w.topic_id)) for w in request.topics)
        topics = [
            _wanted_topic(metadata, name, topic_id, context, operations, refusals or {})
            for name, topic_id in wanted
        ]
    return m.MetadataResponse(
        brokers=[
            m.MetadataResponse.MetadataResponseBroker(
                node_id=entry.broker_id, host=address.host, port=address.port, rack=entry.rack
            )
            for entry in metadata.brokers.values()
            if (address := entry.endpoints.get(listener)) is not None
        ],
        cluster_id=metadata.cluster_id,
        controller_id=metadata.controller_id,
        topics=topics,
        cluster_authorized_operations=(
            CLUSTER_OPERATIONS if request.include_cluster_authorized_operations else NOT_ASKED
        ),
    )


def _asks_for_all(context: Context, request: m.MetadataRequest) -> bool:
    # Version 0 has no null: an empty list means all topics.
    return context.api_version == 0 and not request.topics


def _wanted_topic(
    metadata: ClusterMetadata,
    name: str | None,
    topic_id: TopicId,
    context: Context,
    operations: int,
    refusals: dict[str, ErrorCode],
) -> Topic:
    if topic_id != NO_TOPIC_ID:
        topic = metadata.topic_by_id(topic_id)
        if topic is None:
            return Topic(
                error_code=ErrorCode.UNKNOWN_TOPIC_ID,
                name=None,
                topic_id=topic_id,
                topic_authorized_operations=NOT_ASKED,
            )
        return _topic(metadata, topic, context, operations)
    topic = metadata.topics.get(name or "")
    if topic is not None:
        return _topic(metadata, topic, context, operations)
    code = refusals.get(name or "", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    if name is None or not is_legal_name(name):
        code = ErrorCode.INVALID_TOPIC_EXCEPTION
    return Topic(error_code=code, name=name or "", topic_authorized_operations=operations)


def _topic(
    metadata: ClusterMetadata, topic: TopicState, context: Context, operations: int
) -> Topic:
    return Topic(
        error_code=ErrorCode.NONE,
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.internal,
        partitions=[_partition(metadata, state, context) for state in topic.partitions],
        topic_authorized_operations=operations,
    )


def _partition(metadata: ClusterMetadata, state: PartitionState, context: Context) -> Partition:
    code = leader_error(metadata, state, context.listener)
    if (
        code is ErrorCode.LISTENER_NOT_FOUND
        and context.api_version < _FIRST_VERSION_WITH_LISTENER_ERROR
    ):
        code = ErrorCode.LEADER_NOT_AVAILABLE
    return Partition(
        error_code=code,
        partition_index=state.partition,
        leader_id=state.leader if code is ErrorCode.NONE else NO_LEADER,
        leader_epoch=state.leader_epoch,
        replica_nodes=list(state.replicas),
        isr_nodes=list(state.isr),
        offline_replicas=list(state.offline),
    )


def leader_error(metadata: ClusterMetadata, state: PartitionState, listener: str) -> ErrorCode:
    """The error if a client of ``listener`` cannot reach the leader; NONE if it can."""
    leader = metadata.brokers.get(state.leader)
    if leader is None:
        return ErrorCode.LEADER_NOT_AVAILABLE
    if listener not in leader.endpoints:
        return ErrorCode.LISTENER_NOT_FOUND
    return ErrorCode.NONE


# --- DescribeTopicPartitions

Described = m.DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic


def describe_topic_partitions(
    broker: Needs, context: Context, request: m.DescribeTopicPartitionsRequest
) -> m.DescribeTopicPartitionsResponse:
    """Describe topics by name, up to a limit of partitions; the cursor says where to continue."""
    names = sorted({wanted.name for wanted in request.topics})
    try:
        names, first_partition = _from_cursor(broker.metadata, names, request.cursor)
    except Rejected as refusal:
        return m.DescribeTopicPartitionsResponse(
            topics=[
                Described(error_code=refusal.code, name=name, topic_authorized_operations=NOT_ASKED)
                for name in names
            ]
        )
    room = max(
        1,
        min(
            request.response_partition_limit,
            broker.config.int("max.request.partition.size.limit"),
        ),
    )
    answered: list[Described] = []
    for name in names:
        if room == 0:
            return m.DescribeTopicPartitionsResponse(
                topics=answered,
                next_cursor=m.DescribeTopicPartitionsResponse.Cursor(
                    topic_name=name, partition_index=0
                ),
            )
        topic = broker.metadata.topics.get(name)
        if topic is None:
            answered.append(_unknown(name))
            continue
        states = topic.partitions[first_partition : first_partition + room]
        answered.append(_described(broker.metadata, topic, states, context.listener))
        room -= len(states)
        partition_end = first_partition + len(states)
        if partition_end < len(topic.partitions):
            return m.DescribeTopicPartitionsResponse(
                topics=answered,
                next_cursor=m.DescribeTopicPartitionsResponse.Cursor(
                    topic_name=name, partition_index=partition_end
                ),
            )
        first_partition = 0
    return m.DescribeTopicPartitionsResponse(topics=answered, next_cursor=None)


def _from_cursor(
    metadata: ClusterMetadata,
    names: list[str],
    cursor: m.DescribeTopicPartitionsRequest.Cursor | None,
) -> tuple[list[str], int]:
    """The topics from the cursor on, and the first partition to describe of the first topic."""
    wants_all = not names
    remaining = sorted(metadata.topics) if wants_all else names
    if cursor is None:
        return remaining, 0
    if cursor.partition_index < 0 or (not wants_all and cursor.topic_name not in names):
        raise Rejected(ErrorCode.INVALID_REQUEST)
    remaining = [name for name in remaining if name >= cursor.topic_name]
    # If the topic of the cursor is deleted, the next topic starts at its first partition.
    goes_on = bool(remaining) and remaining[0] == cursor.topic_name
    return remaining, cursor.partition_index if goes_on else 0


def _unknown(name: str) -> Described:
    code = (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if is_legal_name(name)
        else ErrorCode.INVALID_TOPIC_EXCEPTION
    )
    return Described(error_code=code, name=name, topic_authorized_operations=TOPIC_OPERATIONS)


def _described(
    metadata: ClusterMetadata, topic: TopicState, states: Iterable[PartitionState], listener: str
) -> Described:
    response = m.DescribeTopicPartitionsResponse
    return Described(
        error_code=ErrorCode.NONE,
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.internal,
        partitions=[
            response.DescribeTopicPartitionsResponsePartition(
                error_code=(code := leader_error(metadata, state, listener)),
                partition_index=state.partition,
                leader_id=state.leader if code is ErrorCode.NONE else NO_LEADER,
                leader_epoch=state.leader_epoch,
                replica_nodes=list(state.replicas),
                isr_nodes=list(state.isr),
                # Eligible leaders outside the ISR (KIP-966) are not stored.
                eligible_leader_replicas=[],
                last_known_elr=[],
                offline_replicas=list(state.offline),
            )
            for state in states
        ],
        topic_authorized_operations=TOPIC_OPERATIONS,
    )
