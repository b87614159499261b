"""DeleteRecords: move the start of a log up; what lies below is gone for readers at once."""

import logging
from typing import TYPE_CHECKING

from headrace.broker.context import Context
from headrace.core.topics import is_internal
from headrace.model.errors import ErrorCode, Rejected
from headrace.model.ids import Offset
from headrace.storage.log_retention import delete_records_before
from headrace.wire import messages as m

if TYPE_CHECKING:
    from headrace.broker.broker import Broker

_log = logging.getLogger(__name__)

_TO_HIGH_WATERMARK = -1


def delete_records(
    broker: "Broker", context: Context, request: m.DeleteRecordsRequest
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
                    broker, topic.name, asked.partition_index, asked.offset
                )
            except Rejected as refusal:
                answer.error_code = refusal.code
        topics.append(response.DeleteRecordsTopicResult(name=topic.name, partitions=partitions))
    return response(topics=topics)


def _delete(broker: "Broker", topic: str, partition: int, offset: int) -> Offset:
    replica = broker.replica(topic, partition)
    if is_internal(topic):
        raise Rejected(
            ErrorCode.INVALID_TOPIC_EXCEPTION, f"{topic} is internal: the broker needs its records"
        )
    high_watermark = replica.high_watermark
    if "delete" not in replica.log.config.cleanup_policy:
        raise Rejected(
            ErrorCode.POLICY_VIOLATION,
            f"{replica.topic_partition} is compacted only; deleting records needs "
            "cleanup.policy=delete or compact,delete",
        )
    new_start = high_watermark if offset == _TO_HIGH_WATERMARK else Offset(offset)
    if not 0 <= new_start <= high_watermark:
        raise Rejected(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"{replica.topic_partition} is committed up to {high_watermark}, so its start cannot "
            f"move to {new_start}",
        )
    if new_start > replica.log.log_start:
        delete_records_before(replica.log, new_start)
        _log.info("%s now starts at %d, as a client asked", replica.topic_partition, new_start)
    return replica.log.log_start
