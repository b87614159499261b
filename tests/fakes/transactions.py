"""A runtime for the transaction shard that does everything at once: append, replay, reply.

Its log is a list, tests move its clock, and its data partitions remember their markers.
"""

from contextlib import suppress

from headrace.core.outcome import Outcome, Ticket
from headrace.core.transactions import add_partitions, end_txn, markers
from headrace.core.transactions.effects import DrawProducerId, NeedsProducerId, WriteMarkers
from headrace.core.transactions.init_producer_id import init_producer_id
from headrace.core.transactions.shard import Settings, TransactionShard
from headrace.core.transactions.transaction import record_of
from headrace.model.errors import ErrorCode, Rejected
from headrace.model.ids import Millis, ProducerId, TopicPartition

SETTINGS = Settings(
    transaction_version=2,
    timeout_ms_max=900_000,
    expiration_ms=604_800_000,
    expiration_interval_ms=3_600_000,
)


def partitions(*numbers, topic="orders"):
    return [TopicPartition(topic, number) for number in numbers]


class Coordinator:
    """One shard and its surroundings. Only ``advance`` moves ``now``."""

    def __init__(self, **settings):
        self.settings = SETTINGS._replace(**settings)
        self.now = Millis(1_000_000)
        self.log = []  # of (key, value)
        self.marked = []  # every marker, in its order: (partition, producer id, epoch, commit)
        self.held_markers = []  # WriteMarkers that ``hold_markers`` keeps from the partitions
        self.hold_markers = False
        self.refusals = {}  # partition -> the code that its leader answers with
        self.append_fails = False
        self.next_producer_id = 100
        self.restart()

    # --- the runtime

    def restart(self):
        """A new shard, loaded from the log."""
        self.shard = TransactionShard(lambda: 7, lambda: self.settings)
        self.held_markers = []
        for offset, (key, value) in enumerate(self.log):
            self.shard.replay(key, value, offset, -1, -1)
        self.carry_out(self.shard.loaded(self.now))

    def advance(self, ms):
        self.now = Millis(self.now + ms)
        while (at := self.shard.next_deadline()) is not None and at <= self.now:
            self.carry_out_alone(self.shard.tick(self.now))

    def carry_out_alone(self, outcome: Outcome):
        """For outcomes without a client: a failure is ignored."""
        with suppress(Rejected):
            self.carry_out(outcome)

    def carry_out(self, outcome: Outcome):
        """The responses of the outcome, after its records are in the log."""
        if outcome.records:
            if self.append_fails:
                raise Rejected(ErrorCode.COORDINATOR_NOT_AVAILABLE)
            for key, value in outcome.records:
                self.log.append((key, value))
                self.shard.replay(key, value, len(self.log) - 1, -1, -1)
        for effect in outcome.effects:
            match effect:
                case WriteMarkers():
                    if self.hold_markers:
                        self.held_markers.append(effect)
                    else:
                        self.write_markers(effect)
                case DrawProducerId():
                    self.shard.producer_id_drawn(self.draw())
        return [reply.response for reply in outcome.replies]

    def draw(self):
        self.next_producer_id += 1
        return ProducerId(self.next_producer_id - 1)

    def write_markers(self, effect: WriteMarkers):
        codes = {}
        for partition in effect.partitions:
            codes[partition] = self.refusals.get(partition, ErrorCode.NONE)
            if codes[partition] is ErrorCode.NONE:
                codes[partition] = self.mark(partition, effect)
        self.carry_out_alone(markers.answered(self.shard, effect, codes, self.now))

    def mark(self, partition, effect: WriteMarkers) -> ErrorCode:
        """Write one marker to one partition."""
        self.marked.append((partition, effect.producer_id, effect.producer_epoch, effect.commit))
        return ErrorCode.NONE

    def release_markers(self):
        self.hold_markers = False
        held, self.held_markers = self.held_markers, []
        for effect in held:
            self.write_markers(effect)

    # --- requests

    def ask(self, decide):
        try:
            outcome = decide()
        except NeedsProducerId:
            self.shard.producer_id_drawn(self.draw())
            outcome = decide()
        (response,) = self.carry_out(outcome)
        return response

    def init(self, transactional_id="tx", timeout_ms=60_000, expected=None):
        """(code, producer id, epoch)"""
        response = self.ask(
            lambda: init_producer_id(
                self.shard, Ticket(1), transactional_id, timeout_ms, expected, self.now
            )
        )
        return ErrorCode(response.error_code), response.producer_id, response.producer_epoch

    def add(self, producer, *numbers, transactional_id="tx", version=0):
        response = self.ask(
            lambda: add_partitions.add(
                self.shard,
                Ticket(1),
                transactional_id,
                producer,
                partitions(*numbers),
                version,
                self.now,
            )
        )
        return codes_of(response)

    def verify(self, producer, *numbers, transactional_id="tx"):
        response = self.ask(
            lambda: add_partitions.verify(
                self.shard, Ticket(1), transactional_id, producer, partitions(*numbers), self.now
            )
        )
        return codes_of(response)

    def end(self, producer, commit, transactional_id="tx", version=0):
        """(code, producer id, epoch)"""
        try:
            response = self.ask(
                lambda: end_txn.end(
                    self.shard, Ticket(1), transactional_id, producer, commit, version, self.now
                )
            )
        except Rejected as refusal:
            return refusal.code, -1, -1
        return ErrorCode(response.error_code), response.producer_id, response.producer_epoch

    def at_epoch(self, producer_epoch, **changes):
        """Bring ``tx`` to an epoch without thirty thousand inits: through its record."""
        self.init()
        known = self.known()._replace(producer_epoch=producer_epoch, **changes)
        record = record_of(known, self.settings.transaction_version)
        self.log.append(record)
        self.shard.replay(*record, len(self.log) - 1, -1, -1)
        return known.producer_id, producer_epoch

    def known(self, transactional_id="tx"):
        return self.shard.transactions[transactional_id]

    @property
    def markers(self):
        """Each marker as (partition number, epoch, commit)."""
        return [(partition.partition, epoch, commit) for partition, _, epoch, commit in self.marked]


def codes_of(response):
    """The codes of all partitions, in the order of the request; one if they agree."""
    codes = [
        ErrorCode(partition.partition_error_code)
        for topic in response.topic_results
        for partition in topic.results_by_partition
    ]
    return codes[0] if len(set(codes)) == 1 else codes
