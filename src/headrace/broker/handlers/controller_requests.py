"""LeaderAndIsr, UpdateMetadata and StopReplica: what the controller tells the brokers.

One request is applied at a time, also while an old and a new controller both send some; epochs
decide whether it is obeyed (``core.controller_fencing``). Large requests pause regularly, so that
clients are served meanwhile.
"""

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Protocol

from headrace.broker.context import Context
from headrace.broker.metadata.updates import LEADER_DURING_DELETE, removed_topics
from headrace.broker.needs import (
    NeedsConfig,
    NeedsGroups,
    NeedsLogDirs,
    NeedsMembership,
    NeedsMetadata,
    NeedsReplicas,
    NeedsTransactions,
    NeedsWaiting,
)
from headrace.coordination.tree import SessionLost
from headrace.core.topics import is_internal
from headrace.model.cluster_metadata import PartitionState
from headrace.model.errors import ErrorCode
from headrace.model.ids import (
    NO_LEADER_EPOCH,
    BrokerId,
    LeaderEpoch,
    TopicId,
    TopicPartition,
)
from headrace.model.settings.resources import ResourceType
from headrace.wire import messages as m

if TYPE_CHECKING:
    from headrace.broker.replication.replica import Replica

_PARTITIONS_PER_TURN = 32  # created or deleted in a few milliseconds


class Needs(
    NeedsConfig,
    NeedsGroups,
    NeedsLogDirs,
    NeedsMembership,
    NeedsMetadata,
    NeedsReplicas,
    NeedsTransactions,
    NeedsWaiting,
    Protocol,
):
    """What these handlers use of the broker."""


_Topic = m.LeaderAndIsrRequest.LeaderAndIsrTopicState
_Partition = m.LeaderAndIsrRequest.LeaderAndIsrPartitionState
_TopicError = m.LeaderAndIsrResponse.LeaderAndIsrTopicError
_PartitionError = m.LeaderAndIsrResponse.LeaderAndIsrPartitionError


# --- LeaderAndIsr


async def leader_and_isr(
    broker: Needs, context: Context, request: m.LeaderAndIsrRequest
) -> m.LeaderAndIsrResponse:
    await _read_settings(broker, request)
    async with broker.membership.applying:
        refusal = await broker.membership.check_controller(
            request.controller_epoch, request.broker_epoch, is_kraft=request.is_k_raft_controller
        )
        if refusal is not ErrorCode.NONE:
            return _all_refused(request, refusal)
        created = _created_here(broker, request)
        broker.member_directories.place(list(created.values()))
        topics = []
        applied_count = 0
        for topic in request.topic_states:
            errors = []
            for partition in topic.partition_states:
                state = _state(topic, partition)
                is_new = state.topic_partition in created
                code = broker.replicas.lead_or_follow(state, is_new=is_new)
                errors.append(
                    _PartitionError(partition_index=partition.partition_index, error_code=code)
                )
                applied_count += 1
                if applied_count % _PARTITIONS_PER_TURN == 0:
                    broker.waiting.serve()
                    await asyncio.sleep(0)
            topics.append(_TopicError(topic_id=topic.topic_id, partition_errors=errors))
        _roles_changed(broker, [topic.topic_name for topic in request.topic_states])
        if broker.logs.unfinished_moves:
            broker.moves.resume()
    return m.LeaderAndIsrResponse(topics=topics)


async def _read_settings(broker: Needs, request: m.LeaderAndIsrRequest) -> None:
    """Read the settings of new topics: they must hold from the first record on."""
    with suppress(SessionLost):  # the next session loads all settings
        for topic in request.topic_states:
            if any(
                each.is_new and broker.replicas.get(topic.topic_name, each.partition_index) is None
                for each in topic.partition_states
            ):
                await broker.dynamic_config.reload(ResourceType.TOPIC, topic.topic_name)


def _created_here(
    broker: Needs, request: m.LeaderAndIsrRequest
) -> dict[TopicPartition, PartitionState]:
    """The partitions that have no log here yet, and get one now."""
    directories = broker.member_directories
    created = {}
    for topic in request.topic_states:
        for partition in topic.partition_states:
            if broker.replicas.get(topic.topic_name, partition.partition_index) is not None:
                continue
            state = _state(topic, partition)
            topic_partition = state.topic_partition
            has_log = broker.logs.get(topic_partition) is not None
            if has_log or broker.logs.offline_reason(topic_partition) is not None:
                continue
            if (
                partition.is_new
                or (state.leader != broker.replicas.broker_id and directories.are_all_online)
                or directories.was_never_created(state)
            ):
                created[topic_partition] = state
    return created


def _all_refused(request: m.LeaderAndIsrRequest, code: ErrorCode) -> m.LeaderAndIsrResponse:
    return m.LeaderAndIsrResponse(
        error_code=code,
        topics=[
            _TopicError(
                topic_id=topic.topic_id,
                partition_errors=[
                    _PartitionError(partition_index=each.partition_index, error_code=code)
                    for each in topic.partition_states
                ],
            )
            for topic in request.topic_states
        ],
    )


def _state(topic: _Topic, partition: _Partition) -> PartitionState:
    return PartitionState(
        topic=topic.topic_name,
        partition=partition.partition_index,
        topic_id=TopicId(topic.topic_id),
        leader=BrokerId(partition.leader),
        leader_epoch=LeaderEpoch(partition.leader_epoch),
        isr=tuple(map(BrokerId, partition.isr)),
        replicas=tuple(map(BrokerId, partition.replicas)),
        partition_epoch=partition.partition_epoch,
        adding=tuple(map(BrokerId, partition.adding_replicas)),
        removing=tuple(map(BrokerId, partition.removing_replicas)),
    )


