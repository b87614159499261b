"""A member of a consumer group of the new protocol (KIP-848): the coordinator assigns."""

import contextlib
from typing import Any

from headrace.client.errors import Disconnected, Refused
from headrace.model.errors import ErrorCode
from headrace.model.ids import TopicPartition
from headrace.wire import messages as m
from tests.sim.clients.groups import GroupMember
from tests.sim.clients.session import refuse

_HEARTBEAT_VERSION = 1
_JOINING, _LEAVING = 0, -1  # instead of a member epoch


class ConsumerGroupMember(GroupMember):
    """It gives up what it owns when the coordinator says so, and acknowledges that.

    ``generation`` of the classic protocol is the member epoch here. A member that was fenced, or
    does not know the outcome of a commit, joins under another id.
    """

    commit_version = 9
    _join_count = 0
    _topic_id = bytes(16)  # of the only topic

    def _refused(self, refused: Refused) -> None:
        if refused.code is ErrorCode.FENCED_MEMBER_EPOCH:
            self._forget_membership()
        elif refused.code is not ErrorCode.STALE_MEMBER_EPOCH:  # the next heartbeat has the new one
            super()._refused(refused)

    async def _join(self) -> None:
        self._join_count += 1
        self._member_id, self._generation = f"{self.session.name}-{self._join_count}", _JOINING
        await self._assigned([])
        await self._beat()

    async def _work(self) -> None:
        await self._beat()
        await self._fetch_and_commit()

    async def _beat(self) -> None:
        """Say what is owned here, and take what is assigned."""
        asked_at, joins = self.session.now, self._generation == _JOINING
        owned = [place.partition for place in self._fetchers]
        kind = m.ConsumerGroupHeartbeatRequest
        request = kind(
            group_id=self._group,
            member_id=self._member_id,
            member_epoch=self._generation,
            rebalance_timeout_ms=int(self._session_timeout_s * 1000),
            subscribed_topic_names=[self._places[0].topic] if joins else None,
            topic_partitions=[kind.TopicPartitions(topic_id=self._topic_id, partitions=owned)]
            if owned
            else [],
        )
        response = await self._heartbeat(request)
        self._generation = response.member_epoch
        self._accepted(asked_at)
        if response.assignment is None:
            return
        assigned = []
        for topic in response.assignment.topic_partitions:
            self._topic_id = topic.topic_id
            assigned += [self._places[number] for number in topic.partitions]
        if set(assigned) != set(self._fetchers):
            await self._take(assigned)

    async def _take(self, assigned: list[TopicPartition]) -> None:
        self._ownership = None  # until the committed offsets are known
        await self._assigned(sorted(assigned))

    async def _heartbeat(self, request: Any) -> Any:
        response = await self._ask(request, m.ConsumerGroupHeartbeatResponse, _HEARTBEAT_VERSION)
        refuse(response.error_code, f"ConsumerGroupHeartbeat of {self._member_id!r}")
        return response

    async def _send_late_commit(self) -> None:
        # While it owns the partitions, a member may commit with an earlier epoch (KIP-1251). One
        # that this client gave up is a member until it leaves, or until its session expires.
        late = self._last_commit
        if late is not None and late.member_id != self._member_id:
            try:
                await self._leave_as(late.member_id)
            except Refused as refused:
                if refused.code is not ErrorCode.UNKNOWN_MEMBER_ID:
                    return
            await super()._send_late_commit()

    async def _leave(self) -> None:
        with contextlib.suppress(Disconnected, Refused):
            await self._leave_as(self._member_id)

    async def _leave_as(self, member_id: str) -> None:
        request = m.ConsumerGroupHeartbeatRequest(
            group_id=self._group, member_id=member_id, member_epoch=_LEAVING
        )
        await self._heartbeat(request)
