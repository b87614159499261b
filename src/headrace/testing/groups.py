"""One consumer group as a test sees it: wait until it is stable, read its lag, disturb it.

All of it uses Kafka requests, so it works with a broker in a thread or in a child process, and with
groups of the classic and of the new protocol (KIP-848).
"""

import time
from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeVar

from headrace.client.blocking import Connection
from headrace.model.errors import ErrorCode, PeerBroken, Rejected
from headrace.wire import messages as m
from headrace.wire.schema import Message, decoder

Partition = tuple[str, int]  # topic and number
Answer = TypeVar("Answer", bound=Message)
# A test with one thread polls its consumer in this callback.
WhileWaiting = Callable[[], object]

_CLIENT_ID = "headrace-testing"
_ANSWER_TIMEOUT_S = 10.0
_LOOK_AGAIN_S = 0.02
_SESSION_MS = 10_000
_GROUP_COORDINATOR = 0
_LATEST, _EARLIEST = -1, -2
_LEAVE_EPOCH = -1
_ASSIGNMENT_VERSION_MAX = 3
# The coordinator is being created or loaded; it will answer in a moment.
_NOT_YET = {
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
}


class Member(NamedTuple):
    member_id: str
    instance_id: str | None
    client_id: str
    assignment: tuple[Partition, ...]


class _Described(NamedTuple):
    state: str
    members: tuple[Member, ...]
    # The response of the group's protocol; None for the other protocol.
    modern: m.ConsumerGroupDescribeResponse.DescribedGroup | None
    classic: m.DescribeGroupsResponse.DescribedGroup | None


