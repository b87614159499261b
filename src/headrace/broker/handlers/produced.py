"""One Produce request: the results of its batches, its wait for in-sync replicas, its response.

A response to a client that asked the wrong broker names the leader (KIP-951).
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from headrace.broker.context import Context
from headrace.broker.replication.replica import Replica
from headrace.core.leadership import Leadership
from headrace.core.parked import LOSSES, Event
from headrace.model.errors import ErrorCode, Rejected
from headrace.model.ids import Offset
from headrace.net.link import Link, Slot
from headrace.wire import messages as m
from headrace.wire.api import ApiKey
from headrace.wire.framing import encode_response
from headrace.wire.produce import ProduceShape

if TYPE_CHECKING:
    from headrace.broker.replication.replica_manager import ReplicaManager

TOPIC_ID_SINCE = 13


class RememberedProduce:
    """A producer's usual request and its replica, valid while ``generation`` is current."""

    __slots__ = (
        "shape",
        "replica",
        "acks",
        "timeout_ms",
        "api_version",
        "replicas",
        "generation",
    )

    def __init__(
        self,
        shape: ProduceShape,
        replica: Replica,
        request: Any,
        api_version: int,
        replicas: "ReplicaManager",
    ) -> None:
        self.shape = shape
        self.replica = replica
        self.acks: int = request.acks
        self.timeout_ms: int = request.timeout_ms
        self.api_version = api_version
        self.replicas = replicas
        self.generation = replicas.generation


class Outcome:
    """The result of one partition's batch.

    The defaults are class attributes, because one is created per batch and most change few.
    """

    replica: Replica | None = None
    leadership: Leadership | None = None  # in which the batch was staged
    error_code: int = ErrorCode.NONE
    error_message: str | None = None
    record_errors: Sequence[tuple[int, str]] = ()
    base_offset: int = -1
    append_time: int = -1
    log_start: int = -1
    offset_end = Offset(-1)  # acks=all waits until the high watermark reaches it

    def refuse(self, refusal: Rejected) -> None:
        self.error_code = refusal.code
        self.error_message = refusal.message
        self.base_offset = self.append_time = self.log_start = -1
        self.offset_end = Offset(-1)

    @property
    def committed(self) -> bool:
        leadership = self.leadership
        return self.offset_end < 0 or (
            leadership is not None and leadership.high_watermark >= self.offset_end
        )

    def check_replicas_after_append(self) -> None:
        """Report an ISR that fell below min.insync.replicas while the batch waited."""
        leadership = self.leadership
        if leadership is not None and self.offset_end >= 0:
            code = leadership.acknowledgement(self.offset_end)
            if code is ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND:
                self.error_code = code
                self.error_message = "there are now fewer in-sync replicas than min.insync.replicas"

    def refuse_if_lost(self, event: Event) -> None:
        """Refuse a batch that was not committed before ``event``: its records may be lost."""
        replica = self.replica
        if replica is None or self.committed:
            return
        if event is Event.DISK_OFFLINE:
            refusal = Rejected(
                ErrorCode.KAFKA_STORAGE_ERROR, f"the disk of {replica.topic_partition} failed"
            )
        else:
            refusal = Rejected(
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                f"this broker no longer leads {replica.topic_partition}",
            )
        self.refuse(refusal)


class Produced:
    """One request with staged batches. With acks=all it then waits for the in-sync replicas."""

    __slots__ = ("link", "slot", "acks", "outcomes", "timeout_ms")

    def __init__(self, link: Link, acks: int, timeout_ms: int) -> None:
        self.link = link
        self.acks = acks
        self.timeout_ms = timeout_ms
        self.outcomes: list[Outcome] = []
        self.slot: Slot | None = None

    @property
    def committed(self) -> bool:
        for outcome in self.outcomes:  # noqa: SIM110 - all() costs as much as encoding
            if not outcome.committed:
                return False
        return True

    def written(self, failed: dict[Replica, Rejected]) -> None:
        for outcome in self.outcomes:
            if outcome.replica in failed and outcome.error_code == ErrorCode.NONE:
                outcome.refuse(failed[outcome.replica])

    def encode(self) -> list[Any]:
        raise NotImplementedError

    # --- waiting for the in-sync replicas

    def waits_for(self) -> list[Replica]:
        return [
            outcome.replica
            for outcome in self.outcomes
            if outcome.replica is not None and not outcome.committed
        ]

    def happened(self, event: Event, replica: Replica) -> bool:
        if event in LOSSES:
            for outcome in self.outcomes:
                if outcome.replica is replica:
                    outcome.refuse_if_lost(event)
        return self.answer_if_committed()

    def answer_if_committed(self) -> bool:
        """Respond if every batch is committed or has failed."""
        if not self.committed:
            return False
        for outcome in self.outcomes:
            outcome.check_replicas_after_append()
        assert self.slot is not None
        self.slot.answer(self.encode())
        return True

    def deadline_passed(self) -> None:
        for outcome in self.outcomes:
            if not outcome.committed:
                outcome.refuse(
                    Rejected(
                        ErrorCode.REQUEST_TIMED_OUT,
                        "the in-sync replicas did not replicate the batch within the request's "
                        "timeout; the batch may still be committed",
                    )
                )
        assert self.slot is not None
        self.slot.answer(self.encode())


