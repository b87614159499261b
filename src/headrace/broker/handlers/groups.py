"""The group APIs: differences between versions, around the responses of the group's shard.

A shard only knows the newest version of each message. These handlers translate requests of older
versions into that form, responses back into the client's version, and the rejection of a whole
request into the API's error field.
"""

from functools import lru_cache
from typing import Any, Protocol

from headrace.broker.context import Context
from headrace.broker.handlers.coordinator_requests import (
    TOO_LARGE,
    Answer,
    ask,
    gather,
    reported_code,
)
from headrace.broker.handlers.metadata import NOT_ASKED
from headrace.broker.needs import NeedsGroups, NeedsMetadata, NeedsWorld
from headrace.broker.random_ids import draw_member_id
from headrace.core.groups import offset_commit as commits
from headrace.core.groups import offset_deletion
from headrace.core.groups import offset_fetch as fetches
from headrace.core.groups.group import CommitOptions, JoinOptions
from headrace.core.outcome import RequestContext
from headrace.model.errors import ErrorCode, Rejected
from headrace.model.ids import Millis
from headrace.wire import messages as m
from headrace.wire.schema import Message, encoder

# All operations on a group: read, delete, describe, describe its settings, alter its settings.
GROUP_OPERATIONS = 1 << 3 | 1 << 6 | 1 << 8 | 1 << 10 | 1 << 11

_FIRST_JOIN_WITH_REQUIRED_ID = 4
_FIRST_JOIN_WITH_NULL_PROTOCOL = 7
_FIRST_JOIN_WITH_SKIP_ASSIGNMENT = 9
_FIRST_SYNC_WITH_PROTOCOL = 5
_FIRST_LEAVE_WITH_MEMBERS = 3
_FIRST_COMMIT_WITH_MEMBER_EPOCH = 9
_FIRST_COMMIT_WITH_TOPIC_IDS = 10
_FIRST_FETCH_WITH_ERROR = 2
_FIRST_FETCH_WITH_GROUPS = 8
_FIRST_FETCH_WITH_TOPIC_IDS = 10
_FIRST_DESCRIBE_WITH_NOT_FOUND = 6


class Needs(NeedsGroups, NeedsMetadata, NeedsWorld, Protocol):
    """What these handlers use of the broker."""


def join_group(broker: Needs, context: Context, request: m.JoinGroupRequest) -> Answer:
    def refuse(refusal: Rejected) -> Message:
        return shape(
            m.JoinGroupResponse(error_code=reported_code(refusal.code), member_id=request.member_id)
        )

    def shape(answer: m.JoinGroupResponse) -> Message:
        if answer.error_code and context.api_version >= _FIRST_JOIN_WITH_NULL_PROTOCOL:
            answer.protocol_name = None
        return answer

    if not request.group_id:
        return refuse(Rejected(ErrorCode.INVALID_GROUP_ID))
    client = request_context(context)
    options = join_options(context.api_version)
    drawn_id = draw_member_id(broker.world.random)
    return ask(
        broker.groups.ask,
        request.group_id,
        lambda shard, ticket, now: shard.join(ticket, client, request, options, drawn_id, now),
        refuse,
        shape,
    )


def sync_group(broker: Needs, context: Context, request: m.SyncGroupRequest) -> Answer:
    def refuse(refusal: Rejected) -> Message:
        code = reported_code(refusal.code)
        if code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            # As in Kafka: the member has to join again anyway once the group is loaded.
            code = ErrorCode.REBALANCE_IN_PROGRESS
        return m.SyncGroupResponse(error_code=code)

    if context.api_version >= _FIRST_SYNC_WITH_PROTOCOL and (
        request.protocol_type is None or request.protocol_name is None
    ):
        return refuse(Rejected(ErrorCode.INCONSISTENT_GROUP_PROTOCOL))
    if not request.group_id:
        return refuse(Rejected(ErrorCode.INVALID_GROUP_ID))
    return ask(
        broker.groups.ask,
        request.group_id,
        lambda shard, ticket, now: shard.sync(ticket, request, now),
        refuse,
    )


def heartbeat(broker: Needs, context: Context, request: m.HeartbeatRequest) -> Answer:
    def refuse(refusal: Rejected) -> Message:
        code = reported_code(refusal.code)
        if code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            # The next heartbeat is checked when the group is loaded; sessions restart then.
            code = ErrorCode.NONE
        return m.HeartbeatResponse(error_code=code)

    if not request.group_id:
        return refuse(Rejected(ErrorCode.INVALID_GROUP_ID))
    return ask(
        broker.groups.ask,
        request.group_id,
        lambda shard, ticket, now: shard.heartbeat(ticket, request, now),
        refuse,
    )


