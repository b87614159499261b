"""Leaders and ISRs of a cluster: what leaders, administrators and leaving brokers request."""

import logging
from collections.abc import Iterable, Sequence

from headrace.broker.controller.broker_requests import Stop
from headrace.broker.controller.term import Term
from headrace.broker.metadata.dynamic_config import DynamicConfig
from headrace.core import elections
from headrace.core.controller import ChangePartition
from headrace.core.elections import Departure, IsrProposal, TopicRules
from headrace.model.cluster_metadata import PartitionState
from headrace.model.errors import ErrorCode, Rejected
from headrace.model.ids import BrokerId, TopicPartition

_log = logging.getLogger("headrace.controller")

_ANY_BROKER_EPOCH = -1  # in old versions of requests


class Leaders:
    def __init__(self, term: Term, dynamic_config: DynamicConfig) -> None:
        self._term = term
        self.rules = TopicRules(
            lambda topic: dynamic_config.topic_config(topic).unclean_leader_election_enable,
            lambda topic: dynamic_config.topic_config(topic).min_insync_replicas,
        )

    def check_broker(self, broker_id: BrokerId, broker_epoch: int, unknown: ErrorCode) -> None:
        """Raise Rejected unless the broker is registered with this epoch."""
        entry = self._term.controller.metadata.brokers.get(broker_id)
        if entry is None:
            raise Rejected(unknown, f"Broker {broker_id} is not registered.")
        if broker_epoch not in (_ANY_BROKER_EPOCH, entry.broker_epoch):
            raise Rejected(ErrorCode.STALE_BROKER_EPOCH)

    # --- requests

    async def alter_isr(
        self, broker_id: BrokerId, broker_epoch: int, proposals: Sequence[IsrProposal]
    ) -> list[PartitionState | Rejected]:
        """The state of each partition after the change, or the refusal, in order."""
        controller = self._term.controller
        async with self._term.turn():
            self.check_broker(broker_id, broker_epoch, ErrorCode.STALE_BROKER_EPOCH)
            answers: list[PartitionState | Rejected] = []
            changes: dict[TopicPartition, ChangePartition] = {}
            for proposal in proposals:
                try:
                    decided = elections.decide_isr(controller, proposal, broker_id, self.rules)
                except Rejected as refusal:
                    answers.append(refusal)
                    continue
                if isinstance(decided, ChangePartition):
                    changes[decided.state.topic_partition] = decided
                    decided = decided.state
                answers.append(decided)
            result = await self._term.store.write_states(list(changes.values()))
            controller.replay(result.written)
            self._term.channels.update_metadata(change.state for change in result.written)
            if result.stale:
                await self._term.reload(result.stale)
        outdated = Rejected(ErrorCode.INVALID_UPDATE_VERSION)
        return [
            outdated
            if isinstance(answer, PartitionState) and answer.topic_partition in result.stale
            else answer
            for answer in answers
        ]

    async def shut_down(self, broker_id: BrokerId, broker_epoch: int) -> list[TopicPartition]:
        """Move everything away from a broker that shuts down; returns what it must still lead."""
        term, controller = self._term, self._term.controller
        async with term.turn():
            self.check_broker(broker_id, broker_epoch, ErrorCode.UNKNOWN_SERVER_ERROR)
            controller.shuts_down(broker_id)
            followed = [
                state
                for state in controller.states()
                if broker_id in state.replicas and state.leader != broker_id
            ]

            def leave(states: Iterable[PartitionState]) -> list[ChangePartition]:
                departure = self._departure(states, broker_id)
                return departure.moved + departure.left

            changed = await term.change(controller.states(), leave)
            moved = {state.topic_partition for state in changed} - {
                state.topic_partition for state in followed
            }
            for state in changed:
                for replica in state.replicas:
                    # The leaving broker is only told to stop following.
                    if replica != broker_id or state.topic_partition in moved:
                        term.tell_replica(replica, state)
            if broker_id in term.channels:
                for state in followed:
                    term.channels[broker_id].stop_replica(
                        state.topic_partition, Stop(state.leader_epoch, delete=False)
                    )
            term.channels.update_metadata(
                state for state in controller.states() if broker_id in state.replicas
            )
            entry = controller.metadata.brokers[broker_id]
            await term.store.note_shutdown(broker_id, entry.broker_epoch)
            remaining = self._departure(controller.states(), broker_id).remaining
        _log.info(
            "Broker %d shuts down; leaderships moved: %d, remaining: %d",
            broker_id,
            len(moved),
            len(remaining),
        )
        return remaining

    def _departure(self, states: Iterable[PartitionState], broker_id: BrokerId) -> Departure:
        return elections.decide_shutdown(self._term.controller, states, broker_id, self.rules)

    async def elect(
        self, topic_partitions: Sequence[TopicPartition], *, unclean: bool
    ) -> list[Rejected | None]:
        """Elect leaders; one refusal or None per partition."""
        async with self._term.turn():
            return await self.elect_within_turn(topic_partitions, unclean=unclean)

    async def elect_within_turn(
        self, topic_partitions: Sequence[TopicPartition], *, unclean: bool
    ) -> list[Rejected | None]:
        controller = self._term.controller
        answers: dict[TopicPartition, Rejected | None] = {}

        def decide(states: Iterable[PartitionState]) -> list[ChangePartition]:
            changes = []
            for state in states:
                each = state.topic_partition
                try:
                    changes.append(
                        elections.decide_election(controller, each, self.rules, unclean=unclean)
                    )
                    answers[each] = None
                except Rejected as refusal:
                    answers[each] = refusal
            return changes

        found = []
        for each in dict.fromkeys(topic_partitions):
            state = controller.metadata.partition(*each)
            if state is not None:
                found.append(state)
        self._term.tell(await self._term.change(found, decide))
        unknown = Rejected(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return [answers.get(each, unknown) for each in topic_partitions]

    # --- events

    async def replicas_failed(
        self, broker_id: BrokerId, topic_partitions: Sequence[TopicPartition]
    ) -> None:
        """The disk of these replicas is offline."""
        term, controller = self._term, self._term.controller
        async with term.turn():
            controller.replicas_failed(topic_partitions, broker_id)
            failed = set(topic_partitions)
            _log.error(
                "Broker %d has %d offline replicas; the first is %s",
                broker_id,
                len(failed),
                topic_partitions[0],
            )

            def decide(states: Iterable[PartitionState]) -> list[ChangePartition]:
                named = [state.topic_partition for state in states]
                return elections.decide_failures(controller, named, broker_id, self.rules)

            before = [s for s in controller.states() if s.topic_partition in failed]
            changed = await term.change(before, decide)
            for state in changed:
                for replica in state.replicas:
                    if replica != broker_id:
                        term.tell_replica(replica, state)
                    elif replica in term.channels:
                        stop = Stop(state.leader_epoch, delete=False)
                        term.channels[replica].stop_replica(state.topic_partition, stop)
            term.channels.update_metadata(
                state for state in controller.states() if state.topic_partition in failed
            )

    async def elect_where_possible(self) -> None:
        """Elect leaders where there are none, after a topic has allowed unclean elections."""
        term = self._term
        async with term.turn():
            term.tell(
                await term.change(
                    [state for state in term.controller.states() if state.leader < 0],
                    lambda states: elections.decide_brokers(
                        term.controller, states, (), self.rules
                    ),
                )
            )