class Group:
    """One group of a running broker; made by ``Broker.group``."""

    def __init__(self, host: str, port: int, name: str) -> None:
        self.name = name
        self._address = (host, port)

    def state(self) -> str:
        """``Stable``, ``Empty``, ``Dead`` (there is no such group), or a state in between."""
        return self._describe().state

    def members(self) -> list[Member]:
        return list(self._describe().members)

    def wait_until_stable(
        self,
        members: int | None = None,
        *,
        while_waiting: WhileWaiting | None = None,
        timeout_s: float = 30,
    ) -> list[Member]:
        """Wait until every member has its partitions, and until there are ``members`` of them.

        Clients take part in a rebalance while they are polled. If no other thread polls them,
        ``while_waiting`` must: ``while_waiting=lambda: consumer.poll(0)``.
        """
        for described in self._looks(while_waiting, timeout_s):
            if described.state == "Stable" and members in (None, len(described.members)):
                return list(described.members)
        raise TimeoutError(
            f"the group {self.name} is {described.state} with {len(described.members)} members "
            f"after {timeout_s} s; are they being polled?"
        )

    # --- lag -----------------------------------------------------------------

    def lag(self) -> int:
        """Records that the group has not committed yet, over all its partitions."""
        return sum(self.lag_by_partition().values())

    def lag_by_partition(self) -> dict[Partition, int]:
        """The lag of each partition that has a committed offset or is assigned to a member.

        Without a committed offset, all records of the partition count.
        """
        committed = self._committed()
        assigned = {one for member in self.members() for one in member.assignment}
        partitions = sorted(committed.keys() | assigned)
        ends = self._offsets(partitions, _LATEST)
        starts = self._offsets([one for one in partitions if one not in committed], _EARLIEST)
        return {one: ends[one] - (committed | starts)[one] for one in partitions}

    def _committed(self) -> dict[Partition, int]:
        request = m.OffsetFetchRequest(group_id=self.name, topics=None)
        answer = self._ask(7, request, m.OffsetFetchResponse)
        _check(answer.error_code)
        return {
            (topic.name, one.partition_index): one.committed_offset
            for topic in answer.topics
            for one in topic.partitions
            if one.committed_offset >= 0
        }

    def _offsets(self, partitions: list[Partition], timestamp: int) -> dict[Partition, int]:
        kind = m.ListOffsetsRequest
        request = kind(
            replica_id=-1,
            topics=[
                kind.ListOffsetsTopic(
                    name=topic,
                    partitions=[
                        kind.ListOffsetsPartition(partition_index=number, timestamp=timestamp)
                    ],
                )
                for topic, number in partitions
            ],
        )
        answer = self._ask(2, request, m.ListOffsetsResponse)
        found = {}
        for topic in answer.topics:
            for one in topic.partitions:
                _check(one.error_code)
                found[topic.name, one.partition_index] = one.offset
        return found

    # --- disturbances --------------------------------------------------------

    def expire(self, member_id: str) -> None:
        """Remove a member as if its session had timed out; the member does not know.

        Its next heartbeat or commit is refused. The other members get its partitions.
        """
        described = self._describe()
        instances = {one.member_id: one.instance_id for one in described.members}
        if member_id not in instances:
            raise LookupError(f"{member_id} is not a member of {self.name}: {sorted(instances)}")
        self._remove(described, member_id, instances[member_id])

    def rebalance(
        self, *, while_waiting: WhileWaiting | None = None, timeout_s: float = 30
    ) -> list[Member]:
        """Cause a rebalance; return when the group is stable again.

        A guest joins and leaves. In the classic protocol every member joins again. In the new
        protocol only the partitions of the guest move, and move back. ValueError if no member can
        give one up, because each has only one.
        """
        self.wait_until_stable(while_waiting=while_waiting, timeout_s=timeout_s)
        described = self._describe()
        count = len(described.members)
        if described.modern is not None:
            self._visit_modern(described.modern, while_waiting, timeout_s)
        else:
            assert described.classic is not None
            self._visit_classic(described.classic, while_waiting, timeout_s)
        return self.wait_until_stable(count, while_waiting=while_waiting, timeout_s=timeout_s)

    def _visit_classic(
        self,
        group: m.DescribeGroupsResponse.DescribedGroup,
        while_waiting: WhileWaiting | None,
        timeout_s: float,
    ) -> None:
        kind = m.JoinGroupRequest
        join = kind(
            group_id=self.name,
            session_timeout_ms=_SESSION_MS,
            rebalance_timeout_ms=_SESSION_MS,
            protocol_type=group.protocol_type,
            protocols=[
                kind.JoinGroupRequestProtocol(
                    name=group.protocol_data, metadata=group.members[0].member_metadata
                )
            ],
        )
        # With version 3 the guest is a member at once, without asking for an ID first. The
        # response comes when all others have joined; the guest leaves before that.
        with self._connect() as connection:
            connection.send(join, api_version=3)
            for described in self._looks(while_waiting, timeout_s):
                for member in described.members:
                    if member.client_id == _CLIENT_ID:
                        self._remove(described, member.member_id, None)
                        return
        raise TimeoutError(f"no guest could join the group {self.name} within {timeout_s} s")

    def _visit_modern(
        self,
        group: m.ConsumerGroupDescribeResponse.DescribedGroup,
        while_waiting: WhileWaiting | None,
        timeout_s: float,
    ) -> None:
        topics = {
            topic.topic_name
            for member in group.members
            for topic in member.assignment.topic_partitions
        }
        guest = f"guest-{time.monotonic_ns()}"
        epoch = self._beat(guest, 0, sorted(topics))
        try:
            for described in self._looks(while_waiting, timeout_s):
                assert described.modern is not None
                (own,) = (one for one in described.modern.members if one.member_id == guest)
                if own.assignment.topic_partitions:
                    return
                is_planned = described.modern.assignment_epoch >= described.modern.group_epoch
                if is_planned and not own.target_assignment.topic_partitions:
                    raise ValueError(
                        f"{self.name} has no partition to move; give its topics more of them"
                    )
                epoch = self._beat(guest, epoch)
            raise TimeoutError(
                f"no member of {self.name} gave up a partition within {timeout_s} s; are its "
                "members being polled?"
            )
        finally:
            self._beat(guest, _LEAVE_EPOCH)

    def _beat(
        self,
        member_id: str,
        member_epoch: int,
        topics: list[str] | None = None,
        instance_id: str | None = None,
    ) -> int:
        joins = topics is not None
        request = m.ConsumerGroupHeartbeatRequest(
            group_id=self.name,
            member_id=member_id,
            member_epoch=member_epoch,
            instance_id=instance_id,
            rebalance_timeout_ms=_SESSION_MS if joins else -1,
            subscribed_topic_names=topics,
            topic_partitions=[] if joins else None,
        )
        answer = self._ask(0, request, m.ConsumerGroupHeartbeatResponse)
        _check(answer.error_code, answer.error_message)
        return answer.member_epoch

    def _remove(self, described: _Described, member_id: str, instance_id: str | None) -> None:
        """Leave in the name of a member, which has the same effect as the end of its session."""
        if described.modern is not None:
            self._beat(member_id, _LEAVE_EPOCH, instance_id=instance_id)
            return
        kind = m.LeaveGroupRequest
        request = kind(
            group_id=self.name,
            members=[kind.MemberIdentity(member_id=member_id, group_instance_id=instance_id)],
        )
        answer = self._ask(4, request, m.LeaveGroupResponse)
        _check(answer.error_code or answer.members[0].error_code)

    # --- requests ------------------------------------------------------------

    def _looks(self, while_waiting: WhileWaiting | None, timeout_s: float) -> Iterator[_Described]:
        """Describe the group repeatedly until the time is over, at least once."""
        give_up_at = time.monotonic() + timeout_s
        while True:
            yield self._describe()
            if time.monotonic() >= give_up_at:
                return
            if while_waiting is not None:
                while_waiting()
            time.sleep(_LOOK_AGAIN_S)

    def _describe(self) -> _Described:
        give_up_at = time.monotonic() + _ANSWER_TIMEOUT_S
        while True:
            try:
                return self._describe_once()
            except Rejected as refusal:
                if refusal.code not in _NOT_YET or time.monotonic() >= give_up_at:
                    raise
            # This request makes the broker create the coordinators' internal topic.
            find = m.FindCoordinatorRequest(
                key_type=_GROUP_COORDINATOR, coordinator_keys=[self.name]
            )
            self._ask(4, find, m.FindCoordinatorResponse)
            time.sleep(_LOOK_AGAIN_S)

    def _describe_once(self) -> _Described:
        (modern,) = self._ask(
            0,
            m.ConsumerGroupDescribeRequest(group_ids=[self.name]),
            m.ConsumerGroupDescribeResponse,
        ).groups
        if modern.error_code != ErrorCode.GROUP_ID_NOT_FOUND:
            _check(modern.error_code, modern.error_message)
            return _Described(modern.group_state, tuple(_modern_members(modern)), modern, None)
        (classic,) = self._ask(
            5,
            m.DescribeGroupsRequest(groups=[self.name]),
            m.DescribeGroupsResponse,
        ).groups
        _check(classic.error_code)
        return _Described(classic.group_state, tuple(_classic_members(classic)), None, classic)

    def _connect(self) -> Connection:
        return Connection(
            *self._address, client_id=_CLIENT_ID, versions={}, timeout_s=_ANSWER_TIMEOUT_S
        )

    def _ask(self, api_version: int, request: Message, answer_class: type[Answer]) -> Answer:
        with self._connect() as connection:
            return connection.request(request, answer_class, api_version=api_version)


