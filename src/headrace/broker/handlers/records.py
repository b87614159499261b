"""DeleteRecords: raise the start offset of a log, so that consumers skip earlier records."""

import logging
from typing import Protocol

from headrace.broker.context import Context
from headrace.broker.needs import NeedsReplicas
from headrace.core.topics import is_internal
from headrace.model.errors import ErrorCode, Rejected
from headrace.model.ids import Offset
from headrace.storage.log_retention import delete_records_before
from headrace.wire import messages as m

_log = logging.getLogger("headrace.broker")

_TO_HIGH_WATERMARK = -1


class Needs(NeedsReplicas, Protocol):
    """What these handlers use of the broker."""


def delete_records(
    broker: Needs, context: Context, request: m.DeleteRecordsRequest
) -> m.DeleteRecordsResponse:
    response = m.DeleteRecordsResponse
    topics = []
    for topic in request.topics:
        partitions = []
        for asked in topic.partitions:
            answer = response.DeleteRecordsPartitionResult(
                partition_index=asked.partition_index, low_watermark=-1
            )
            partitions.append(answer)
            try:
                answer.low_watermark = _delete(
                    broker, context, topic.name, asked.partition_index, asked.offset
                )
            except Rejected as refusal:
                answer.error_code = refusal.code
        topics.append(response.DeleteRecordsTopicResult(name=topic.name, partitions=partitions))
    return response(topics=topics)


def _delete(broker: Needs, context: Context, topic: str, partition: int, offset: int) -> Offset:
    replica = broker.replicas.require(topic, partition)
    if is_internal(topic):
        raise Rejected(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"{topic} is an internal topic; its records cannot be deleted",
        )
    high_watermark = replica.lead().high_watermark
    if "delete" not in replica.log.config.cleanup_policy:
        raise Rejected(
            ErrorCode.POLICY_VIOLATION,
            f"{replica.topic_partition} is only compacted; deleting records requires "
            "cleanup.policy=delete or compact,delete",
        )
    new_start = high_watermark if offset == _TO_HIGH_WATERMARK else Offset(offset)
    if not 0 <= new_start <= high_watermark:
        raise Rejected(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"the high watermark of {replica.topic_partition} is {high_watermark}; "
            f"records up to {new_start} cannot be deleted",
        )
    if new_start > replica.log.log_start:
        delete_records_before(replica.log, new_start)
        _log.info(
            "%s deleted the records of %s below offset %d",
            context.described_client(),
            replica.topic_partition,
            new_start,
        )
    return replica.log.log_start
