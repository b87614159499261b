"""The controller as a machine: brokers die and return, topics come and go, and the rules hold."""

from collections.abc import Sequence

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headrace.core import elections, topic_changes
from headrace.core.controller import (
    AddPartitions,
    Change,
    ChangePartition,
    Controller,
    CreateTopic,
    DeleteTopic,
)
from headrace.core.topic_changes import PlacementSeed
from headrace.core.topics import NewTopic
from headrace.model.cluster_metadata import NO_LEADER, BrokerEntry, ClusterMetadata, PartitionState
from headrace.model.errors import ErrorCode, Rejected
from headrace.model.ids import BrokerId, ControllerEpoch, TopicId

BROKERS = [BrokerId(number) for number in range(1, 5)]
NAMES = ["a", "b.c", "b_c"]


class ControllerLife(RuleBasedStateMachine):
    """A tree that sometimes refuses changes, and a controller that must agree with it."""

    @initialize(unclean=st.booleans(), min_insync_replicas=st.integers(1, 3))
    def start(self, unclean: bool, min_insync_replicas: int) -> None:
        self.zxid = 0
        self.unclean = unclean
        self.rules = elections.TopicRules(lambda topic: unclean, lambda topic: min_insync_replicas)
        self.live = {broker: self.registered(broker) for broker in BROKERS[:3]}
        self.controller = Controller(
            ControllerEpoch(1), ClusterMetadata("c", BROKERS[0], dict(self.live), {})
        )
        self.written: dict[tuple[TopicId, int], PartitionState] = {}
        self.granted: dict[tuple[TopicId, int], int] = {}
        self.generation = self.controller.metadata.generation
        self.ids = 0

    def registered(self, broker: BrokerId) -> BrokerEntry:
        self.zxid += 1
        return BrokerEntry(broker, {}, None, broker_epoch=self.zxid)

    def write(self, changes: Sequence[Change], granted: bool = True) -> None:
        """The tree: takes all changes or none, and checks the expected epochs."""
        before = self.controller.metadata
        if not granted:
            assert self.controller.metadata is before
            return
        self.zxid += 1
        for change in changes:
            if isinstance(change, ChangePartition):
                self.check_step(change)
            for state in _states_of(change):
                key = state.topic_id, state.partition
                self.written[key] = state
                self.granted[key] = self.zxid
        self.controller.replay(changes)

    def check_step(self, change: ChangePartition) -> None:
        state = change.state
        old = self.written[state.topic_id, state.partition]
        assert change.expected == old.partition_epoch
        assert state.partition_epoch == old.partition_epoch + 1
        assert state.leader_epoch in (old.leader_epoch, old.leader_epoch + 1)
        if state.leader != old.leader:
            assert state.leader_epoch == old.leader_epoch + 1, "another leader has another epoch"
        if state.leader != NO_LEADER and state.leader not in old.isr:
            assert self.unclean, "a clean leader was in sync before"

    @rule(
        name=st.sampled_from(NAMES),
        count=st.integers(0, 4),
        factor=st.integers(0, 4),
        start=st.integers(0, 9),
        granted=st.booleans(),
    )
    def create(self, name: str, count: int, factor: int, start: int, granted: bool) -> None:
        self.ids += 1
        (answer,) = topic_changes.decide_creates(
            self.controller,
            [NewTopic(name, count, factor)],
            lambda: (TopicId(self.ids.to_bytes(16)), PlacementSeed(start, start)),
            default_partition_count=1,
            default_replication_factor=1,
            check_settings=lambda overrides: None,
        )
        if isinstance(answer, CreateTopic):
            self.write([answer], granted)
        else:
            possible = count >= 1 and 1 <= factor <= len(self.live)
            taken = {*self.controller.metadata.topics, *self.controller.pending_deletion}
            collides = any(name.replace(".", "_") == t.replace(".", "_") for t in taken)
            assert not possible or collides, answer

    @precondition(lambda self: self.controller.metadata.topics)
    @rule(data=st.data(), more=st.integers(-1, 2))
    def grow(self, data: st.DataObject, more: int) -> None:
        name = data.draw(st.sampled_from(sorted(self.controller.metadata.topics)))
        topic = self.controller.metadata.topics[name]
        try:
            change = topic_changes.decide_add_partitions(
                self.controller, name, len(topic.partitions) + more, None
            )
        except Rejected as refusal:
            assert more <= 0 or len(topic.partitions[0].replicas) > len(self.live), refusal
        else:
            self.write([change])

    @precondition(lambda self: self.controller.metadata.topics)
    @rule(data=st.data(), finished=st.booleans())
    def delete(self, data: st.DataObject, finished: bool) -> None:
        name = data.draw(st.sampled_from(sorted(self.controller.metadata.topics)))
        self.write([topic_changes.decide_mark_for_deletion(self.controller, name)])
        if finished:
            self.finish_deletions()

    @precondition(lambda self: self.controller.pending_deletion)
    @rule()
    def finish_deletions(self) -> None:
        self.write([DeleteTopic(topic) for topic in self.controller.pending_deletion.values()])

    @rule(data=st.data(), restarted=st.booleans())
    def brokers_change(self, data: st.DataObject, restarted: bool) -> None:
        alive = data.draw(st.sets(st.sampled_from(BROKERS), min_size=1))
        again = data.draw(st.sets(st.sampled_from(BROKERS))) if restarted else set()
        self.live = {
            broker: self.live[broker]
            if broker in self.live and broker not in again
            else self.registered(broker)
            for broker in sorted(alive)
        }
        gone = self.controller.brokers_changed(self.live.values(), min(self.live))
        states = list(self.controller.states())
        self.write(elections.decide_brokers(self.controller, states, gone, self.rules))

    @precondition(lambda self: self.controller.metadata.topics)
    @rule(data=st.data(), granted=st.booleans())
    def a_leader_requests_another_isr(self, data: st.DataObject, granted: bool) -> None:
        state = data.draw(st.sampled_from(_all_states(self.controller.metadata)))
        isr = data.draw(st.sets(st.sampled_from(BROKERS)))
        wanted = elections.IsrProposal(
            state.topic_id,
            state.partition,
            state.leader_epoch,
            state.partition_epoch,
            tuple(sorted(isr)),
            {},
        )
        try:
            change = elections.decide_isr(self.controller, wanted, state.leader, self.rules)
        except Rejected as refusal:
            assert refusal.code in (
                ErrorCode.INVALID_REQUEST,
                ErrorCode.INELIGIBLE_REPLICA,
                ErrorCode.FENCED_LEADER_EPOCH,
            )
        else:
            if isinstance(change, ChangePartition):
                self.write([change], granted)

    @precondition(lambda self: self.controller.metadata.topics)
    @rule(data=st.data(), unclean=st.booleans())
    def an_administrator_requests_an_election(self, data: st.DataObject, unclean: bool) -> None:
        state = data.draw(st.sampled_from(_all_states(self.controller.metadata)))
        if unclean and not self.unclean:
            return
        try:
            change = elections.decide_election(
                self.controller, state.topic_partition, self.rules, unclean=unclean
            )
        except Rejected:
            return
        self.write([change])

    @rule()
    def another_controller_takes_over(self) -> None:
        """It continues from what the tree holds."""
        old = self.controller
        metadata = ClusterMetadata("c", min(self.live), dict(self.live), dict(old.metadata.topics))
        self.controller = Controller(ControllerEpoch(old.controller_epoch + 1), metadata)
        for topic in old.pending_deletion.values():
            self.controller.metadata = self.controller.metadata.with_topics([topic])
            self.controller.replay(
                [topic_changes.decide_mark_for_deletion(self.controller, topic.name)]
            )
        self.generation = 0
        granted = {
            state.topic_partition: self.granted[state.topic_id, state.partition]
            for state in _all_states(self.controller.metadata)
        }
        self.write(elections.decide_takeover(self.controller, granted, self.rules))
        assert (
            elections.decide_takeover(
                self.controller,
                {
                    state.topic_partition: self.granted[state.topic_id, state.partition]
                    for state in _all_states(self.controller.metadata)
                    if state.leader != NO_LEADER
                },
                self.rules,
            )
            == []
        ), "after a takeover there is nothing left to repair"

    @invariant()
    def the_metadata_is_what_was_written(self) -> None:
        for state in _all_states(self.controller.metadata):
            written = self.written[state.topic_id, state.partition]
            assert state._replace(offline=()) == written._replace(offline=())

    @invariant()
    def leaders_are_alive_in_sync_and_there_whenever_one_could_be(self) -> None:
        for state in _all_states(self.controller.metadata):
            assert set(state.isr) <= set(state.replicas)
            assert state.isr, "the ISR is never empty"
            if state.leader != NO_LEADER:
                assert state.leader in self.live
                assert state.leader in state.isr
                required = self.rules.insync_required(state)
                if not set(state.isr) <= self.live.keys():
                    assert len(self.live.keys() & state.isr) < required
            else:
                assert not set(state.isr) & self.live.keys()
            assert set(state.offline) == set(state.replicas) - self.live.keys()

    @invariant()
    def names_ids_and_generations_are_in_order(self) -> None:
        metadata = self.controller.metadata
        assert metadata.generation >= self.generation
        self.generation = metadata.generation
        keys = [name.replace(".", "_") for name in metadata.topics]
        assert len(set(keys)) == len(keys)
        for name, topic in metadata.topics.items():
            assert topic.name == name and metadata.topic_by_id(topic.topic_id) is topic
            assert [p.partition for p in topic.partitions] == list(range(len(topic.partitions)))
        assert not self.controller.pending_deletion.keys() & metadata.topics.keys()


def _all_states(metadata: ClusterMetadata) -> list[PartitionState]:
    return [state for topic in metadata.topics.values() for state in topic.partitions]


def _states_of(change: Change) -> tuple[PartitionState, ...]:
    if isinstance(change, CreateTopic):
        return change.topic.partitions
    if isinstance(change, AddPartitions):
        return change.added
    return (change.state,) if isinstance(change, ChangePartition) else ()


ControllerLife.TestCase.settings = settings(max_examples=60, stateful_step_count=30)
TestControllerLife = ControllerLife.TestCase
