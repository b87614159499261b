"""ISR proposals: AlterPartition requests to the controller, one in flight, later ones batched.

A leader may not change the ISR alone: the controller writes it, guarded by the partition's epoch.
Until a proposal is answered the leader counts both ISRs (``core.leadership``), so a proposal is
repeated until the controller, or its successor, answers it.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from headrace.broker.replication.waiting import Waiting
from headrace.client.errors import ClientError, error_code
from headrace.core.isr import IsrRefusal, refusal_of
from headrace.core.partition_effects import ProposeIsr
from headrace.model.cluster_metadata import NO_LEADER
from headrace.model.ids import BrokerId, TopicId
from headrace.wire import messages as m

if TYPE_CHECKING:
    from headrace.broker.metadata.cache import MetadataCache
    from headrace.broker.peers import Peer, Peers
    from headrace.broker.replication.effects import Effects
    from headrace.broker.replication.replica import Replica

_log = logging.getLogger("headrace.replication")

_VERSION = 3
_AGAIN_AFTER_S = 0.05
# How often to check whether there is another controller: one that is paused never answers.
_LOOK_AGAIN_S = 0.1


class IsrProposals:
    def __init__(
        self,
        broker_id: BrokerId,
        peers: "Peers",
        metadata: "MetadataCache",
        effects: "Effects",
        waiting: Waiting,
        broker_epoch: Callable[[], int],
        fail: Callable[[BaseException], None],
    ) -> None:
        self._broker_id = broker_id
        self._peers = peers
        self._metadata = metadata
        self._effects = effects
        self._waiting = waiting
        self._broker_epoch = broker_epoch
        self._fail = fail
        self._loop = asyncio.get_running_loop()
        self._pending: dict[Replica, ProposeIsr] = {}
        self._peer: Peer | None = None
        self._task: asyncio.Task[None] | None = None
        self._problem: str | None = None  # as last logged
        self._refused: dict[Replica, str] = {}  # as last logged

    def propose(self, replica: "Replica", proposal: ProposeIsr) -> None:
        """Send the proposal to the controller until it answers."""
        self._pending[replica] = proposal
        if self._task is None:
            self._task = self._loop.create_task(self._run())

    async def stop(self) -> None:
        self._pending.clear()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._peer is not None:
            await self._peer.close()

    async def _run(self) -> None:
        try:
            while self._pending:
                batch, self._pending = self._pending, {}
                await self._send(batch)
                self._waiting.serve()
                if self._pending.keys() & batch.keys():
                    await asyncio.sleep(_AGAIN_AFTER_S)
        except Exception as error:  # noqa: BLE001 - a bug while effects are applied
            self._fail(error)
        self._task = None

    async def _send(self, batch: dict["Replica", ProposeIsr]) -> None:
        answers: dict[tuple[TopicId, int], m.AlterPartitionResponse.PartitionData] = {}
        try:
            response = await self._ask_controller(self._request(batch))
        except ClientError as lost:
            self._report(str(lost))
        else:
            problem = error_code(response.error_code).name if response.error_code else None
            self._report(problem)
            answers = {
                (TopicId(bytes(topic.topic_id)), partition.partition_index): partition
                for topic in response.topics
                for partition in topic.partitions
            }
        for replica, proposal in batch.items():
            answer = answers.get((replica.topic_id, replica.topic_partition.partition))
            self._answered(replica, proposal, answer)

    def _report(self, problem: str | None) -> None:
        """Log once why proposals wait: they are sent again and again."""
        if problem is not None and problem != self._problem:
            _log.info("Could not propose ISR changes to the controller: %s. Retrying", problem)
        self._problem = problem

    async def _ask_controller(self, request: m.AlterPartitionRequest) -> m.AlterPartitionResponse:
        controller_id = self._metadata.current.controller_id
        if controller_id == NO_LEADER:
            raise ClientError("there is no controller")
        if self._peer is None or self._peer.broker_id != controller_id:
            await self._disconnect()
            self._peer = self._peers.peer(controller_id, str(self._broker_id), negotiates=True)
        asking = self._loop.create_task(
            self._peer.request(request, m.AlterPartitionResponse, api_version=_VERSION)
        )
        try:
            while not asking.done() and self._metadata.current.controller_id == controller_id:
                await asyncio.wait((asking,), timeout=_LOOK_AGAIN_S)
            if not asking.done():
                await self._disconnect()
            return await asking
        finally:
            asking.cancel()

    async def _disconnect(self) -> None:
        peer, self._peer = self._peer, None
        if peer is not None:
            await peer.close()

    def _request(self, batch: dict["Replica", ProposeIsr]) -> m.AlterPartitionRequest:
        request = m.AlterPartitionRequest
        own_epoch = self._broker_epoch()
        topics: dict[TopicId, list[m.AlterPartitionRequest.PartitionData]] = {}
        for replica, proposal in batch.items():
            members = [
                request.BrokerState(
                    broker_id=member.broker_id,
                    broker_epoch=own_epoch
                    if member.broker_id == self._broker_id
                    else member.broker_epoch,
                )
                for member in proposal.members
            ]
            data = request.PartitionData(
                partition_index=replica.topic_partition.partition,
                leader_epoch=proposal.leader_epoch,
                new_isr_with_epochs=members,
                partition_epoch=proposal.partition_epoch,
            )
            topics.setdefault(replica.topic_id, []).append(data)
        return request(
            broker_id=self._broker_id,
            broker_epoch=own_epoch,
            topics=[
                request.TopicData(topic_id=topic_id, partitions=partitions)
                for topic_id, partitions in topics.items()
            ],
        )

    def _answered(
        self,
        replica: "Replica",
        proposal: ProposeIsr,
        answer: m.AlterPartitionResponse.PartitionData | None,
    ) -> None:
        leadership = replica.leadership
        if leadership is None or replica.is_gone:
            self._refused.pop(replica, None)
            return
        now = self._loop.time() * 1000
        name = replica.topic_partition
        if answer is not None and not answer.error_code:
            if (answer.leader_id, answer.leader_epoch) != (self._broker_id, proposal.leader_epoch):
                return  # a new state is on its way
            isr = frozenset(map(BrokerId, answer.isr))
            before = leadership.isr
            effects = leadership.isr_confirmed(proposal, isr, answer.partition_epoch, now)
            self._refused.pop(replica, None)
            if leadership.isr != before:
                _log.info(
                    "ISR of %s changed from %s to %s", name, _text(before), _text(leadership.isr)
                )
        else:
            refusal = IsrRefusal.OUTCOME_UNKNOWN
            if answer is not None:
                code = error_code(answer.error_code)
                refusal = refusal_of(code)
                self._report_refused(replica, f"ISR {_text(proposal.isr)} of {name}: {code.name}")
            # After an unknown outcome the leadership makes the same proposal again.
            effects = leadership.isr_refused(proposal, refusal, now)
        self._effects.carry_out(replica, effects)

    def _report_refused(self, replica: "Replica", what: str) -> None:
        """Log a refusal once: the leader proposes a follower that may not join again and again."""
        if self._refused.get(replica) != what:
            self._refused[replica] = what
            _log.info("The controller refused %s", what)


def _text(isr: frozenset[BrokerId]) -> str:
    return ",".join(map(str, sorted(isr)))
