"""The answer of an API to a request that failed as a whole: its error in every place for one.

Some answers have an error code at the top, in all versions or in some. The others have one per
thing that was asked about, so those things are repeated here from the request. The table says
which list of the answer goes with which of the request; fields of the same name are copied.
Like Kafka, nothing is said where a request asked about everything and its answer has no top.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

from headrace.broker.context import Context
from headrace.model.errors import Rejected
from headrace.wire.api import ApiKey, response_class
from headrace.wire.schema import Message


class Level(NamedTuple):
    asked: str  # the list in the request; with a dot: the lists of that name in all of a list
    answered: str  # the list in the answer
    element: str  # the class of its elements
    inner: "Level | None" = None
    # Where a field has another name in the answer. "" is the element itself, if it is no struct.
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
    """``request`` is None if it was never read."""
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
            if isinstance(value, (str, bytes, int)):  # no list, nor what reads like one
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
