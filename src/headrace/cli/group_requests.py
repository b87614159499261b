"""Requests to a group's coordinator, for classic and for consumer groups."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException

from headrace.cli import values
from headrace.cli.broker_requests import ask, group_coordinator
from headrace.cli.client import ANSWER_TIMEOUT_S, Connection, code_name
from headrace.cli.output import CommandFailed
from headrace.cli.partitions import Partition
from headrace.core.topics import OFFSETS_TOPIC
from headrace.model.errors import ErrorCode, PeerBroken
from headrace.wire import messages as m
from headrace.wire import schema

_DESCRIBE_GROUPS_VERSION = 5
_ASSIGNMENT_VERSION_MAX = 3


class Member(NamedTuple):
    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    assignment: tuple[Partition, ...]


class Described(NamedTuple):
    state: str
    members: tuple[Member, ...]


def describe(connection: Connection, group: str) -> Described:
    """As ``find``; CommandFailed if the group does not exist."""
    found = find(connection, group)
    if found is None:
        raise CommandFailed(no_such_group(connection, group))
    return found


def no_such_group(connection: Connection, group: str) -> str:
    """What every command says about a group that does not exist."""
    return (
        f"group {group} does not exist at {connection.bootstrap}; "
        "'headrace groups list' lists the groups"
    )


def has_members(connection: Connection, group: str) -> str:
    """What every command says about a group that must have no members."""
    members: tuple[Member, ...] = ()
    with suppress(CommandFailed):  # only the number would be missing
        described = find(connection, group)
        members = described.members if described is not None else ()
    count = values.counted(len(members), "member") if members else "members"
    return f"group {group} has {count}; stop its consumers first"


def can_have_groups(connection: Connection) -> bool:
    """Whether ``__consumer_offsets`` exists. Asking for a coordinator would create the topic."""
    return OFFSETS_TOPIC in connection.metadata().topics


def find(connection: Connection, group: str) -> Described | None:
    """The group, of the consumer or the classic protocol; None if it does not exist."""
    if not can_have_groups(connection):
        return None
    address = group_coordinator(connection, group)
    answer = ask(
        connection,
        address,
        0,
        m.ConsumerGroupDescribeRequest(group_ids=[group]),
        m.ConsumerGroupDescribeResponse,
    )
    (modern,) = answer.groups
    if modern.error_code == ErrorCode.NONE:
        return Described(modern.group_state, tuple(map(_modern_member, modern.members)))
    if modern.error_code != ErrorCode.GROUP_ID_NOT_FOUND:
        raise CommandFailed(f"{group}: {modern.error_message or code_name(modern.error_code)}")
    classic_answer = ask(
        connection,
        address,
        _DESCRIBE_GROUPS_VERSION,
        m.DescribeGroupsRequest(groups=[group]),
        m.DescribeGroupsResponse,
    )
    (classic,) = classic_answer.groups
    if classic.error_code:
        raise CommandFailed(f"{group}: {code_name(classic.error_code)}")
    if classic.group_state == "Dead":
        return None
    return Described(classic.group_state, tuple(map(_classic_member, classic.members)))


def _modern_member(member: Any) -> Member:
    return Member(
        member.member_id,
        member.instance_id,
        member.client_id,
        member.client_host,
        tuple(
            (topic.topic_name, partition)
            for topic in member.assignment.topic_partitions
            for partition in topic.partitions
        ),
    )


def _classic_member(member: Any) -> Member:
    return Member(
        member.member_id,
        member.group_instance_id,
        member.client_id,
        member.client_host,
        tuple(_assignment(bytes(member.member_assignment))),
    )


def _assignment(data: bytes) -> Iterator[Partition]:
    """The partitions that a classic leader assigned; empty for protocols other than consumers'."""
    if len(data) < 2:
        return
    version = min(int.from_bytes(data[:2], "big", signed=True), _ASSIGNMENT_VERSION_MAX)
    try:
        decode = schema.decoder(m.ConsumerProtocolAssignment, version)
        assignment, _ = decode(data, 2, len(data))
    except (PeerBroken, LookupError):
        return
    for topic in assignment.assigned_partitions:
        for partition in topic.partitions:
            yield topic.topic, partition


def committed(connection: Connection, group: str) -> dict[Partition, int]:
    """The committed offset of each partition that has one."""
    if not can_have_groups(connection):
        return {}
    doing = f"offsets of group {group}"
    (future,) = (
        connection.admin()
        .list_consumer_group_offsets(
            [ConsumerGroupTopicPartitions(group)], request_timeout=ANSWER_TIMEOUT_S
        )
        .values()
    )
    try:
        answer = connection.answer(future, doing)
    except KafkaException as failure:
        raise connection.failed(failure, doing) from None
    return {
        (one.topic, one.partition): one.offset for one in answer.topic_partitions if one.offset >= 0
    }


def delete_offsets(
    connection: Connection, group: str, partitions: Sequence[Partition]
) -> list[tuple[Partition, str | None]]:
    """Each partition with the error that kept its offset, or None."""
    request = m.OffsetDeleteRequest
    by_topic: dict[str, list[int]] = {}
    for topic, partition in partitions:
        by_topic.setdefault(topic, []).append(partition)
    if not can_have_groups(connection):
        raise CommandFailed(no_such_group(connection, group))
    address = group_coordinator(connection, group)
    answer = ask(
        connection,
        address,
        0,
        request(
            group_id=group,
            topics=[
                request.OffsetDeleteRequestTopic(
                    name=topic,
                    partitions=[
                        request.OffsetDeleteRequestPartition(partition_index=number)
                        for number in numbers
                    ],
                )
                for topic, numbers in by_topic.items()
            ],
        ),
        m.OffsetDeleteResponse,
    )
    if answer.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
        raise CommandFailed(no_such_group(connection, group))
    if answer.error_code:
        raise CommandFailed(f"{group}: {code_name(answer.error_code)}")
    return [
        (
            (topic.name, one.partition_index),
            code_name(one.error_code) if one.error_code else None,
        )
        for topic in answer.topics
        for one in topic.partitions
    ]
