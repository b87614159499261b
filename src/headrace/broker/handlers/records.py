"""DeleteRecords: raise the start offset of a log, so that consumers skip earlier records.

The response waits until the followers have deleted the records too: otherwise the next leader
could serve them again.
"""

import asyncio
import logging
from typing import Protocol

from headrace.broker.context import Context
from headrace.broker.needs import NeedsMetadata, NeedsReplicas
from headrace.broker.replication.replica import Replica
from headrace.core.parked import Event
from headrace.core.topics import is_internal
from headrace.model.errors import ErrorCode, Rejected
from headrace.model.ids import Offset
from headrace.storage.log_retention import delete_records_before
from headrace.wire import messages as m

_log = logging.getLogger("headrace.broker")

_TO_HIGH_WATERMARK = -1


class Needs(NeedsReplicas, NeedsMetadata, Protocol):
    """What these handlers use of the broker."""


class _Deletion:
    """Waits until all live replicas of a partition have deleted records."""

    def __init__(
        self,
        broker: Needs,
        replica: Replica,
        new_start: Offset,
        answer: m.DeleteRecordsResponse.DeleteRecordsPartitionResult,
    ) -> None:
        self._broker = broker
        self.replica = replica
        self._new_start = new_start
        self._answer = answer
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def is_complete(self) -> bool:
        """Whether there is nothing more to wait for; then the answer says how it ended."""
        try:
            leadership = self.replica.require_leadership()
        except Rejected as refusal:
            self._answer.error_code = refusal.code
            return True
        log_start = self.replica.log.log_start
        low_watermark = leadership.low_watermark(log_start, self._broker.metadata.brokers)
        if low_watermark < self._new_start:
            return False
        self._answer.low_watermark = low_watermark
        return True

    def happened(self, event: Event, replica: Replica) -> bool:
        if not self.is_complete():
            return False
        if not self.done.done():
            self.done.set_result(None)
        return True

    def deadline_passed(self) -> None:
        if not self.is_complete():
            self._answer.error_code = ErrorCode.REQUEST_TIMED_OUT
        if not self.done.done():
            self.done.set_result(None)


async def delete_records(
    broker: Needs, context: Context, request: m.DeleteRecordsRequest
) -> m.DeleteRecordsResponse:
    response = m.DeleteRecordsResponse
    waiting: list[_Deletion] = []
    topics = []
    for topic in request.topics:
        partitions = []
        for asked in topic.partitions:
            answer = response.DeleteRecordsPartitionResult(
                partition_index=asked.partition_index, low_watermark=-1
            )
            partitions.append(answer)
            try:
                replica, new_start = _delete(
                    broker, context, topic.name, asked.partition_index, asked.offset
                )
                deletion = _Deletion(broker, replica, new_start, answer)
                if not deletion.is_complete():
                    waiting.append(deletion)
            except Rejected as refusal:
                answer.error_code = refusal.code
        topics.append(response.DeleteRecordsTopicResult(name=topic.name, partitions=partitions))
    for deletion in waiting:
        broker.replicas.park(
            deletion, deletion.replica, request.timeout_ms, Event.FOLLOWER_LOG_START
        )
    for deletion in waiting:
        await deletion.done
    return response(topics=topics)


def _delete(
    broker: Needs, context: Context, topic: str, partition: int, offset: int
) -> tuple[Replica, Offset]:
    """Delete on this broker, the leader; returns the requested log start."""
    replica = broker.replicas.require(topic, partition)
    if is_internal(topic):
        raise Rejected(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"{topic} is an internal topic; its records cannot be deleted",
        )
    high_watermark = replica.require_leadership().high_watermark
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
    return replica, new_start
