"""A consumer group as a test sees it: wait until it is stable, read its lag, disturb it.

All of it goes over the wire. So it works with a broker on a thread and in a child process, and
with groups of the classic and of the consumer protocol (KIP-848).
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
# Called between two looks at the group. A test with one thread polls its consumer here.
WhileWaiting = Callable[[], object]

_CLIENT_ID = "headrace-testing"
_ANSWER_TIMEOUT_S = 10.0
_POLL_INTERVAL_S = 0.02
_SESSION_MS = 10_000
_GROUP_COORDINATOR = 0
_LATEST, _EARLIEST = -1, -2
_LEAVE_EPOCH = -1
_ASSIGNMENT_VERSION_MAX = 3
# The coordinator is being created or loaded. It will answer soon.
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
    # The group in its own protocol; the other one is None.
    consumer: m.ConsumerGroupDescribeResponse.DescribedGroup | None
    classic: m.DescribeGroupsResponse.DescribedGroup | None


class Group:
    """One group of a running broker, from ``Broker.group``."""

    def __init__(self, host: str, port: int, name: str) -> None:
        self.name = name
        self._address = (host, port)

    def state(self) -> str:
        """Kafka's name of the state: ``Stable``, ``Empty``, ``Dead`` if there is no such group."""
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

        A client takes part in a rebalance only while it is polled. If no other thread polls it,
        pass ``while_waiting=lambda: consumer.poll(0)``.
        """
        for described in self._descriptions(while_waiting, timeout_s):
            if described.state == "Stable" and members in (None, len(described.members)):
                return list(described.members)
        raise TimeoutError(
            f"the group {self.name} is {described.state} with {len(described.members)} members "
            f"after {timeout_s} s; are they being polled?"
        )

    # --- lag -----------------------------------------------------------------

    def lag(self) -> int | None:
        """The number of records that the group has not committed, over all its partitions.

        None if it is not known: the group has no partitions, or a partition holds records and
        the group has not committed an offset in it. An empty partition adds nothing.
        """
        lags = self.lag_by_partition()
        uncommitted = [partition for partition, lag in lags.items() if lag is None]
        if not lags or self._offsets(uncommitted, _EARLIEST) != self._offsets(uncommitted, _LATEST):
            return None
        return sum(lag for lag in lags.values() if lag is not None)

    def lag_by_partition(self) -> dict[Partition, int | None]:
        """The lag of each partition that has a committed offset or a member.

        As in Kafka's tools, the lag is not known (None) where the group has not committed.
        """
        committed = self._committed()
        assigned = {partition for member in self.members() for partition in member.assignment}
        ends = self._offsets(sorted(committed), _LATEST)
        return {
            partition: ends[partition] - committed[partition] if partition in committed else None
            for partition in sorted(committed.keys() | assigned)
        }

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
        """Make the coordinator remove a member, as if its session had timed out.

        The member does not know. Its next heartbeat or commit is refused, and the other members
        get its partitions.
        """
        described = self._describe()
        instances = {one.member_id: one.instance_id for one in described.members}
        if member_id not in instances:
            raise LookupError(
                f"{member_id} is not a member of {self.name}; its members are {sorted(instances)}"
            )
        self._remove(described, member_id, instances[member_id])

    def rebalance(
        self, *, while_waiting: WhileWaiting | None = None, timeout_s: float = 30
    ) -> list[Member]:
        """Force a rebalance, and wait until the group is stable again.

        A guest joins and leaves. In the classic protocol every member joins again. In the consumer
        protocol only the partitions of the guest move, and move back. Raises ValueError if there
        is none to move: no member has more than one.
        """
        self.wait_until_stable(while_waiting=while_waiting, timeout_s=timeout_s)
        described = self._describe()
        count = len(described.members)
        if described.consumer is not None:
            self._visit_consumer(described.consumer, while_waiting, timeout_s)
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
        # With version 3 the guest is a member at once and need not ask for a member ID first. The
        # answer comes when all others have joined. The guest leaves without waiting for it.
        with self._connect() as connection:
            connection.send(join, api_version=3)
            for described in self._descriptions(while_waiting, timeout_s):
                for member in described.members:
                    if member.client_id == _CLIENT_ID:
                        self._remove(described, member.member_id, None)
                        return
        raise TimeoutError(f"could not join the group {self.name} within {timeout_s} s")

    def _visit_consumer(
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
        epoch = self._heartbeat(guest, 0, sorted(topics))
        try:
            for described in self._descriptions(while_waiting, timeout_s):
                assert described.consumer is not None
                (own,) = (one for one in described.consumer.members if one.member_id == guest)
                if own.assignment.topic_partitions:
                    return
                is_planned = described.consumer.assignment_epoch >= described.consumer.group_epoch
                if is_planned and not own.target_assignment.topic_partitions:
                    raise ValueError(
                        f"the group {self.name} has no partition to move; "
                        "give its topics more partitions than it has members"
                    )
                epoch = self._heartbeat(guest, epoch)
            raise TimeoutError(
                f"no member of {self.name} gave up a partition within {timeout_s} s; are its "
                "members being polled?"
            )
        finally:
            self._heartbeat(guest, _LEAVE_EPOCH)

    def _heartbeat(
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
        """Leave in the name of a member, which the group treats like an expired session."""
        if described.consumer is not None:
            self._heartbeat(member_id, _LEAVE_EPOCH, instance_id=instance_id)
            return
        kind = m.LeaveGroupRequest
        request = kind(
            group_id=self.name,
            members=[kind.MemberIdentity(member_id=member_id, group_instance_id=instance_id)],
        )
        answer = self._ask(4, request, m.LeaveGroupResponse)
        _check(answer.error_code or answer.members[0].error_code)

    # --- requests ------------------------------------------------------------

    def _descriptions(
        self, while_waiting: WhileWaiting | None, timeout_s: float
    ) -> Iterator[_Described]:
        """Describe the group repeatedly until the time is over, at least once."""
        give_up_at = time.monotonic() + timeout_s
        while True:
            yield self._describe()
            if time.monotonic() >= give_up_at:
                return
            if while_waiting is not None:
                while_waiting()
            time.sleep(_POLL_INTERVAL_S)

    def _describe(self) -> _Described:
        give_up_at = time.monotonic() + _ANSWER_TIMEOUT_S
        while True:
            try:
                return self._describe_once()
            except Rejected as refusal:
                if refusal.code not in _NOT_YET or time.monotonic() >= give_up_at:
                    raise
            # This request makes the broker create the internal topic of the coordinators.
            find = m.FindCoordinatorRequest(
                key_type=_GROUP_COORDINATOR, coordinator_keys=[self.name]
            )
            self._ask(4, find, m.FindCoordinatorResponse)
            time.sleep(_POLL_INTERVAL_S)

    def _describe_once(self) -> _Described:
        (consumer,) = self._ask(
            0,
            m.ConsumerGroupDescribeRequest(group_ids=[self.name]),
            m.ConsumerGroupDescribeResponse,
        ).groups
        if consumer.error_code != ErrorCode.GROUP_ID_NOT_FOUND:
            _check(consumer.error_code, consumer.error_message)
            return _Described(
                consumer.group_state, tuple(_consumer_members(consumer)), consumer, None
            )
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


def _consumer_members(group: m.ConsumerGroupDescribeResponse.DescribedGroup) -> Iterator[Member]:
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
    """Empty for members that are not consumers and encode their assignment in another way."""
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