class ShapedProduced(Produced):
    __slots__ = ("remembered", "correlation_id")

    def __init__(self, link: Link, remembered: RememberedProduce, correlation_id: bytes) -> None:
        super().__init__(link, remembered.acks, remembered.timeout_ms)
        self.remembered = remembered
        self.correlation_id = correlation_id

    def encode(self) -> list[Any]:
        outcome = self.outcomes[0]
        if outcome.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER:
            return self._encode_with_leader()
        return [
            self.remembered.shape.answer(
                self.correlation_id,
                outcome.error_code,
                outcome.base_offset,
                outcome.append_time,
                outcome.log_start,
            )
        ]

    def _encode_with_leader(self) -> list[Any]:
        """The shape has no place for the current leader."""
        remembered, request = self.remembered, m.ProduceRequest
        (topic, partition), topic_id = (
            remembered.replica.topic_partition,
            remembered.replica.topic_id,
        )
        data = request.TopicProduceData(
            name=topic,
            topic_id=topic_id,
            partition_data=[request.PartitionProduceData(index=partition)],
        )
        response = _response(
            [data],
            self.outcomes,
            remembered.replicas,
            self.link.listener_name,
            remembered.api_version,
        )
        correlation_id = int.from_bytes(self.correlation_id, "big", signed=True)
        return [encode_response(ApiKey.PRODUCE, remembered.api_version, correlation_id, response)]


class FullProduced(Produced):
    __slots__ = ("context", "request", "replicas")

    def __init__(
        self, link: Link, context: Context, request: Any, replicas: "ReplicaManager"
    ) -> None:
        super().__init__(link, request.acks, request.timeout_ms)
        self.context = context
        self.request = request
        self.replicas = replicas

    def encode(self) -> list[Any]:
        context = self.context
        response = _response(
            self.request.topic_data,
            self.outcomes,
            self.replicas,
            context.listener,
            context.api_version,
        )
        return [
            encode_response(context.api_key, context.api_version, context.correlation_id, response)
        ]


def _response(
    topic_data: Iterable[Any],
    outcomes: Iterable[Outcome],
    replicas: "ReplicaManager",
    listener: str,
    api_version: int,
) -> m.ProduceResponse:
    response = m.ProduceResponse
    topics, leaders = [], []
    next_outcome = iter(outcomes)
    for topic in topic_data:
        partitions = []
        for data in topic.partition_data:
            outcome = next(next_outcome)
            answer = response.PartitionProduceResponse(
                index=data.index,
                error_code=outcome.error_code,
                base_offset=outcome.base_offset,
                log_append_time_ms=outcome.append_time,
                log_start_offset=outcome.log_start,
                record_errors=[
                    response.BatchIndexAndErrorMessage(
                        batch_index=index, batch_index_error_message=message
                    )
                    for index, message in outcome.record_errors
                ],
                error_message=outcome.error_message,
            )
            if outcome.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER:
                ref = topic.name if api_version < TOPIC_ID_SINCE else topic.topic_id
                known = replicas.leader_of(ref, data.index)
                if known is not None:
                    leaders.append(known[0])
                    answer.current_leader = response.LeaderIdAndEpoch(
                        leader_id=known[0], leader_epoch=known[1]
                    )
            partitions.append(answer)
        topics.append(
            response.TopicProduceResponse(
                name=topic.name, topic_id=topic.topic_id, partition_responses=partitions
            )
        )
    endpoints = [
        response.NodeEndpoint(node_id=node_id, host=host, port=port, rack=rack)
        for node_id, host, port, rack in replicas.endpoints_of(leaders, listener)
    ]
    return response(responses=topics, node_endpoints=endpoints)