def _modern_members(group: m.ConsumerGroupDescribeResponse.DescribedGroup) -> Iterator[Member]:
    for member in group.members:
        assignment = tuple(
            (topic.topic_name, number)
            for topic in member.assignment.topic_partitions
            for number in topic.partitions
        )
        yield Member(member.member_id, member.instance_id, member.client_id, assignment)


def _classic_members(group: m.DescribeGroupsResponse.DescribedGroup) -> Iterator[Member]:
    for member in group.members:
        assignment = tuple(_classic_assignment(bytes(member.member_assignment)))
        yield Member(member.member_id, member.group_instance_id, member.client_id, assignment)


def _classic_assignment(data: bytes) -> Iterator[Partition]:
    """Nothing for members that are not consumers and have their own format."""
    if len(data) < 2:
        return
    version = min(int.from_bytes(data[:2], "big", signed=True), _ASSIGNMENT_VERSION_MAX)
    try:
        decode = decoder(m.ConsumerProtocolAssignment, version)
        assignment, _ = decode(data, 2, len(data))
    except (PeerBroken, LookupError):
        return
    for topic in assignment.assigned_partitions:
        for number in topic.partitions:
            yield topic.topic, number


def _check(error_code: int, message: str | None = None) -> None:
    if error_code:
        raise Rejected(ErrorCode(error_code), message or "")
