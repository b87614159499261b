"""AlterPartition, ControlledShutdown and AllocateProducerIds: what brokers ask the controller."""

from typing import TYPE_CHECKING, Protocol

from headrace.broker.context import Context
from headrace.core.elections import IsrProposal
from headrace.model.cluster_metadata import PartitionState
from headrace.model.errors import ErrorCode, Rejected
from headrace.model.ids import BrokerId, LeaderEpoch, TopicId
from headrace.wire import messages as m

if TYPE_CHECKING:
    from headrace.broker.controller.member_controller import MemberController

_FIRST_VERSION_WITH_EPOCHS = 3
_RECOVERING = 1


class Needs(Protocol):
    """What these handlers use of the broker, which is a member of a cluster."""

    @property
    def member_controller(self) -> "MemberController": ...


async def alter_partition(
    broker: Needs, context: Context, request: m.AlterPartitionRequest
) -> m.AlterPartitionResponse:
    response = m.AlterPartitionResponse
    proposals = [
        _proposal(TopicId(topic.topic_id), partition, context.api_version)
        for topic in request.topics
        for partition in topic.partitions
    ]
    answers = await broker.member_controller.alter_isr(
        BrokerId(request.broker_id), request.broker_epoch, proposals
    )
    topics: dict[TopicId, m.AlterPartitionResponse.TopicData] = {}
    for proposal, answer in zip(proposals, answers, strict=True):
        topic = topics.get(proposal.topic_id)
        if topic is None:
            topic = topics[proposal.topic_id] = response.TopicData(
                topic_id=proposal.topic_id, partitions=[]
            )
        topic.partitions.append(_answer(proposal, answer))
    return response(topics=list(topics.values()))


def _proposal(
    topic_id: TopicId, partition: m.AlterPartitionRequest.PartitionData, api_version: int
) -> IsrProposal:
    if api_version < _FIRST_VERSION_WITH_EPOCHS:
        members = dict.fromkeys(map(BrokerId, partition.new_isr), -1)
    else:
        members = {
            BrokerId(each.broker_id): each.broker_epoch for each in partition.new_isr_with_epochs
        }
    return IsrProposal(
        topic_id,
        partition.partition_index,
        LeaderEpoch(partition.leader_epoch),
        partition.partition_epoch,
        tuple(members),
        members,
        partition.leader_recovery_state == _RECOVERING,
    )


def _answer(
    proposal: IsrProposal, answer: PartitionState | Rejected
) -> m.AlterPartitionResponse.PartitionData:
    data = m.AlterPartitionResponse.PartitionData
    if isinstance(answer, Rejected):
        return data(partition_index=proposal.partition, error_code=answer.code)
    return data(
        partition_index=answer.partition,
        leader_id=answer.leader,
        leader_epoch=answer.leader_epoch,
        isr=list(answer.isr),
        partition_epoch=answer.partition_epoch,
    )


async def controlled_shutdown(
    broker: Needs, context: Context, request: m.ControlledShutdownRequest
) -> m.ControlledShutdownResponse:
    response = m.ControlledShutdownResponse
    try:
        remaining = await broker.member_controller.shut_down(
            BrokerId(request.broker_id), request.broker_epoch
        )
    except Rejected as refusal:
        if refusal.code != ErrorCode.NOT_CONTROLLER:
            raise
        # Kafka 3.9 has no other code for this answer.
        return response(error_code=ErrorCode.STALE_CONTROLLER_EPOCH)
    return response(
        remaining_partitions=[
            response.RemainingPartition(topic_name=topic, partition_index=partition)
            for topic, partition in remaining
        ]
    )


async def allocate_producer_ids(
    broker: Needs, context: Context, request: m.AllocateProducerIdsRequest
) -> m.AllocateProducerIdsResponse:
    ids = await broker.member_controller.allocate_producer_ids(
        BrokerId(request.broker_id), request.broker_epoch
    )
    return m.AllocateProducerIdsResponse(producer_id_start=ids.start, producer_id_len=len(ids))
