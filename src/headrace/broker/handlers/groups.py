"""The group APIs: what the versions say differently, around the answers of the group's shard.

A shard speaks the newest version of each message. Here requests of older versions are brought to
that shape, answers to the asker's, and failures of the whole request to the place where each API
has room for them.
"""

import asyncio
import os
from collections.abc import Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any

from headrace.broker.context import Context
from headrace.broker.handlers.metadata import NOT_ASKED
from headrace.core.groups import offset_commit as commits
from headrace.core.groups import offset_deletion
from headrace.core.groups import offset_fetch as fetches
from headrace.core.groups.offset_commit import FIRST_COMMIT_WITH_TOPIC_IDS, Commit, take_commits
from headrace.core.groups.shard import GroupShard
from headrace.core.outcome import Outcome, RequestContext, Ticket
from headrace.model.errors import ErrorCode, Rejected
from headrace.model.ids import Millis
from headrace.wire import messages as m
from headrace.wire.schema import Message

if TYPE_CHECKING:
    from headrace.broker.services import Services

# An answer, or the coroutine that will have it: dispatch takes either.
Answer = Message | Coroutine[Any, Any, Message]
Decide = Callable[[GroupShard, Ticket, Millis], Outcome]

# Read, delete, describe, describe and alter its settings: all that can be done to a group.
GROUP_OPERATIONS = 1 << 3 | 1 << 6 | 1 << 8 | 1 << 10 | 1 << 11

_FIRST_JOIN_WITH_NULL_PROTOCOL = 7
_FIRST_SYNC_WITH_PROTOCOL = 5
_FIRST_LEAVE_WITH_MEMBERS = 3
_FIRST_FETCH_WITH_GROUPS = 8
_FIRST_FETCH_WITH_TOPIC_IDS = 10
_FIRST_FETCH_WITH_ERROR = 2
_TOO_LARGE = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE})


def join_group(broker: "Services", context: Context, request: m.JoinGroupRequest) -> Answer:
    def refuse(refusal: Rejected) -> Message:
        return shaped(
            m.JoinGroupResponse(error_code=code_told(refusal.code), member_id=request.member_id)
        )

    def shaped(answer: Message) -> Message:
        assert isinstance(answer, m.JoinGroupResponse)
        if answer.error_code and context.api_version >= _FIRST_JOIN_WITH_NULL_PROTOCOL:
            answer.protocol_name = None
        return answer

    if not request.group_id:
        return refuse(Rejected(ErrorCode.INVALID_GROUP_ID))
    asker = asker_of(context)
    drawn_id = draw_id()
    return ask_shard(
        broker,
        request.group_id,
        lambda shard, ticket, now: shard.join(ticket, asker, request, drawn_id, now),
        refuse,
        shaped,
    )


def sync_group(broker: "Services", context: Context, request: m.SyncGroupRequest) -> Answer:
    def refuse(refusal: Rejected) -> Message:
        code = code_told(refusal.code)
        if code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            # As Kafka: the member has to join again anyway once the group is loaded.
            code = ErrorCode.REBALANCE_IN_PROGRESS
        return m.SyncGroupResponse(error_code=code)

    if context.api_version >= _FIRST_SYNC_WITH_PROTOCOL and (
        request.protocol_type is None or request.protocol_name is None
    ):
        return refuse(Rejected(ErrorCode.INCONSISTENT_GROUP_PROTOCOL))
    if not request.group_id:
        return refuse(Rejected(ErrorCode.INVALID_GROUP_ID))
    asker = asker_of(context)
    return ask_shard(
        broker,
        request.group_id,
        lambda shard, ticket, now: shard.sync(ticket, asker, request, now),
        refuse,
    )