def _roles_changed(broker: Needs, topics: list[str]) -> None:
    """Tell the waiters of partitions, and load or drop the coordinators' shards."""
    broker.waiting.serve()
    if any(is_internal(topic) for topic in topics):
        broker.groups.shards.refresh()
        broker.transactions.shards.refresh()


# --- UpdateMetadata


async def update_metadata(
    broker: Needs, context: Context, request: m.UpdateMetadataRequest
) -> m.UpdateMetadataResponse:
    async with broker.membership.applying:
        refusal = await broker.membership.check_controller(
            request.controller_epoch, request.broker_epoch, is_kraft=request.is_k_raft_controller
        )
        if refusal is ErrorCode.NONE:
            before = broker.metadata_cache.current.brokers
            broker.metadata_cache.apply_update(request)
            if before.keys() <= broker.metadata_cache.current.brokers.keys():
                names = [topic.topic_name for topic in request.topic_states]
                changed = [each for name in names for each in broker.replicas.of_topic(name)]
                broker.replicas.live_brokers_changed(changed)
            else:
                broker.replicas.live_brokers_changed(broker.replicas.leading())
            _stop_unassigned(broker, request)
            for name in removed_topics(request):
                broker.dynamic_config.remember(ResourceType.TOPIC, name, {})
            broker.membership.metadata_received()
    return m.UpdateMetadataResponse(error_code=refusal)


def _stop_unassigned(broker: Needs, request: m.UpdateMetadataRequest) -> None:
    """Stop replicas that were reassigned, if no StopReplica came: the controller died before.

    Files are deleted only if the tree confirms it: Kafka's controller tells of the new replicas
    before it writes them, and may die in between.
    """
    for topic in request.topic_states:
        for each in topic.partition_states:
            replica = broker.replicas.get(topic.topic_name, each.partition_index)
            if (
                replica is not None
                and replica.topic_id == topic.topic_id
                and broker.replicas.broker_id not in each.replicas
                and (
                    each.leader_epoch > replica.partition.leader_epoch
                    or each.leader == LEADER_DURING_DELETE
                )
            ):
                # Without an epoch: the StopReplica of Kafka's controller may have an earlier one.
                broker.replicas.stop_replica(replica.topic_partition, NO_LEADER_EPOCH, delete=False)
                _roles_changed(broker, [topic.topic_name])
                broker.member_directories.delete_if_unassigned(
                    replica.topic_partition,
                    replica.topic_id,
                    partial(_delete_stopped, broker, replica, replica.partition.role),
                )


def _delete_stopped(broker: Needs, replica: "Replica", role: object) -> None:
    """Delete a stopped replica, unless it got another role or was deleted meanwhile."""
    if replica.partition.role is role and broker.replicas.get(*replica.topic_partition) is replica:
        broker.replicas.stop_replica(replica.topic_partition, NO_LEADER_EPOCH, delete=True)
        broker.waiting.serve()


# --- StopReplica


async def stop_replica(
    broker: Needs, context: Context, request: m.StopReplicaRequest
) -> m.StopReplicaResponse:
    response = m.StopReplicaResponse
    async with broker.membership.applying:
        refusal = await broker.membership.check_controller(
            request.controller_epoch, request.broker_epoch, is_kraft=request.is_k_raft_controller
        )
        if refusal is not ErrorCode.NONE:
            return response(error_code=refusal)
        errors = []
        topic_ids = _ids_of_hosted(broker, request)
        for stopped_count, (topic_partition, leader_epoch, delete) in enumerate(
            _to_stop(request), 1
        ):
            code = broker.replicas.stop_replica(topic_partition, leader_epoch, delete=delete)
            errors.append(
                response.StopReplicaPartitionError(
                    topic_name=topic_partition.topic,
                    partition_index=topic_partition.partition,
                    error_code=code,
                )
            )
            if stopped_count % _PARTITIONS_PER_TURN == 0:
                broker.waiting.serve()
                await asyncio.sleep(0)
        _roles_changed(broker, [topic.topic_name for topic in request.topic_states])
        _forget_directories(broker, request, topic_ids)
    return response(partition_errors=errors)


def _forget_directories(
    broker: Needs, request: m.StopReplicaRequest, topic_ids: dict[str, TopicId]
) -> None:
    directories = broker.member_directories
    directories.forget(
        {name: i for name, i in topic_ids.items() if not broker.replicas.of_topic(name)}
    )
    for topic in request.topic_states:
        deleted = {each.partition_index for each in topic.partition_states if each.delete_partition}
        if deleted and broker.replicas.of_topic(topic.topic_name):
            directories.left(topic.topic_name, topic_ids[topic.topic_name], deleted)


def _ids_of_hosted(broker: Needs, request: m.StopReplicaRequest) -> dict[str, TopicId]:
    return {
        topic.topic_name: hosted[0].topic_id
        for topic in request.topic_states
        if (hosted := broker.replicas.of_topic(topic.topic_name))
    }


def _to_stop(
    request: m.StopReplicaRequest,
) -> Iterator[tuple[TopicPartition, LeaderEpoch, bool]]:
    for topic in request.topic_states:
        for each in topic.partition_states:
            yield (
                TopicPartition(topic.topic_name, each.partition_index),
                LeaderEpoch(each.leader_epoch),
                each.delete_partition,
            )
