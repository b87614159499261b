"""Reassignments of a cluster: begun on request, ended once the target is in sync.

    1. the topic's node: all replicas, and which are added and removed
    2. a new leader epoch, in which the leader lets the added replicas follow
    3. the added replicas join the ISR, as any other
    4. a new leader epoch with leader and ISR in the target
    5. the topic's node: only the target
    6. StopReplica with the deletion of files, to the removed replicas

A term that ends after step 1 leaves the move in the topic's node, and the next term continues. A
removed replica that is not told, because its broker or the controller died, stops as soon as its
broker hears of the new replicas, and is set aside at the broker's next start.

Other programs write their requests into one node, which has all moves that are not done yet.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

from headrace.broker.controller.broker_requests import Stop
from headrace.broker.controller.events import Events
from headrace.broker.controller.term import Term
from headrace.coordination import paths
from headrace.core import reassignment
from headrace.model.cluster_metadata import PartitionState
from headrace.model.errors import Rejected
from headrace.model.ids import BrokerId, TopicPartition

_log = logging.getLogger("headrace.controller")

_ENDED_PER_EVENT = 200  # changes of ISRs wait no longer than for these

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
            try:
                await self._move(states)
            except Rejected as refusal:
                answers |= {state.topic_partition: refusal for state in states}
        return answers

    async def _move(self, moving: Sequence[PartitionState]) -> None:
        """Begin to move partitions of one topic."""
        term, controller = self._term, self._term.controller
        before = controller.metadata.topics[moving[0].topic]
        dropped = {
            state.topic_partition: _without(
                before.partitions[state.partition].replicas, state.replicas
            )
            for state in moving
        }
        changed = await term.change(
            [before.partitions[state.partition] for state in moving],
            lambda states: reassignment.decide_drop(controller, states, dropped),
        )
        try:
            assigned = await self._assign(moving)
        except Rejected:
            term.tell(changed)
            raise
        begun = await term.change(
            assigned, lambda states: reassignment.decide_begin(controller, states)
        )
        term.tell(begun, begins=True)
        self._stop(dropped)
        for state in begun:
            _log.info(
                "Reassigning %s; replicas: %s, adding: %s, removing: %s",
                state.topic_partition,
                *map(list, (state.replicas, state.adding, state.removing)),
            )

    async def _assign(self, wanted: Sequence[PartitionState]) -> list[PartitionState]:
        """Write new replicas of partitions of one topic; leaders and ISRs stay as they are."""
        controller = self._term.controller
        before = controller.metadata.topics[wanted[0].topic]
        partitions = list(before.partitions)
        for each in wanted:
            partitions[each.partition] = partitions[each.partition]._replace(
                replicas=each.replicas, adding=each.adding, removing=each.removing
            )
        after = before._replace(partitions=tuple(partitions))
        await self._term.store.assign(after, before)
        controller.found([after])
        now = controller.metadata.topics[after.name].partitions
        return [now[each.partition] for each in wanted]

    def _stop(self, replicas: Mapping[TopicPartition, Sequence[BrokerId]]) -> None:
        """Let brokers delete replicas that are no longer assigned to them."""
        for each, brokers in replicas.items():
            state = self._term.controller.metadata.partition(*each)
            for broker_id in brokers:
                if state is not None and broker_id in self._term.channels:
                    stop = Stop(state.leader_epoch, delete=True)
                    self._term.channels[broker_id].stop_replica(each, stop)

    # --- progress

    async def resume(self) -> None:
        """Within the first turn of a term: begin the moves again that the last term left."""
        controller = self._term.controller
        await self._term.change(
            list(controller.states()),
            lambda states: reassignment.decide_resumption(controller, states),
        )

    async def proceed(self) -> None:
        """End the moves whose target is in sync.

        An event handles some of them and posts the next, so that other events need not wait.
        """
        async with self._term.turn():
            ended = await self._end_ready()
            if self._has_node:
                await self._prune()
        if ended:
            self._events.post(self.proceed)

    async def _end_ready(self) -> bool:
        term = self._term
        ready = (s for s in self.in_progress if reassignment.is_ready(term.controller, s))
        changed = await term.change(
            list(islice(ready, _ENDED_PER_EVENT)),
            lambda states: reassignment.decide_completion(term.controller, states),
        )
        by_topic: dict[str, list[PartitionState]] = {}
        for state in changed:
            by_topic.setdefault(state.topic, []).append(state)
        for states in by_topic.values():
            ended = await self._assign([reassignment.completed(state) for state in states])
            term.tell(ended)
            self._stop({state.topic_partition: state.removing for state in states})
            for state in ended:
                _log.info("Reassigned %s to %s", state.topic_partition, list(state.replicas))
        return bool(changed)

    # --- the requests of other programs

    def _node_fired(self, path: str) -> None:
        self._events.post(self.read_requests)

    async def read_requests(self) -> None:
        """Begin the moves that another program asked for."""
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
        """Whether the partition is on its way to ``target``."""
        state = self._term.controller.metadata.partition(*topic_partition)
        return state is not None and state.is_reassigning and state.target_replicas == tuple(target)

    async def _prune(self) -> None:
        """Remove the moves that are done, refused or replaced from the node; in the end, it goes.

        The latest request counts, whichever way it came.
        """
        request = await self._term.registry.watched.reassignment_request()
        if request is None:
            return
        left = {e: target for e, target in request.targets.items() if self._moves(e, target)}
        if left != request.targets:
            await self._term.store.replace_reassignment_request(left, request.zk_version)


def _without(brokers: Iterable[BrokerId], others: Sequence[BrokerId]) -> tuple[BrokerId, ...]:
    return tuple(broker for broker in brokers if broker not in others)
