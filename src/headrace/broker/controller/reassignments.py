"""Reassignments of a cluster: they begin on request and end once the target is in sync.

    1. write the replicas of both assignments, which are added and removed, and a new leader epoch
    2. LeaderAndIsr: the added replicas follow the leader
    3. the added replicas catch up and join the ISR
    4. write the target as the replicas, with leader and ISR among them, and a new leader epoch
    5. LeaderAndIsr to the target, StopReplica that deletes the files to the removed replicas

Steps 1 and 4 are one write each, of the topic's node and the states; Kafka writes one after the
other. If a term ends after step 1, the topic's node has the move, and the next term continues it.
If the controller dies before step 5, a broker deletes its removed replica when it gets the metadata
of the next controller. A broker that was down sets the replica aside at its next start.

Other programs write their requests into one node of the tree, which lists all unfinished moves.
"""

import logging
from collections.abc import Mapping, Sequence
from itertools import islice

from headrace.broker.controller.broker_requests import Stop
from headrace.broker.controller.events import Events
from headrace.broker.controller.term import Term
from headrace.coordination import paths
from headrace.coordination.term_store import batches
from headrace.core import reassignment
from headrace.core.controller import ChangePartition
from headrace.model.cluster_metadata import PartitionState
from headrace.model.errors import Rejected
from headrace.model.ids import BrokerId, TopicPartition

_log = logging.getLogger("headrace.controller")

_ENDED_PER_EVENT = 200  # so that ISR changes do not wait long

Targets = Mapping[TopicPartition, Sequence[BrokerId] | None]


class Reassignments:
    def __init__(self, term: Term, events: Events) -> None:
        self._term = term
        self._events = events
        self._has_node = False  # another program's request is in the tree

    @property
    def in_progress(self) -> list[PartitionState]:
        return list(reassignment.in_progress(self._term.controller))

    # --- requests

    async def alter(
        self, targets: Targets, *, may_change_factor: bool
    ) -> dict[TopicPartition, Rejected | None]:
        """Begin to move partitions to their targets; None cancels. Returns the refusals."""
        async with self._term.turn():
            answers = await self._begin(targets, may_change_factor=may_change_factor)
        self._events.post(self.proceed)
        return answers

    async def _begin(
        self, targets: Targets, *, may_change_factor: bool = True
    ) -> dict[TopicPartition, Rejected | None]:
        controller = self._term.controller
        answers: dict[TopicPartition, Rejected | None] = {}
        moving: dict[str, list[PartitionState]] = {}
        for each, target in targets.items():
            try:
                state = reassignment.decide_target(
                    controller, each, target, may_change_factor=may_change_factor
                )
            except Rejected as refusal:
                answers[each] = refusal
                continue
            answers[each] = None
            if state != controller.metadata.partition(*each):
                moving.setdefault(each.topic, []).append(state)
        for states in moving.values():
            for batch in batches(states):
                changes = reassignment.decide_begin(controller, batch)
                try:
                    await self._write(changes, begins=True)
                except Rejected as refusal:
                    answers |= {state.topic_partition: refusal for state in batch}
        return answers

    async def _write(self, changes: Sequence[ChangePartition], *, begins: bool) -> None:
        """Write the replicas and states of partitions of one topic, and tell all brokers."""
        term = self._term
        before = term.controller.metadata.topics[changes[0].state.topic]
        after = list(before.partitions)
        for change in changes:
            after[change.state.partition] = change.state
        topic = before._replace(partitions=tuple(after))
        try:
            await term.store.assign(topic, before, changes)
        except Rejected:
            await term.reload([change.state.topic_partition for change in changes])
            raise
        term.controller.found([topic])
        for change in changes:
            _log.info(
                "%s %s; replicas: %s, adding: %s, removing: %s",
                "Reassigning" if begins else "Reassigned",
                change.state.topic_partition,
                *map(list, (change.state.replicas, change.state.adding, change.state.removing)),
            )
        term.tell((change.state for change in changes), begins=begins)
        for change in changes:
            self._stop(before.partitions[change.state.partition], change.state)

    def _stop(self, before: PartitionState, after: PartitionState) -> None:
        """Let brokers delete replicas that are no longer assigned to them."""
        for broker_id in before.replicas:
            if broker_id not in after.replicas and broker_id in self._term.channels:
                self._term.channels[broker_id].stop_replica(
                    after.topic_partition, Stop(after.leader_epoch, delete=True)
                )

    # --- progress

    async def resume(self) -> None:
        """Within the first turn of a term: begin the unfinished moves of the last term again."""
        controller = self._term.controller
        await self._term.change(
            list(controller.states()),
            lambda states: reassignment.decide_resumption(controller, states),
        )

    async def proceed(self) -> None:
        """End the moves whose target is in sync.

        Each event handles some moves and posts the next event, so that others need not wait.
        """
        async with self._term.turn():
            ended = await self._end_ready()
            if self._has_node:
                await self._prune()
        if ended:
            self._events.post(self.proceed)

    async def _end_ready(self) -> bool:
        controller = self._term.controller
        by_topic: dict[str, list[PartitionState]] = {}
        ready = (state for state in self.in_progress if reassignment.is_ready(controller, state))
        for state in islice(ready, _ENDED_PER_EVENT):
            by_topic.setdefault(state.topic, []).append(state)
        for states in by_topic.values():
            for batch in batches(states):
                changes = reassignment.decide_completion(controller, batch)
                await self._write(changes, begins=False)
        return bool(by_topic)

    # --- the requests of other programs

    def _node_fired(self, path: str) -> None:
        self._events.post(self.read_requests)

    async def read_requests(self) -> None:
        """Begin the moves that another program requested in the tree."""
        async with self._term.turn():
            request = await self._term.registry.watched.reassignment_request(self._node_fired)
            self._has_node = request is not None
            if request is None:
                return
            answers = await self._begin(
                {e: target for e, target in request.targets.items() if not self._moves(e, target)}
            )
            for each, refusal in answers.items():
                if refusal is not None:
                    _log.error(
                        "Ignoring the reassignment of %s in %s: %s",
                        each,
                        paths.REASSIGN_PARTITIONS,
                        refusal,
                    )
        self._events.post(self.proceed)

    def _moves(self, topic_partition: TopicPartition, target: Sequence[BrokerId]) -> bool:
        """Whether the partition is being moved to ``target``."""
        state = self._term.controller.metadata.partition(*topic_partition)
        return state is not None and state.is_reassigning and state.target_replicas == tuple(target)

    async def _prune(self) -> None:
        """Remove moves that are done, refused or replaced from the node; delete it when empty.

        The latest request counts, from the node as from a client.
        """
        request = await self._term.registry.watched.reassignment_request()
        if request is None:
            return
        left = {e: target for e, target in request.targets.items() if self._moves(e, target)}
        if left != request.targets:
            await self._term.store.replace_reassignment_request(left, request.zk_version)
