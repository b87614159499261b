"""Group members for the figures: one by one, or a hundred at once on one event loop.

They implement only what a group needs of both protocols: the one broker is every group's
coordinator, and a classic subscription is arbitrary bytes.
"""

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

from bench.client import CLIENT_ID, Client, framed, split
from bench.run import wait_until
from headrace.client.connection import Connection
from headrace.model.errors import ErrorCode
from headrace.wire import messages as m
from headrace.wire.api import ApiKey
from headrace.wire.session import parse_response

SESSION_MS = 300_000
_SUBSCRIPTION = bytes(30)
_ASSIGNMENT = bytes(30)
_JOIN_VERSION, _SYNC_VERSION, _HEARTBEAT_VERSION, _LEAVE_VERSION = 9, 5, 4, 5
_CONSUMER_VERSION = 1
_JOIN_LIMIT_S = 120
GROUP, TRANSACTION = 0, 1  # FindCoordinator's key types


class Membership(NamedTuple):
    group_id: str
    member_id: str
    generation: int  # or member epoch


def wait_for_coordinator(client: Client, key: str, key_type: int = GROUP) -> None:
    """Wait until there is one: the first request creates the internal topic."""
    request = m.FindCoordinatorRequest(key_type=key_type, coordinator_keys=[key])

    def is_there() -> bool:
        (found,) = client.ask(4, request).coordinators
        return bool(found.error_code == ErrorCode.NONE)

    wait_until(is_there, 60, f"a coordinator for {key}")


def wait_for_groups(address: str) -> None:
    """Wait until every partition of the internal topic has a coordinator."""
    probes = [f"probe-{number}" for number in range(500)]
    with Client(address) as client:
        wait_for_coordinator(client, probes[0])
        wait_for_offsets(client, probes)


def wait_for_offsets(client: Client, group_ids: Sequence[str]) -> tuple[float, Any]:
    """Wait for all offsets of these groups; return the perf_counter time and the offsets."""
    wanted = m.OffsetFetchRequest.OffsetFetchRequestGroup
    request = m.OffsetFetchRequest(
        groups=[wanted(group_id=group_id, topics=None) for group_id in group_ids]
    )
    frame = framed(8, request)
    answers: list[Any] = []
    received_at = 0.0

    def are_there() -> bool:
        nonlocal received_at
        answer = client.exchange(frame)
        # Before decoding: a hundred thousand offsets take this client some time.
        received_at = time.perf_counter()
        response = parse_response(answer, ApiKey.OFFSET_FETCH, 8)
        answers[:] = response.decode(m.OffsetFetchResponse).groups
        return all(group.error_code == ErrorCode.NONE for group in answers)

    wait_until(are_there, 60, "offsets of all groups")
    return received_at, answers


def _join_request(group_id: str, member_id: str) -> m.JoinGroupRequest:
    return m.JoinGroupRequest(
        group_id=group_id,
        session_timeout_ms=SESSION_MS,
        rebalance_timeout_ms=SESSION_MS,
        member_id=member_id,
        protocol_type="consumer",
        protocols=[
            m.JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=_SUBSCRIPTION)
        ],
    )


def _sync_request(group_id: str, joined: m.JoinGroupResponse) -> m.SyncGroupRequest:
    return m.SyncGroupRequest(
        group_id=group_id,
        generation_id=joined.generation_id,
        member_id=joined.member_id,
        protocol_type="consumer",
        protocol_name="range",
        assignments=[
            m.SyncGroupRequest.SyncGroupRequestAssignment(
                member_id=one.member_id, assignment=_ASSIGNMENT
            )
            for one in joined.members  # only the leader gets them
        ],
    )


def heartbeat_request(member: Membership) -> m.HeartbeatRequest:
    return m.HeartbeatRequest(
        group_id=member.group_id, generation_id=member.generation, member_id=member.member_id
    )


def consumer_heartbeat_request(member: Membership) -> m.ConsumerGroupHeartbeatRequest:
    """Nothing new, as most heartbeats of a member."""
    return m.ConsumerGroupHeartbeatRequest(
        group_id=member.group_id, member_id=member.member_id, member_epoch=member.generation
    )


async def _connected(address: str) -> Connection:
    return await Connection.open(
        *split(address), client_id=CLIENT_ID, versions={}, timeout_s=_JOIN_LIMIT_S
    )


class Gathering:
    """One group that becomes stable: what its members know of it."""

    def __init__(self, group_id: str, size: int, interval_ms: int, topic: str) -> None:
        self.group_id = group_id
        self.size = size
        self.interval_s = interval_ms / 1000
        self.topic = topic
        self.members: dict[str, int] = {}  # generation or epoch of each member with an assignment
        self.size_by_generation: dict[int, int] = {}  # as the leader saw it
        self.stable = asyncio.Event()
        self.stable_at = 0.0

    def settled(self, member_id: str, generation: int) -> None:
        self.members[member_id] = generation
        if (
            len(self.members) == self.size
            and len(set(self.members.values())) == 1
            and self.size_by_generation.get(generation, self.size) == self.size
            and not self.stable.is_set()
        ):
            self.stable_at = time.perf_counter()
            self.stable.set()

    def unsettled(self, member_id: str) -> None:
        self.members.pop(member_id, None)


