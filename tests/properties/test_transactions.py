"""Random producers, zombies, timeouts, restarts and marker failures against a simple model.

The machine under test is the coordinator's shard together with the producer state of partitions.
The model knows nothing about epochs or markers. For every transaction that a client began it stores
what that client was told. In the end, after all faults are healed and all timeouts are over, a
reader of committed records must see every record whose commit was acknowledged, once. Besides
those it may only see records whose end was never acknowledged.
"""

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from headrace.core.producer_state import EndMarker, Origin, Producers
from headrace.core.transactions import markers
from headrace.core.transactions.transaction import State
from headrace.model.errors import ErrorCode, Rejected
from headrace.model.ids import Offset, TopicPartition
from headrace.records.batch import CONTROL, TRANSACTIONAL, BatchHeader
from tests.fakes.transactions import Coordinator

PARTITIONS = 3
TIMEOUT_MS = 10_000
IDS = ("tx-a", "tx-b")
RETRY = (ErrorCode.CONCURRENT_TRANSACTIONS,)


class Partition:
    """A data partition: a list of batches and markers, and its producer state."""

    def __init__(self):
        self.log = []
        self.producers = Producers()

    def append(self, producer, sequence, tag):
        self._take(producer, sequence, TRANSACTIONAL, Origin.CLIENT, None, 0)
        self.log.append(("batch", producer[0], tag))

    def mark(self, effect, now):
        marker = EndMarker(effect.commit, effect.coordinator_epoch, now)
        producer = (effect.producer_id, effect.producer_epoch)
        self._take(
            producer,
            -1,
            TRANSACTIONAL | CONTROL,
            Origin.COORDINATOR,
            marker,
            effect.transaction_version,
        )
        self.log.append(("marker", effect.producer_id, effect.commit))

    def _take(self, producer, sequence, attributes, origin, marker, version):
        header = BatchHeader(
            base_offset=0,
            size=0,
            leader_epoch=0,
            magic=2,
            crc=0,
            attributes=attributes,
            last_offset_delta=0,
            base_timestamp=0,
            max_timestamp=0,
            producer_id=producer[0],
            producer_epoch=producer[1],
            base_sequence=sequence,
            record_count=1,
        )
        offset = Offset(len(self.log))
        if self.producers.append(header, offset, 0, origin, marker, version) is not None:
            raise Duplicate
        self.producers.written()
        self.producers.high_watermark_advanced(offset + 1)

    def committed(self):
        """The tags that a reader of committed records sees, computed in the simplest way."""
        seen, pending = [], {}
        for kind, producer_id, what in self.log:
            if kind == "batch":
                pending.setdefault(producer_id, []).append(what)
            elif what:
                seen += pending.pop(producer_id, [])
            else:
                pending.pop(producer_id, None)
        return seen


class Duplicate(Exception):
    """The partition has this batch already."""


@dataclass(eq=False)
class Client:
    """One instance of a producer, perhaps a zombie. After an error it gives up."""

    transactional_id: str
    producer: tuple[int, int]
    sequences: dict = field(default_factory=dict)
    sent: list = field(default_factory=list)  # of the open transaction: (partition, tag)
    added: set = field(default_factory=set)
    late: list = field(default_factory=list)  # batches the network may still deliver
    # The requested end without an answer yet: the client repeats it.
    ending: bool | None = None


class World(Coordinator):
    def __init__(self, **settings):
        self.partitions = [Partition() for _ in range(PARTITIONS)]
        super().__init__(**settings)

    def mark(self, partition, effect):
        try:
            self.partitions[partition.partition].mark(effect, self.now)
        except Rejected as refusal:
            return refusal.code
        return ErrorCode.NONE


SOMETIMES = st.sampled_from([False] * 5 + [True])
ANYONE = st.integers(0, 1_000)  # taken modulo the count, so that few steps do nothing


