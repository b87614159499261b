"""A member of a classic consumer group: it joins, reads its partitions, commits, and comes back."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

from headrace.client.errors import Disconnected, Refused
from headrace.model.errors import ErrorCode
from headrace.model.ids import TopicPartition
from headrace.wire import messages as m
from tests.history.history import History, Ownership
from tests.sim.clients.consumers import Fetcher
from tests.sim.clients.session import GROUP, ClientSession, refuse

_JOIN_VERSION = 5
_SYNC_VERSION = 3
_HEARTBEAT_VERSION = 3
_OFFSET_FETCH_VERSION = 7
_LEAVE_VERSION = 2

_OUT_OF_GENERATION = (
    ErrorCode.REBALANCE_IN_PROGRESS,
    ErrorCode.ILLEGAL_GENERATION,
)


class GroupMember:
    """Eager rebalances: it gives up all partitions before it joins again.

    After a commit without an answer it joins as a new member. The coordinator then refuses that
    commit if it is still on its way, so committed positions only grow.
    """

    commit_version = 7

    def __init__(
        self,
        session: ClientSession,
        history: History,
        group: str,
        places: Sequence[TopicPartition],
        session_timeout_s: float,
    ) -> None:
        self.session = session
        self.commit_count = 0
        self._history = history
        self._group = group
        self._places = list(places)
        self._session_timeout_s = session_timeout_s
        self._member_id = ""
        self._generation = -1
        self._ownership: Ownership | None = None
        self._fetchers: dict[TopicPartition, Fetcher] = {}
        self._stopping = False
        self._last_commit: Any = None  # a request that may arrive again in the next generation

    def stop(self) -> None:
        self._stopping = True

    async def run(self, pause_s: float) -> None:
        attempt = 0
        while not self._stopping:
            try:
                if self._ownership is None:
                    await self._join()
                await self._work()
                attempt = 0
            except Disconnected:
                self.session.forget()
            except Refused as refused:
                self._refused(refused)
            if attempt:
                await self.session.pause(attempt)
            attempt += 1
            await asyncio.sleep(self.session.dice.uniform(0, 2 * pause_s))
        await self._leave()
        await self.session.close()

    def _refused(self, refused: Refused) -> None:
        if refused.code in _OUT_OF_GENERATION:
            self._ownership = None
        elif refused.code is ErrorCode.UNKNOWN_MEMBER_ID:
            self._forget_membership()
        elif refused.retriable:
            self.session.forget()
        else:
            self._history.expect_nothing_of(f"{self.session.name}: {refused}")
            self._forget_membership()

    def _forget_membership(self) -> None:
        self._member_id = ""
        self._ownership = None

    async def _ask(self, request: Any, kind: Any, version: int, timeout_s: float = 0) -> Any:
        coordinator = await self.session.coordinator(GROUP, self._group)
        return await self.session.ask(coordinator, request, kind, version, timeout_s or None)

    # --- joining

    async def _join(self) -> None:
        kind = m.JoinGroupRequest
        request = kind(
            group_id=self._group,
            session_timeout_ms=int(self._session_timeout_s * 1000),
            rebalance_timeout_ms=int(self._session_timeout_s * 1000),
            member_id=self._member_id,
            protocol_type="consumer",
            protocols=[kind.JoinGroupRequestProtocol(name="range", metadata=b"")],
        )
        patience_s = 3 * self._session_timeout_s
        joined = await self._ask(request, m.JoinGroupResponse, _JOIN_VERSION, patience_s)
        if joined.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self._member_id = request.member_id = joined.member_id
            joined = await self._ask(request, m.JoinGroupResponse, _JOIN_VERSION, patience_s)
        refuse(joined.error_code, f"JoinGroup of {self._member_id!r}")
        self._member_id, self._generation = joined.member_id, joined.generation_id
        sync = m.SyncGroupRequest(
            group_id=self._group, generation_id=self._generation, member_id=self._member_id
        )
        if joined.leader == joined.member_id:
            sync.assignments = self._assignments([member.member_id for member in joined.members])
        synced = await self._ask(sync, m.SyncGroupResponse, _SYNC_VERSION, patience_s)
        refuse(synced.error_code, f"SyncGroup of {self._member_id!r}")
        await self._assigned([self._places[number] for number in json.loads(synced.assignment)])

    def _assignments(self, members: list[str]) -> list[Any]:
        kind = m.SyncGroupRequest.SyncGroupRequestAssignment
        numbers = range(len(self._places))
        return [
            kind(
                member_id=member,
                assignment=json.dumps([n for n in numbers if n % len(members) == own]).encode(),
            )
            for own, member in enumerate(sorted(members))
        ]

    async def _assigned(self, places: list[TopicPartition]) -> None:
        session = self.session
        ownership = self._history.own(
            self._group, self._member_id, self._generation, places, session.now
        )
        self._fetchers = {}
        asked_at = session.now
        offsets = await self._committed(places)
        for place, offset in offsets.items():
            self._history.answer_committed(self._group, place, offset, asked_at, session.now)
            self._fetchers[place] = Fetcher(session, self._history, place, position=max(offset, 0))
        self._ownership = ownership

    async def _committed(self, places: list[TopicPartition]) -> dict[TopicPartition, int]:
        if not places:
            return {}
        kind = m.OffsetFetchRequest
        topics = [
            kind.OffsetFetchRequestTopic(name=place.topic, partition_indexes=[place.partition])
            for place in places
        ]
        request = kind(group_id=self._group, topics=topics, require_stable=True)
        response = await self._ask(request, m.OffsetFetchResponse, _OFFSET_FETCH_VERSION)
        refuse(response.error_code, "OffsetFetch")
        found = {}
        for topic in response.topics:
            for partition in topic.partitions:
                refuse(partition.error_code, "OffsetFetch")
                place = TopicPartition(topic.name, partition.partition_index)
                found[place] = partition.committed_offset
        return found

    # --- working

    async def _work(self) -> None:
        """Heartbeat, fetch, and sometimes commit."""
        asked_at = self.session.now
        beat = m.HeartbeatRequest(
            group_id=self._group, generation_id=self._generation, member_id=self._member_id
        )
        response = await self._ask(beat, m.HeartbeatResponse, _HEARTBEAT_VERSION)
        refuse(response.error_code, "Heartbeat")
        self._accepted(asked_at)
        await self._fetch_and_commit()

    async def _fetch_and_commit(self) -> None:
        for fetcher in self._fetchers.values():
            await fetcher.fetch(max_wait_ms=10)
        if self._fetchers and self.session.dice.random() < 0.5:
            await self._commit()

    def _accepted(self, asked_at: float) -> None:
        assert self._ownership is not None
        self._ownership.until = max(self._ownership.until, asked_at)

    async def _commit(self) -> None:
        kind = m.OffsetCommitRequest
        asked_at = self.session.now
        positions = {place: fetcher.position for place, fetcher in self._fetchers.items()}
        request = kind(
            group_id=self._group,
            generation_id_or_member_epoch=self._generation,
            member_id=self._member_id,
            topics=[
                kind.OffsetCommitRequestTopic(
                    name=place.topic,
                    partitions=[
                        kind.OffsetCommitRequestPartition(
                            partition_index=place.partition, committed_offset=position
                        )
                    ],
                )
                for place, position in positions.items()
            ],
        )
        await self._send_late_commit()
        self._last_commit = request
        try:
            response = await self._ask(request, m.OffsetCommitResponse, self.commit_version)
        except Disconnected:
            self._forget_membership()
            raise
        codes = [p.error_code for topic in response.topics for p in topic.partitions]
        if any(code and code not in _OUT_OF_GENERATION for code in codes):
            self._forget_membership()  # it may have been written
        for code in codes:
            refuse(code, "OffsetCommit")
        self._accepted(asked_at)
        self.commit_count += 1
        for place, position in positions.items():
            self._history.commit(self._group, place, position, self.session.now)

    async def _send_late_commit(self) -> None:
        """A copy of a commit of an earlier generation arrives now. The coordinator refuses it."""
        late, self._last_commit = self._last_commit, None
        if late is None or late.generation_id_or_member_epoch == self._generation:
            return
        response = await self._ask(late, m.OffsetCommitResponse, self.commit_version)
        if not all(p.error_code for topic in response.topics for p in topic.partitions):
            self._history.expect_nothing_of(
                f"{self.session.name}: a commit of generation {late.generation_id_or_member_epoch} "
                f"was accepted in generation {self._generation}"
            )

    async def _leave(self) -> None:
        if not self._member_id:
            return
        request = m.LeaveGroupRequest(group_id=self._group, member_id=self._member_id)
        try:
            await self._ask(request, m.LeaveGroupResponse, _LEAVE_VERSION)
        except (Disconnected, Refused):
            return