def leave_group(broker: Needs, context: Context, request: m.LeaveGroupRequest) -> Answer:
    def refuse(refusal: Rejected) -> Message:
        return m.LeaveGroupResponse(error_code=reported_code(refusal.code))

    def shape(answer: m.LeaveGroupResponse) -> Message:
        if not answer.error_code and context.api_version < _FIRST_LEAVE_WITH_MEMBERS:
            answer.error_code = answer.members[0].error_code
        return answer

    if not request.group_id:
        return refuse(Rejected(ErrorCode.INVALID_GROUP_ID))
    if context.api_version < _FIRST_LEAVE_WITH_MEMBERS:
        request.members = [m.LeaveGroupRequest.MemberIdentity(member_id=request.member_id)]
    return ask(
        broker.groups.ask,
        request.group_id,
        lambda shard, ticket, now: shard.leave(ticket, request, now),
        refuse,
        shape,
    )


# Offsets. They accept an empty group id: consumers without a group used it (Kafka 0.8).


def offset_commit(broker: Needs, context: Context, request: m.OffsetCommitRequest) -> Answer:
    def refuse(refusal: Rejected) -> Message:
        code = reported_code(refusal.code)
        if refusal.code in TOO_LARGE:
            code = ErrorCode.INVALID_COMMIT_OFFSET_SIZE
        response = m.OffsetCommitResponse()
        terms = commits.Commit(
            request.group_id, broker.metadata, options.by_topic_id, code, 0, -1, Millis(0)
        )
        commits.take_commits(terms, request, response, None)
        return response

    options = commit_options(context.api_version)
    return ask(
        broker.groups.ask,
        request.group_id,
        lambda shard, ticket, now: commits.commit(shard, ticket, request, options, now),
        refuse,
    )


def offset_fetch(broker: Needs, context: Context, request: m.OffsetFetchRequest) -> Answer:
    wanted = request.groups
    many = context.api_version >= _FIRST_FETCH_WITH_GROUPS
    if not many:
        wanted = [_as_group(request)]
    by_topic_id = context.api_version >= _FIRST_FETCH_WITH_TOPIC_IDS

    def ask_for(group: m.OffsetFetchRequest.OffsetFetchRequestGroup) -> Answer:
        return ask(
            broker.groups.ask,
            group.group_id,
            lambda shard, ticket, now: fetches.fetch(
                shard, ticket, group, require_stable=request.require_stable, by_topic_id=by_topic_id
            ),
            lambda refusal: m.OffsetFetchResponse.OffsetFetchResponseGroup(
                group_id=group.group_id, error_code=reported_code(refusal.code)
            ),
        )

    def finish(groups: list[Any]) -> Message:
        if many:
            return m.OffsetFetchResponse(groups=groups)
        return _ungrouped(groups[0], wanted[0], context.api_version)

    return gather((ask_for(group) for group in wanted), finish)


def _as_group(
    request: m.OffsetFetchRequest,
) -> m.OffsetFetchRequest.OffsetFetchRequestGroup:
    topics = None
    if request.topics is not None:
        topics = [
            m.OffsetFetchRequest.OffsetFetchRequestTopics(
                name=topic.name, partition_indexes=topic.partition_indexes
            )
            for topic in request.topics
        ]
    return m.OffsetFetchRequest.OffsetFetchRequestGroup(group_id=request.group_id, topics=topics)


def _ungrouped(
    answer: m.OffsetFetchResponse.OffsetFetchResponseGroup,
    wanted: m.OffsetFetchRequest.OffsetFetchRequestGroup,
    api_version: int,
) -> m.OffsetFetchResponse:
    """The response of a version that asks for one group."""
    response = m.OffsetFetchResponse(error_code=answer.error_code)
    for topic in answer.topics:
        response.topics.append(
            response.OffsetFetchResponseTopic(
                name=topic.name,
                partitions=[
                    response.OffsetFetchResponsePartition(
                        partition_index=partition.partition_index,
                        committed_offset=partition.committed_offset,
                        committed_leader_epoch=partition.committed_leader_epoch,
                        metadata=partition.metadata,
                        error_code=partition.error_code,
                    )
                    for partition in topic.partitions
                ],
            )
        )
    if answer.error_code and api_version < _FIRST_FETCH_WITH_ERROR:
        # Version 1 has error fields in its partitions only.
        for asked in wanted.topics or ():
            response.topics.append(
                response.OffsetFetchResponseTopic(
                    name=asked.name,
                    partitions=[
                        response.OffsetFetchResponsePartition(
                            partition_index=partition,
                            committed_offset=-1,
                            metadata="",
                            error_code=answer.error_code,
                        )
                        for partition in asked.partition_indexes
                    ],
                )
            )
    return response


