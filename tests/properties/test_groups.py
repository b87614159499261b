"""Random events in classic groups, checked against what the clients were told.

Members join, lie, leave, fall silent and return; offsets are committed inside and outside of
transactions; the shard is dropped and replayed at any time. After every step:

* a generation has one assignment, and each member has the part that its leader gave it,
* no acknowledged commit is lost, and no uncommitted offset is read,
* a commit of any other generation than the current one is rejected.
"""

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    multiple,
    precondition,
    rule,
)

from headrace.model.errors import ErrorCode
from tests.fakes.groups import Groups

OK = ErrorCode.NONE
PARTITIONS = st.integers(0, 3)
PROTOCOLS = ("range", b""), ("sticky", b"")


class Client:
    """What one consumer remembers."""

    def __init__(self, instance=None):
        self.member_id = ""
        self.instance = instance
        self.generation = -1
        self.is_leader = False
        self.members = []
        self.joining = None
        self.syncing = None
        self.assignment = None


class GroupMachine(RuleBasedStateMachine):
    clients = Bundle("clients")

    def __init__(self):
        super().__init__()
        self.groups = Groups(group_initial_rebalance_delay_ms=100)
        self.alive = []
        # What clients were told.
        self.assignments = {}  # by generation: member id -> assignment, of a completed rebalance
        self.offsets = {}
        self.pending = {}  # by producer id: partition -> offset, or None once voided
        self.counter = 0

    # Joining.

    @rule(target=clients, instance=st.sampled_from([None, None, "one", "two"]))
    def a_consumer_starts(self, instance):
        client = Client(instance)
        self.alive.append(client)
        return client

    @rule(
        client=clients,
        requires_known_member=st.booleans(),
        supports_skip_assignment=st.booleans(),
        protocol=st.integers(0, 1),
    )
    def joins(self, client, requires_known_member, supports_skip_assignment, protocol):
        if client.joining is not None:
            return
        protocols = PROTOCOLS if protocol else PROTOCOLS[::-1]
        client.syncing = None
        client.joining = self.groups.join(
            client.member_id,
            requires_known_member=requires_known_member,
            supports_skip_assignment=supports_skip_assignment,
            instance=client.instance,
            protocols=protocols,
        )
        self.hear()

    @rule(client=clients)
    def syncs(self, client):
        if client.joining is not None or client.syncing is not None or client.generation < 0:
            return
        given = {}
        if client.is_leader:
            self.counter += 1
            given = {
                member: f"{self.counter}:{place}".encode()
                for place, member in enumerate(client.members)
            }
        before = len(self.groups.log)
        client.syncing = self.groups.sync(
            client.member_id, client.generation, given, instance=client.instance
        )
        if len(self.groups.log) > before:
            assert client.is_leader, "only a leader's assignment is written"
            # One leader, one assignment, despite restarts.
            assert client.generation not in self.assignments
            self.assignments[client.generation] = given
        self.hear()

    def hear(self):
        """Every client reads its answers."""
        for client in self.alive:
            if client.joining is not None and not self.groups.waits(client.joining):
                self.hear_join(client, self.groups.answer(client.joining))
                client.joining = None
            if client.syncing is not None and not self.groups.waits(client.syncing):
                self.hear_sync(client, self.groups.answer(client.syncing))
                client.syncing = None

    def hear_join(self, client, answer):
        if answer.error_code == OK:
            client.member_id = answer.member_id
            client.generation = answer.generation_id
            client.is_leader = answer.leader == answer.member_id and not answer.skip_assignment
            client.members = [x.member_id for x in answer.members]
            if client.is_leader:
                assert client.member_id in client.members
        elif answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            client.member_id = answer.member_id
        else:
            self.hear_error(client, answer.error_code)

    def hear_sync(self, client, answer):
        if answer.error_code == OK:
            client.assignment = answer.assignment
            agreed = self.assignments[client.generation]
            # A returning static member has the assignment of its former id.
            if client.instance is None:
                assert answer.assignment == agreed.get(client.member_id, b"")
            else:
                assert answer.assignment in {*agreed.values(), b""}
        else:
            self.hear_error(client, answer.error_code)

    def hear_error(self, client, code):
        if code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID):
            client.member_id, client.generation = "", -1
        elif code == ErrorCode.ILLEGAL_GENERATION:
            client.generation = -1
        client.is_leader = False

    # Heartbeats, departures, commits.

    @rule(client=clients)
    def beats(self, client):
        answer = self.groups.heartbeat(
            client.member_id, client.generation, instance=client.instance
        )
        if answer.error_code not in (OK, ErrorCode.REBALANCE_IN_PROGRESS):
            self.hear_error(client, answer.error_code)
        self.hear()

    @rule(client=consumes(clients))
    def leaves(self, client):
        self.groups.leave((client.member_id, client.instance))
        self.alive.remove(client)
        self.hear()

    @rule(client=consumes(clients))
    def dies(self, client):
        """Without leaving; its session has to expire."""
        self.alive.remove(client)

    @rule(ms=st.sampled_from([0, 100, 5_000, 10_000, 60_000]))
    def time_passes(self, ms):
        self.groups.pass_time(ms)
        self.hear()

    @rule(client=clients, partition=PARTITIONS, lie=st.sampled_from([0, 0, 0, -1, 1]))
    def commits(self, client, partition, lie):
        generation = client.generation + lie
        self.counter += 1
        group = self.groups.shard.groups.get("g")
        present = group.generation if group is not None else None
        was_member = group is not None and client.member_id in group.members
        state = group.state_name if group is not None else "Empty"
        code = self.groups.commit(
            {partition: self.counter},
            client.member_id,
            generation,
            instance=client.instance,
        )[partition]
        if code == OK:
            if generation >= 0:
                assert generation == present and was_member
                assert state in ("Stable", "PreparingRebalance")
            else:
                assert state == "Empty"
            self.took(partition, self.counter)

    @rule(partition=PARTITIONS)
    def a_consumer_without_a_group_commits(self, partition):
        self.counter += 1
        if self.groups.commit({partition: self.counter})[partition] == OK:
            self.took(partition, self.counter)

    def took(self, partition, offset):
        self.offsets[partition] = offset
        for held in self.pending.values():
            if partition in held:
                held[partition] = None

    @rule(partition=PARTITIONS, producer_id=st.integers(1, 2))
    def a_transaction_commits(self, partition, producer_id):
        self.counter += 1
        codes = self.groups.txn_commit({partition: self.counter}, producer_id=producer_id)
        assert codes == {partition: OK}
        self.pending.setdefault(producer_id, {})[partition] = self.counter

    @precondition(lambda self: self.pending)
    @rule(producer_id=st.integers(1, 2), committed=st.booleans())
    def a_transaction_ends(self, producer_id, committed):
        self.groups.end_transaction(producer_id, committed=committed)
        for partition, offset in self.pending.pop(producer_id, {}).items():
            if committed and offset is not None:
                self.offsets[partition] = offset

    # The coordinator restarts or moves.

    @rule(target=clients)
    def the_coordinator_is_lost(self):
        """Clients with parked requests find the coordinator again; no promise is lost."""
        for client in self.alive:
            client.joining = client.syncing = None
        self.groups.reload()
        return multiple()

    @rule()
    def an_administrator_deletes_the_group(self):
        code = self.groups.delete()
        if code == OK:
            self.offsets.clear()
            self.assignments.clear()  # a new group of this name counts from 1 again
            for held in self.pending.values():
                for partition in held:
                    held[partition] = None

    # What must hold.

    @invariant()
    def offsets_are_those_that_were_acknowledged(self):
        assert self.groups.offsets() == self.offsets

    @invariant()
    def exactly_the_open_transactions_are_unstable(self):
        (topic,) = self.groups.fetch(range(4), require_stable=True).topics
        for answer in topic.partitions:
            is_held = any(answer.partition_index in held for held in self.pending.values())
            assert (answer.error_code == ErrorCode.UNSTABLE_OFFSET_COMMIT) == is_held

    @invariant()
    def the_group_agrees_with_itself(self):
        group = self.groups.shard.groups.get("g")
        if group is None:
            return
        if group.state_name == "Stable":
            assert group.members and group.leader_id in group.members
            assert group.generation in self.assignments
        if group.state_name == "Empty":
            assert not group.members
        instances = [x.instance_id for x in group.members.values() if x.instance_id is not None]
        assert len(instances) == len(set(instances)), "one member per instance id"


TestGroups = GroupMachine.TestCase
TestGroups.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