def heartbeat(broker: "Services", context: Context, request: m.HeartbeatRequest) -> Answer:
    def refuse(refusal: Rejected) -> Message:
        code = code_told(refusal.code)
        if code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            # It will be looked at when the group is there; sessions begin anew then.
            code = ErrorCode.NONE
        return m.HeartbeatResponse(error_code=code)

    if not request.group_id:
        return refuse(Rejected(ErrorCode.INVALID_GROUP_ID))
    asker = asker_of(context)
    return ask_shard(
        broker,
        request.group_id,
        lambda shard, ticket, now: shard.heartbeat(ticket, asker, request, now),
        refuse,
    )


def leave_group(broker: "Services", context: Context, request: m.LeaveGroupRequest) -> Answer:
    def refuse(refusal: Rejected) -> Message:
        return m.LeaveGroupResponse(error_code=code_told(refusal.code))

    def shaped(answer: Message) -> Message:
        assert isinstance(answer, m.LeaveGroupResponse)
        if not answer.error_code and context.api_version < _FIRST_LEAVE_WITH_MEMBERS:
            answer.error_code = answer.members[0].error_code
        return answer

    if not request.group_id:
        return refuse(Rejected(ErrorCode.INVALID_GROUP_ID))
    if context.api_version < _FIRST_LEAVE_WITH_MEMBERS:
        request.members = [m.LeaveGroupRequest.MemberIdentity(member_id=request.member_id)]
    asker = asker_of(context)
    return ask_shard(
        broker,
        request.group_id,
        lambda shard, ticket, now: shard.leave(ticket, asker, request, now),
        refuse,
        shaped,
    )


# Offsets. The empty group id is fine here: consumers without a group used it (Kafka 0.8).


def offset_commit(broker: "Services", context: Context, request: m.OffsetCommitRequest) -> Answer:
    def refuse(refusal: Rejected) -> Message:
        code = code_told(refusal.code)
        if refusal.code in _TOO_LARGE:
            code = ErrorCode.INVALID_COMMIT_OFFSET_SIZE
        response = m.OffsetCommitResponse()
        by_topic_id = context.api_version >= FIRST_COMMIT_WITH_TOPIC_IDS
        commit = Commit(request.group_id, broker.metadata, by_topic_id, code, 0, -1, Millis(0))
        take_commits(commit, request, response, None)
        return response

    asker = asker_of(context)
    return ask_shard(
        broker,
        request.group_id,
        lambda shard, ticket, now: commits.commit(shard, ticket, asker, request, now),
        refuse,
    )


def offset_fetch(broker: "Services", context: Context, request: m.OffsetFetchRequest) -> Answer:
    wanted = request.groups
    many = context.api_version >= _FIRST_FETCH_WITH_GROUPS
    if not many:
        wanted = [_as_group(request)]
    by_topic_id = context.api_version >= _FIRST_FETCH_WITH_TOPIC_IDS

    def ask(group: m.OffsetFetchRequest.OffsetFetchRequestGroup) -> Answer:
        return ask_shard(
            broker,
            group.group_id,
            lambda shard, ticket, now: fetches.fetch(
                shard, ticket, group, require_stable=request.require_stable, by_topic_id=by_topic_id
            ),
            lambda refusal: m.OffsetFetchResponse.OffsetFetchResponseGroup(
                group_id=group.group_id, error_code=code_told(refusal.code)
            ),
        )

    def finish(groups: list[Any]) -> Message:
        if many:
            return m.OffsetFetchResponse(groups=groups)
        return _ungrouped(groups[0], wanted[0], context.api_version)

    return gather((ask(group) for group in wanted), finish)


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
    """The answer of a version that asks for one group."""
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
        # Version 1 has no place for it but the partitions.
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


def offset_delete(broker: "Services", context: Context, request: m.OffsetDeleteRequest) -> Answer:
    def refuse(refusal: Rejected) -> Message:
        return m.OffsetDeleteResponse(error_code=code_told(refusal.code))

    if not request.group_id:
        return refuse(Rejected(ErrorCode.INVALID_GROUP_ID))
    return ask_shard(
        broker,
        request.group_id,
        lambda shard, ticket, now: offset_deletion.delete(shard, ticket, request, now),
        refuse,
    )