def offset_delete(broker: Needs, context: Context, request: m.OffsetDeleteRequest) -> Answer:
    def refuse(refusal: Rejected) -> Message:
        return m.OffsetDeleteResponse(error_code=reported_code(refusal.code))

    if not request.group_id:
        return refuse(Rejected(ErrorCode.INVALID_GROUP_ID))
    return ask(
        broker.groups.ask,
        request.group_id,
        lambda shard, ticket, now: offset_deletion.delete(shard, ticket, request, now),
        refuse,
    )


# Several groups at once.


def describe_groups(broker: Needs, context: Context, request: m.DescribeGroupsRequest) -> Answer:
    def shape(group: m.DescribeGroupsResponse.DescribedGroup) -> Message:
        if (
            group.error_code == ErrorCode.GROUP_ID_NOT_FOUND
            and context.api_version < _FIRST_DESCRIBE_WITH_NOT_FOUND
        ):
            # KIP-1043: up to here an unknown group was described as dead, without an error.
            group.error_code, group.error_message = ErrorCode.NONE, None
        return group

    def ask_for(group_id: str) -> Answer:
        return ask(
            broker.groups.ask,
            group_id,
            lambda shard, ticket, now: shard.describe(ticket, group_id, now),
            lambda refusal: m.DescribeGroupsResponse.DescribedGroup(
                group_id=group_id, error_code=reported_code(refusal.code)
            ),
            shape,
        )

    def finish(groups: list[Any]) -> Message:
        operations = GROUP_OPERATIONS if request.include_authorized_operations else NOT_ASKED
        for group in groups:
            if group.error_code == ErrorCode.NONE:
                group.authorized_operations = operations
        return m.DescribeGroupsResponse(groups=groups)

    return gather((ask_for(group_id) for group_id in request.groups), finish)


def list_groups(broker: Needs, context: Context, request: m.ListGroupsRequest) -> Answer:
    if broker.groups.shards.is_loading():
        raise Rejected(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    states = frozenset(state.lower() for state in request.states_filter)
    kinds = frozenset(kind.lower() for kind in request.types_filter)

    def finish(answers: list[Any]) -> Message:
        return m.ListGroupsResponse(groups=[group for part in answers for group in part.groups])

    return gather(
        (
            broker.groups.ask_partition(
                partition,
                lambda shard, ticket, now: shard.list_groups(ticket, states, kinds, now),
            )
            for partition in broker.groups.shards.loaded_partitions()
        ),
        finish,
    )


def delete_groups(broker: Needs, context: Context, request: m.DeleteGroupsRequest) -> Answer:
    def ask_for(group_id: str) -> Answer:
        return ask(
            broker.groups.ask,
            group_id,
            lambda shard, ticket, now: shard.delete_group(ticket, group_id, now),
            lambda refusal: m.DeleteGroupsResponse.DeletableGroupResult(
                group_id=group_id, error_code=reported_code(refusal.code)
            ),
        )

    # A group that appears twice is deleted once, and the response has it once.
    names = dict.fromkeys(request.groups_names)
    return gather(
        (ask_for(group_id) for group_id in names),
        lambda results: m.DeleteGroupsResponse(results=results),
    )


def join_options(api_version: int) -> JoinOptions:
    return JoinOptions(
        requires_known_member=api_version >= _FIRST_JOIN_WITH_REQUIRED_ID,
        supports_skip_assignment=api_version >= _FIRST_JOIN_WITH_SKIP_ASSIGNMENT,
    )


@lru_cache
def commit_options(api_version: int) -> CommitOptions:
    """One object per version, so that commits with the same options can be compared by identity."""
    return CommitOptions(
        by_topic_id=api_version >= _FIRST_COMMIT_WITH_TOPIC_IDS,
        supports_member_epoch=api_version >= _FIRST_COMMIT_WITH_MEMBER_EPOCH,
        encode_response=encoder(m.OffsetCommitResponse, api_version),
    )


def request_context(context: Context) -> RequestContext:
    # Hosts are stored as Java prints an address, because Kafka's tools expect that.
    return RequestContext(context.client_id or "", f"/{context.client_host}")