Life = Callable[[Connection, Gathering], Awaitable[None]]


async def classic_life(link: Connection, group: Gathering) -> None:
    """Join, sync, heartbeat; join again at each rebalance. Until cancelled."""
    member_id = ""
    while True:
        request = _join_request(group.group_id, member_id)
        joined = await link.request(request, m.JoinGroupResponse, api_version=_JOIN_VERSION)
        member_id = joined.member_id
        if joined.error_code in (ErrorCode.MEMBER_ID_REQUIRED, ErrorCode.REBALANCE_IN_PROGRESS):
            continue
        _must_be_fine(joined)
        if joined.members:
            group.size_by_generation[joined.generation_id] = len(joined.members)
        synced = await link.request(
            _sync_request(group.group_id, joined), m.SyncGroupResponse, api_version=_SYNC_VERSION
        )
        if synced.error_code == ErrorCode.REBALANCE_IN_PROGRESS:
            continue
        _must_be_fine(synced)
        group.settled(member_id, joined.generation_id)
        beat = heartbeat_request(Membership(group.group_id, member_id, joined.generation_id))
        while True:
            await asyncio.sleep(group.interval_s)
            answer = await link.request(beat, m.HeartbeatResponse, api_version=_HEARTBEAT_VERSION)
            if answer.error_code == ErrorCode.REBALANCE_IN_PROGRESS:
                break
            _must_be_fine(answer)
        group.unsettled(member_id)


async def consumer_life(link: Connection, group: Gathering) -> None:
    """Heartbeat; confirm a change of the assignment at once."""
    member_id, member_epoch = str(uuid.uuid4()), 0
    beat = m.ConsumerGroupHeartbeatRequest
    request = beat(
        group_id=group.group_id,
        member_id=member_id,
        rebalance_timeout_ms=SESSION_MS,
        subscribed_topic_names=[group.topic],
        topic_partitions=[],
    )
    owned = 0
    while True:
        answer = await link.request(
            request, m.ConsumerGroupHeartbeatResponse, api_version=_CONSUMER_VERSION
        )
        _must_be_fine(answer)
        member_epoch = answer.member_epoch
        request = beat(group_id=group.group_id, member_id=member_id, member_epoch=member_epoch)
        if answer.assignment is not None:
            given = answer.assignment.topic_partitions
            owned = sum(len(topic.partitions) for topic in given)
            request.topic_partitions = [
                beat.TopicPartitions(topic_id=topic.topic_id, partitions=topic.partitions)
                for topic in given
            ]
        # As many partitions as members: a member with one has its final assignment.
        if owned == 1:
            group.settled(member_id, member_epoch)
        else:
            group.unsettled(member_id)
        if answer.assignment is None:
            await asyncio.sleep(answer.heartbeat_interval_ms / 1000)


def _must_be_fine(answer: Any) -> None:
    if answer.error_code != ErrorCode.NONE:
        raise ConnectionError(f"{type(answer).__name__}: {ErrorCode(answer.error_code).name}")


async def _gather(address: str, group: Gathering, live: Life) -> float:
    links = [await _connected(address) for _ in range(group.size)]
    started_at = time.perf_counter()
    lives = [asyncio.ensure_future(live(link, group)) for link in links]
    waiting = asyncio.ensure_future(group.stable.wait())
    try:
        await asyncio.wait(
            [waiting, *lives], timeout=_JOIN_LIMIT_S, return_when=asyncio.FIRST_COMPLETED
        )
        for one in lives:
            if one.done():
                one.result()  # raises its failure
        if not group.stable.is_set():
            raise TimeoutError(f"{group.group_id} was not stable after {_JOIN_LIMIT_S} s")
    finally:
        for one in (waiting, *lives):
            one.cancel()
        await asyncio.gather(waiting, *lives, return_exceptions=True)
        for link in links:
            await link.close()
    return group.stable_at - started_at


def seconds_until_stable(
    address: str, live: Life, *, group_id: str, size: int, interval_ms: int, topic: str
) -> tuple[float, list[Membership]]:
    """Let ``size`` members join at once; return the seconds until all have an assignment."""
    group: list[Gathering] = []

    async def gather() -> float:
        group.append(Gathering(group_id, size, interval_ms, topic))
        return await _gather(address, group[0], live)

    seconds = asyncio.run(gather())
    return seconds, [Membership(group_id, *one) for one in group[0].members.items()]


def leave(address: str, members: list[Membership], *, classic: bool) -> None:
    """All members leave, so that no session expires in a later round."""
    leaving = m.LeaveGroupRequest.MemberIdentity
    with Client(address) as client:
        if classic:
            request = m.LeaveGroupRequest(
                group_id=members[0].group_id,
                members=[leaving(member_id=one.member_id) for one in members],
            )
            _must_be_fine(client.ask(_LEAVE_VERSION, request))
            return
        for one in members:
            gone = consumer_heartbeat_request(one._replace(generation=-1))
            client.ask(_CONSUMER_VERSION, gone)
