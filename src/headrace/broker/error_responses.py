"""The response to a request that failed as a whole: its error in every error field.

Some responses have a top-level error code, in all versions or in some. Others have one error code
per element (topic, partition, group), so the elements of the request are repeated in the response.
The table maps each list of the request to its list in the response; fields of the same name are
copied. As in Kafka, a request for all elements gets an empty response if there is no top-level
error code.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

from headrace.broker.context import Context
from headrace.model.errors import Rejected
from headrace.wire.api import ApiKey, response_class
from headrace.wire.schema import Message


class Level(NamedTuple):
    asked: str  # the list in the request; "a.b": the lists ``b`` of all elements of ``a``
    answered: str  # the list in the response
    element: str  # the class of its elements
    inner: "Level | None" = None
    # A field's name in the request and in the response. "" is the element itself if it is a plain
    # value.
    renamed: tuple[str, str] = ("", "")


def _named(asked: str, answered: str, element: str, name: str) -> Level:
    """A list of plain names or numbers."""
    return Level(asked, answered, element, renamed=("", name))


_PLACES: dict[int, tuple[Level, ...]] = {
    ApiKey.PRODUCE: (
        Level("topic_data", "responses", "TopicProduceResponse",
              Level("partition_data", "partition_responses", "PartitionProduceResponse")),
    ),
    ApiKey.FETCH: (
        Level("topics", "responses", "FetchableTopicResponse",
              Level("partitions", "partitions", "PartitionData",
                    renamed=("partition", "partition_index"))),
    ),
    ApiKey.LIST_OFFSETS: (
        Level("topics", "topics", "ListOffsetsTopicResponse",
              Level("partitions", "partitions", "ListOffsetsPartitionResponse")),
    ),
    ApiKey.METADATA: (Level("topics", "topics", "MetadataResponseTopic"),),
    ApiKey.OFFSET_COMMIT: (
        Level("topics", "topics", "OffsetCommitResponseTopic",
              Level("partitions", "partitions", "OffsetCommitResponsePartition")),
    ),
    ApiKey.OFFSET_FETCH: (
        Level("topics", "topics", "OffsetFetchResponseTopic",
              _named("partition_indexes", "partitions", "OffsetFetchResponsePartition",
                     "partition_index")),
        Level("groups", "groups", "OffsetFetchResponseGroup"),
    ),
    ApiKey.FIND_COORDINATOR: (_named("coordinator_keys", "coordinators", "Coordinator", "key"),),
    ApiKey.DESCRIBE_GROUPS: (_named("groups", "groups", "DescribedGroup", "group_id"),),
    ApiKey.CREATE_TOPICS: (Level("topics", "topics", "CreatableTopicResult"),),
    ApiKey.DELETE_TOPICS: (
        Level("topics", "responses", "DeletableTopicResult"),
        _named("topic_names", "responses", "DeletableTopicResult", "name"),
    ),
    ApiKey.DELETE_RECORDS: (
        Level("topics", "topics", "DeleteRecordsTopicResult",
              Level("partitions", "partitions", "DeleteRecordsPartitionResult")),
    ),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: (
        Level("topics", "topics", "OffsetForLeaderTopicResult",
              Level("partitions", "partitions", "EpochEndOffset")),
    ),
    ApiKey.ADD_PARTITIONS_TO_TXN: (
        Level("v3_and_below_topics", "results_by_topic_v3_and_below",
              "AddPartitionsToTxnTopicResult",
              _named("partitions", "results_by_partition", "AddPartitionsToTxnPartitionResult",
                     "partition_index")),
    ),
    ApiKey.WRITE_TXN_MARKERS: (
        Level("markers", "markers", "WritableTxnMarkerResult",
              Level("topics", "topics", "WritableTxnMarkerTopicResult",
                    _named("partition_indexes", "partitions", "WritableTxnMarkerPartitionResult",
                           "partition_index"))),
    ),
    ApiKey.TXN_OFFSET_COMMIT: (
        Level("topics", "topics", "TxnOffsetCommitResponseTopic",
              Level("partitions", "partitions", "TxnOffsetCommitResponsePartition")),
    ),
    ApiKey.CREATE_ACLS: (Level("creations", "results", "AclCreationResult"),),
    ApiKey.DELETE_ACLS: (Level("filters", "filter_results", "DeleteAclsFilterResult"),),
    ApiKey.DESCRIBE_CONFIGS: (Level("resources", "results", "DescribeConfigsResult"),),
    ApiKey.ALTER_CONFIGS: (Level("resources", "responses", "AlterConfigsResourceResponse"),),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: (
        Level("resources", "responses", "AlterConfigsResourceResponse"),
    ),
    ApiKey.ALTER_REPLICA_LOG_DIRS: (
        Level("dirs.topics", "results", "AlterReplicaLogDirTopicResult",
              _named("partitions", "partitions", "AlterReplicaLogDirPartitionResult",
                     "partition_index"),
              ("name", "topic_name")),
    ),
    ApiKey.CREATE_PARTITIONS: (Level("topics", "results", "CreatePartitionsTopicResult"),),
    ApiKey.DELETE_GROUPS: (_named("groups_names", "results", "DeletableGroupResult", "group_id"),),
    ApiKey.ELECT_LEADERS: (
        Level("topic_partitions", "replica_election_results", "ReplicaElectionResult",
              _named("partitions", "partition_result", "PartitionResult", "partition_id")),
    ),
    ApiKey.DESCRIBE_PRODUCERS: (
        Level("topics", "topics", "TopicResponse",
              _named("partition_indexes", "partitions", "PartitionResponse", "partition_index")),
    ),
    ApiKey.DESCRIBE_TRANSACTIONS: (
        _named("transactional_ids", "transaction_states", "TransactionState", "transactional_id"),
    ),
    ApiKey.CONSUMER_GROUP_DESCRIBE: (_named("group_ids", "groups", "DescribedGroup", "group_id"),),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: (
        Level("topics", "topics", "DescribeTopicPartitionsResponseTopic"),
    ),
}  # fmt: skip


def refused(context: Context, request: Any, refusal: Rejected) -> Message:
    """The error response of the context's API; ``request`` is None if it was not decoded."""
    kind = response_class(context.api_key)
    answer = kind()
    _set_error(answer, refusal)
    if request is not None:
        for level in _PLACES.get(context.api_key, ()):
            _fill(kind, answer, request, level, refusal)
    return answer


def _fill(kind: type, answer: Any, request: Any, level: Level, refusal: Rejected) -> None:
    answers = getattr(answer, level.answered)
    for asked in _asked(request, level.asked):
        element = getattr(kind, level.element)()
        asked_name, name = level.renamed
        if name:
            setattr(element, name, getattr(asked, asked_name) if asked_name else asked)
        for same in element.__slots__:
            value = getattr(asked, same, None)
            if isinstance(value, (str, bytes, int)):  # not a list
                setattr(element, same, value)
        _set_error(element, refusal)
        if level.inner is not None:
            _fill(kind, element, asked, level.inner, refusal)
        answers.append(element)


def _asked(request: Any, path: str) -> Iterable[Any]:
    outer, dot, inner = path.partition(".")
    found = getattr(request, outer) or ()
    return (each for one in found for each in getattr(one, inner)) if dot else found


def _set_error(message: Any, refusal: Rejected) -> None:
    for name, value in (
        ("error_code", refusal.code),
        ("partition_error_code", refusal.code),
        ("error_message", refusal.message),
    ):
        if hasattr(message, name):
            setattr(message, name, value)