class TransactionCoordinator(RuleBasedStateMachine):
    @initialize(version=st.sampled_from([0, 1, 2]))
    def begin(self, version):
        self.version = version
        self.world = World(transaction_version=version)
        self.clients = []  # that have not given up
        self.told = {}  # tag -> committed, aborted or nothing
        self.handed_out = set()

    def some_client(self, number):
        return self.clients[number % len(self.clients)]

    # --- clients

    @precondition(lambda self: len(self.clients) < 3)
    @rule(transactional_id=st.sampled_from(IDS))
    def an_instance_starts(self, transactional_id):
        code, *producer = self.world.init(transactional_id, TIMEOUT_MS)
        assert code in (ErrorCode.NONE, *RETRY)
        if code is ErrorCode.NONE:
            client = Client(transactional_id, tuple(producer))
            assert client.producer not in self.handed_out, "two instances share an epoch"
            self.handed_out.add(client.producer)
            self.clients.append(client)

    @precondition(lambda self: self.clients)
    @rule(who=ANYONE, numbers=st.lists(st.integers(0, PARTITIONS - 1), min_size=1, max_size=4))
    def a_client_produces(self, who, numbers):
        client = self.some_client(who)
        for number in numbers:
            if client not in self.clients or client.ending is not None:
                return
            self.produce(client, number)

    def produce(self, client, number):
        code = self.verify_or_add(client, number)
        if code in RETRY:
            return
        if code is not ErrorCode.NONE:
            self.gives_up(client)
            return
        tag = len(self.told)
        sequence = client.sequences.get(number, 0)
        try:
            self.world.partitions[number].append(client.producer, sequence, tag)
        except Rejected:
            self.gives_up(client)
            return
        client.sequences[number] = sequence + 1
        client.sent.append(tag)
        self.told[tag] = "nothing"
        client.late.append((number, client.producer, sequence + 1))

    def verify_or_add(self, client, number):
        """What the client and the broker do before a batch is appended."""
        world, name = self.world, client.transactional_id
        if self.version < 2 and number not in client.added:
            code = world.add(client.producer, number, transactional_id=name)
            if code is not ErrorCode.NONE:
                return code
            client.added.add(number)
        if world.partitions[number].producers.has_ongoing_transaction(*client.producer):
            return ErrorCode.NONE
        if self.version < 2:
            return world.verify(client.producer, number, transactional_id=name)
        return world.add(client.producer, number, transactional_id=name, version=2)

    @precondition(lambda self: self.clients)
    @rule(
        who=ANYONE,
        numbers=st.lists(st.integers(0, PARTITIONS - 1), max_size=2),
        commit=st.booleans(),
        disk_fails=SOMETIMES,
        answer_is_lost=SOMETIMES,
    )
    def a_client_ends_its_transaction(self, who, numbers, commit, disk_fails, answer_is_lost):
        client = self.some_client(who)
        self.a_client_produces(who, numbers)
        if client in self.clients and (client.sent or client.added):
            self.end(client, commit, disk_fails, answer_is_lost)

    def end(self, client, commit, disk_fails, answer_is_lost):
        if client.ending is not None:
            commit = client.ending
        client.ending = commit
        self.world.append_fails = disk_fails
        answer = self.world.end(client.producer, commit, client.transactional_id, self.version)
        self.world.append_fails = False
        code, *producer = answer
        if code in RETRY or code is ErrorCode.COORDINATOR_NOT_AVAILABLE or answer_is_lost:
            return
        if code is not ErrorCode.NONE:
            self.gives_up(client)
            return
        for tag in client.sent:
            self.told[tag] = "committed" if commit else "aborted"
        client.sent, client.added, client.ending = [], set(), None
        if self.version == 2:
            client.producer = tuple(producer)
            assert client.producer not in self.handed_out
            self.handed_out.add(client.producer)
            client.sequences.clear()

    def gives_up(self, client):
        """What it sent counts as aborted, unless its end was in progress."""
        if client.ending is None:
            for tag in client.sent:
                self.told[tag] = "aborted"
        self.clients.remove(client)

    @precondition(lambda self: self.version == 2 and self.clients)
    @rule(who=ANYONE, which=ANYONE)
    def the_network_delivers_a_late_batch(self, who, which):
        """Sent in a transaction that has ended: it must not open another."""
        client = self.some_client(who)
        known = self.world.known(client.transactional_id)
        present = (known.producer_id, known.producer_epoch)
        late = [batch for batch in client.late if batch[1] != present]
        if not late:
            return
        number, producer, sequence = late[which % len(late)]
        if self.world.partitions[number].producers.has_ongoing_transaction(*producer):
            # The end is decided, but its marker is not written here: it ends this batch too.
            assert known.state in (State.PREPARE_COMMIT, State.PREPARE_ABORT)
            return
        code = self.world.add(producer, number, transactional_id=client.transactional_id, version=2)
        assert code is not ErrorCode.NONE

    # --- surroundings

    @rule(ms=st.sampled_from([50, 150, 3_000, TIMEOUT_MS]), disk_fails=SOMETIMES)
    def time_passes(self, ms, disk_fails):
        self.world.append_fails = disk_fails
        self.world.advance(ms)
        self.world.append_fails = False

    @rule()
    def the_coordinator_restarts(self):
        self.world.restart()

    @rule()
    def markers_are_delayed(self):
        self.world.hold_markers = True

    @rule()
    def markers_arrive(self):
        self.world.release_markers()

    @rule(number=st.integers(0, PARTITIONS - 1))
    def a_leader_goes(self, number):
        partition = TopicPartition("orders", number)
        self.world.refusals = {partition: ErrorCode.NOT_LEADER_OR_FOLLOWER}

    @rule()
    def all_leaders_are_there(self):
        self.world.refusals = {}

    @rule()
    def markers_are_written_once_more(self):
        """As after a restart between the markers and the completing record.

        With version 2 the earlier markers may still arrive, however late. Before that they could
        end the producer's next transaction, which is why KIP-890 bumps the epoch.
        """
        if self.version < 2:
            self.world.held_markers.clear()
        for effect in markers.pending(self.world.shard):
            self.world.write_markers(effect)

    # --- what must hold

    @invariant()
    def what_the_log_says_is_what_the_shard_knows(self):
        if not hasattr(self, "world"):
            return
        replayed = Coordinator(**self.world.settings._asdict())
        replayed.hold_markers = True
        replayed.log = list(self.world.log)
        replayed.now = self.world.now
        replayed.restart()
        assert replayed.shard.transactions == self.world.shard.transactions

    @invariant()
    def nothing_of_an_aborted_transaction_is_seen(self):
        if not hasattr(self, "world"):
            return
        for partition in self.world.partitions:
            seen = partition.committed()
            assert len(seen) == len(set(seen))
            assert not [tag for tag in seen if self.told[tag] == "aborted"]

    def teardown(self):
        """Heal all faults, let all timeouts expire, and check what was promised."""
        if not hasattr(self, "world"):
            return
        world = self.world
        world.append_fails = False
        world.refusals.clear()
        world.release_markers()
        for _ in range(3):
            world.advance(TIMEOUT_MS)
        for known in world.shard.transactions.values():
            assert known.state not in (State.ONGOING, State.PREPARE_COMMIT, State.PREPARE_ABORT)
        seen = [tag for partition in world.partitions for tag in partition.committed()]
        assert len(seen) == len(set(seen))
        for tag, told in self.told.items():
            if told == "committed":
                assert tag in seen, f"record {tag} was promised and is not there"
            elif told == "aborted":
                assert tag not in seen
        for partition in world.partitions:
            assert not partition.producers.ongoing, "a transaction hangs"