# Many groups at once.


def describe_groups(
    broker: "Services", context: Context, request: m.DescribeGroupsRequest
) -> Answer:
    asker = asker_of(context)

    def ask(group_id: str) -> Answer:
        return ask_shard(
            broker,
            group_id,
            lambda shard, ticket, now: shard.describe(ticket, asker, group_id, now),
            lambda refusal: m.DescribeGroupsResponse.DescribedGroup(
                group_id=group_id, error_code=code_told(refusal.code)
            ),
        )

    def finish(groups: list[Any]) -> Message:
        operations = GROUP_OPERATIONS if request.include_authorized_operations else NOT_ASKED
        for group in groups:
            if group.error_code == ErrorCode.NONE:
                group.authorized_operations = operations
        return m.DescribeGroupsResponse(groups=groups)

    return gather((ask(group_id) for group_id in request.groups), finish)


def list_groups(broker: "Services", context: Context, request: m.ListGroupsRequest) -> Answer:
    if broker.groups.is_loading():
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
            for partition in broker.groups.loaded_partitions()
        ),
        finish,
    )


def delete_groups(broker: "Services", context: Context, request: m.DeleteGroupsRequest) -> Answer:
    def ask(group_id: str) -> Answer:
        return ask_shard(
            broker,
            group_id,
            lambda shard, ticket, now: shard.delete_group(ticket, group_id, now),
            lambda refusal: m.DeleteGroupsResponse.DeletableGroupResult(
                group_id=group_id, error_code=code_told(refusal.code)
            ),
        )

    # One named twice is deleted once and told so once.
    names = dict.fromkeys(request.groups_names)
    return gather(
        (ask(group_id) for group_id in names),
        lambda results: m.DeleteGroupsResponse(results=results),
    )


# How shards are asked.


def asker_of(context: Context) -> RequestContext:
    # Hosts are kept as Java prints an address, which is how Kafka's tools expect them.
    return RequestContext(context.client_id or "", f"/{context.client_host}", context.api_version)


def draw_id() -> str:
    """A random UUID; importing the module of that name would cost more than this."""
    raw = bytearray(os.urandom(16))
    raw[6] = raw[6] & 0x0F | 0x40
    raw[8] = raw[8] & 0x3F | 0x80
    text = raw.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def code_told(code: ErrorCode) -> ErrorCode:
    """What a client of a group is told where it cannot do anything about the cause."""
    return ErrorCode.UNKNOWN_SERVER_ERROR if code in _TOO_LARGE else code


def ask_shard(
    broker: "Services",
    group_id: str,
    decide: Decide,
    refuse: Callable[[Rejected], Message],
    shaped: Callable[[Message], Message] | None = None,
    is_large: Callable[[GroupShard], bool] | None = None,
) -> Answer:
    """Ask the group's shard; ``refuse`` puts a failure into words, ``shaped`` trims an answer."""
    try:
        answer = broker.groups.ask(group_id, decide, is_large)
    except Rejected as refusal:
        return refuse(refusal)
    if isinstance(answer, asyncio.Future):
        return _settle(answer, refuse, shaped)
    return shaped(answer) if shaped is not None else answer


async def _settle(
    pending: "asyncio.Future[Message]",
    refuse: Callable[[Rejected], Message],
    shaped: Callable[[Message], Message] | None,
) -> Message:
    try:
        answer = await pending
    except Rejected as refusal:
        return refuse(refusal)
    return shaped(answer) if shaped is not None else answer


def gather(answers: Iterable[Answer], finish: Callable[[list[Any]], Message]) -> Answer:
    """All answers in order, then ``finish``; at once unless one of them has to wait."""
    collected = list(answers)
    if all(isinstance(answer, Message) for answer in collected):
        return finish(collected)
    return _gather_later(collected, finish)


async def _gather_later(answers: list[Answer], finish: Callable[[list[Any]], Message]) -> Message:
    return finish([answer if isinstance(answer, Message) else await answer for answer in answers])