TestTransactions = TransactionCoordinator.TestCase
TestTransactions.settings = settings(max_examples=100, stateful_step_count=50, deadline=None)


def drive(seed, steps):
    """The same rules, drawn from a seed: longer runs than hypothesis makes.

    The seed draws the weights of the faults too, so that some runs are calm and some are not.
    """
    dice = random.Random(seed)
    machine = TransactionCoordinator()
    machine.begin(dice.choice([0, 1, 2]))

    def numbers(size_max):
        return [dice.randrange(PARTITIONS) for _ in range(dice.randint(1, size_max))]

    def rarely():
        return dice.random() < 0.1

    rules = {
        lambda: machine.an_instance_starts(dice.choice(IDS)): 10,
        lambda: machine.a_client_produces(dice.randrange(9), numbers(4)): 30,
        lambda: machine.a_client_ends_its_transaction(
            dice.randrange(9), numbers(2), dice.random() < 0.7, rarely(), rarely()
        ): 15,
        lambda: machine.the_network_delivers_a_late_batch(dice.randrange(9), dice.randrange(99)): 5,
        lambda: machine.time_passes(dice.choice([50, 150, 3_000, TIMEOUT_MS]), rarely()): 10,
        machine.the_coordinator_restarts: dice.choice([0, 1, 3]),
        machine.markers_are_delayed: dice.choice([0, 1, 5]),
        machine.markers_arrive: 3,
        lambda: machine.a_leader_goes(dice.randrange(PARTITIONS)): dice.choice([0, 1, 5]),
        machine.all_leaders_are_there: 3,
        machine.markers_are_written_once_more: dice.choice([0, 2]),
    }
    for _ in range(steps):
        (step,) = dice.choices(list(rules), list(rules.values()))
        if not machine.clients or len(machine.clients) > 4:
            machine.clients = machine.clients[1:]
            machine.an_instance_starts(dice.choice(IDS))
        if machine.clients:
            step()
        machine.nothing_of_an_aborted_transaction_is_seen()
    machine.what_the_log_says_is_what_the_shard_knows()
    machine.teardown()


@pytest.mark.parametrize("seed", range(40))
def test_promises_hold_in_long_runs(seed):
    drive(seed, 150)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40, 400))
def test_promises_hold_in_many_long_runs(seed):
    drive(seed, 400)
