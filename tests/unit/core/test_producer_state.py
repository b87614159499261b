"""Idempotent and transactional producers, as one partition sees them."""

import pytest

from headrace.core.producer_state import (
    AbortedTransaction,
    EndMarker,
    Origin,
    Producers,
    SnapshotEntry,
)
from headrace.model.errors import ErrorCode, Rejected
from headrace.records.batch import CONTROL, MAX_SEQUENCE, TRANSACTIONAL, BatchHeader

CLIENT, COORDINATOR, REPLICATION = Origin.CLIENT, Origin.COORDINATOR, Origin.REPLICATION
NOW = 1_000_000


class Partition:
    """A log with offsets only."""

    def __init__(self):
        self.producers = Producers(expiration_ms=1000)
        self.log_end = 0

    def send(self, sequence, count=1, *, producer=7, epoch=0, origin=CLIENT, transactional=False):
        attributes = TRANSACTIONAL if transactional else 0
        header = BatchHeader(
            0, 99, 0, 2, 0, attributes, count - 1, NOW, NOW, producer, epoch, sequence, count
        )
        seen = self.producers.append(header, self.log_end, NOW, origin)
        if seen is None:
            self.log_end += count
        return seen

    def end(self, *, commit, producer=7, epoch=0, coordinator=0, origin=COORDINATOR, version=0):
        attributes = TRANSACTIONAL | CONTROL
        header = BatchHeader(0, 78, 0, 2, 0, attributes, 0, NOW, NOW, producer, epoch, -1, 1)
        marker = EndMarker(commit, coordinator, NOW)
        self.producers.append(header, self.log_end, NOW, origin, marker, version)
        self.log_end += 1

    def refuses(self, code, *args, **options):
        before = dict(self.producers.entries)
        with pytest.raises(Rejected) as refusal:
            self.send(*args, **options)
        assert refusal.value.code is code
        assert self.producers.entries == before
        return True


@pytest.fixture
def partition():
    return Partition()


# -- sequences ---------------------------------------------------------------------------


def test_consecutive_sequences_are_accepted(partition):
    for sequence in (0, 3, 6):
        assert partition.send(sequence, 3) is None
    assert partition.producers.entries[7].last_sequence == 8


@pytest.mark.parametrize("sequence", [4, 7, 0])
def test_a_gap_or_a_step_back_is_out_of_order(partition, sequence):
    partition.send(0, 5)
    assert partition.refuses(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, sequence)


def test_a_duplicate_is_answered_with_its_first_offsets(partition):
    partition.send(0, 3)
    partition.send(3, 2)
    again = partition.send(0, 3)
    assert (again.base_offset, again.last_offset) == (0, 2)
    assert partition.log_end == 5


def test_five_batches_are_remembered_and_not_a_sixth(partition):
    for sequence in range(6):
        partition.send(sequence)
    assert partition.send(1).base_offset == 1
    assert partition.refuses(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, 0)


def test_a_batch_with_a_known_start_but_another_length_is_no_duplicate(partition):
    partition.send(0, 3)
    assert partition.refuses(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, 0, 2)


def test_an_unknown_producer_may_begin_anywhere(partition):
    assert partition.send(42) is None
    assert partition.send(43) is None


def test_sequences_wrap_to_zero(partition):
    partition.send(MAX_SEQUENCE - 1, 2)
    assert partition.send(0) is None
    assert partition.send(MAX_SEQUENCE - 1, 2).base_offset == 0


def test_a_batch_may_wrap_in_its_middle(partition):
    partition.send(MAX_SEQUENCE, 3)
    assert partition.producers.entries[7].last_sequence == 1
    assert partition.send(2) is None
    assert partition.send(MAX_SEQUENCE, 3).last_offset == 2


def test_producers_do_not_mix(partition):
    partition.send(0, producer=1)
    partition.send(0, producer=2)
    assert partition.send(1, producer=1) is None
    assert partition.send(0, producer=2).base_offset == 1


# -- epochs ------------------------------------------------------------------------------


def test_a_new_epoch_begins_with_sequence_zero(partition):
    partition.send(0, 5)
    assert partition.refuses(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, 5, epoch=1)
    assert partition.send(0, epoch=1) is None


def test_a_batch_of_the_old_epoch_is_no_duplicate_in_the_new_one(partition):
    partition.send(0, 2, epoch=0)
    partition.send(0, 2, epoch=1)
    assert partition.refuses(ErrorCode.INVALID_PRODUCER_EPOCH, 0, 2, epoch=0)


def test_a_zombie_is_fenced(partition):
    partition.send(0, epoch=3)
    assert partition.refuses(ErrorCode.INVALID_PRODUCER_EPOCH, 1, epoch=2)
    assert partition.refuses(ErrorCode.INVALID_PRODUCER_EPOCH, 1, epoch=2, origin=COORDINATOR)


def test_a_follower_accepts_what_the_leader_has_decided(partition):
    partition.send(0, epoch=3)
    assert partition.send(9, epoch=2, origin=REPLICATION) is None
    assert partition.send(50, epoch=2, origin=REPLICATION) is None


def test_a_coordinator_writes_without_sequences(partition):
    partition.send(-1, 2, transactional=True, origin=COORDINATOR)
    partition.send(-1, 2, transactional=True, origin=COORDINATOR)
    assert partition.producers.entries[7].last_sequence == -1


# -- transactions ------------------------------------------------------------------------


def test_an_open_transaction_holds_the_stable_end_back(partition):
    partition.send(0, 2, producer=1)
    partition.send(0, 3, producer=2, transactional=True)
    partition.send(2, producer=1)
    assert partition.producers.first_unstable_offset == 2


def test_of_several_open_transactions_the_first_counts(partition):
    partition.send(0, producer=1, transactional=True)
    partition.send(0, producer=2, transactional=True)
    partition.end(commit=True, producer=1)
    partition.producers.high_watermark_advanced(partition.log_end)
    assert partition.producers.first_unstable_offset == 1


def test_an_ended_transaction_is_unstable_until_its_marker_is_replicated(partition):
    partition.send(0, 2, transactional=True)
    partition.end(commit=True)
    producers = partition.producers
    assert producers.first_unstable_offset == 0
    producers.high_watermark_advanced(2)
    assert producers.first_unstable_offset == 0
    producers.high_watermark_advanced(3)
    assert producers.first_unstable_offset is None


def test_an_abort_is_noted_for_readers(partition):
    partition.send(0, 2, transactional=True)
    partition.end(commit=False)
    assert partition.producers.aborted == [AbortedTransaction(7, 0, 2, 3)]
    partition.producers.written()
    assert partition.producers.aborted == []


def test_an_abort_after_an_open_transaction_is_stable_only_up_to_that(partition):
    partition.send(0, producer=1, transactional=True)
    partition.send(0, producer=2, transactional=True)
    partition.end(commit=False, producer=2)
    assert partition.producers.aborted == [AbortedTransaction(2, 1, 2, 0)]


def test_a_marker_without_a_transaction_changes_epochs_only(partition):
    partition.send(0)
    partition.end(commit=False, epoch=1)
    assert partition.producers.aborted == []
    assert partition.producers.entries[7].producer_epoch == 1
    assert partition.refuses(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, 1, epoch=1)
    assert partition.send(0, epoch=1) is None


def test_a_batch_outside_of_the_open_transaction_is_refused(partition):
    partition.send(0, transactional=True)
    assert partition.refuses(ErrorCode.INVALID_TXN_STATE, 1)


def test_markers_of_a_zombie_coordinator_are_fenced(partition):
    partition.send(0, transactional=True)
    partition.end(commit=True, coordinator=5)
    with pytest.raises(Rejected) as refusal:
        partition.end(commit=True, coordinator=4)
    assert refusal.value.code is ErrorCode.TRANSACTION_COORDINATOR_FENCED
    partition.end(commit=True, coordinator=4, origin=REPLICATION)


def test_a_marker_of_an_older_producer_epoch_is_fenced(partition):
    partition.send(0, epoch=2, transactional=True)
    with pytest.raises(Rejected) as refusal:
        partition.end(commit=True, epoch=1)
    assert refusal.value.code is ErrorCode.INVALID_PRODUCER_EPOCH


def test_a_late_marker_cannot_end_the_next_transaction(partition):
    """KIP-890: with transaction version 2 every marker carries a bumped epoch."""
    partition.send(0, transactional=True)
    partition.end(commit=True, epoch=1, version=2)
    partition.end(commit=True, epoch=1, version=2)  # harmless: the coordinator repeats itself
    partition.send(0, epoch=1, transactional=True)
    with pytest.raises(Rejected) as refusal:
        partition.end(commit=True, epoch=1, version=2)
    assert refusal.value.code is ErrorCode.INVALID_PRODUCER_EPOCH
    assert partition.producers.has_ongoing_transaction(7, 1)


def test_a_control_batch_without_its_record_changes_nothing(partition):
    partition.send(0, transactional=True)
    header = BatchHeader(0, 61, 0, 2, 0, CONTROL | TRANSACTIONAL, 0, NOW, NOW, 7, 0, -1, 0)
    partition.producers.append(header, 1, NOW, REPLICATION, None)
    assert partition.producers.has_ongoing_transaction(7, 0)


# -- undoing -----------------------------------------------------------------------------


def test_unwritten_batches_are_undone(partition):
    partition.send(0, 2, producer=1)
    partition.send(0, producer=2, transactional=True)
    producers = partition.producers
    producers.written()
    entries, ongoing = dict(producers.entries), dict(producers.ongoing)

    partition.send(2, 5, producer=1)
    partition.send(7, 1, producer=1)
    partition.end(commit=False, producer=2)
    partition.send(0, producer=3, transactional=True)
    producers.undo()
    assert (producers.entries, producers.ongoing) == (entries, ongoing)
    assert (producers.unreplicated, producers.aborted) == ({}, [])
    assert partition.send(2, 5, producer=1) is None


def test_undoing_leaves_open_transactions_in_the_order_they_began(partition):
    producers = partition.producers
    for producer in (1, 2, 3):
        partition.send(0, producer=producer, transactional=True)
    partition.end(commit=True, producer=3)
    producers.written()
    ongoing, unreplicated = list(producers.ongoing.items()), dict(producers.unreplicated)

    partition.end(commit=True, producer=1)
    partition.send(0, producer=4, transactional=True)
    partition.end(commit=False, producer=4)
    partition.send(1, producer=3, transactional=True)
    producers.undo()
    assert list(producers.ongoing.items()) == ongoing
    assert producers.unreplicated == unreplicated
    assert producers.first_unstable_offset == 0


def test_written_batches_are_not_undone(partition):
    partition.send(0, transactional=True)
    partition.producers.written()
    partition.producers.undo()
    assert partition.producers.first_unstable_offset == 0


# -- expiry and snapshots ----------------------------------------------------------------


def test_an_idle_producer_expires_after_the_time_and_not_before(partition):
    partition.send(0)
    assert partition.producers.expire(NOW + 999) == 0
    assert partition.producers.expire(NOW + 1000) == 1
    assert partition.send(17) is None


def test_a_producer_with_an_open_transaction_does_not_expire(partition):
    partition.send(0, transactional=True)
    assert partition.producers.expire(NOW + 10**9) == 0


def test_a_snapshot_brings_back_the_last_batch_and_open_transactions(partition):
    partition.send(0, 2, producer=2, transactional=True)
    for sequence in (0, 3):
        partition.send(sequence, 3, producer=1)
    partition.send(0, producer=3, transactional=True)
    partition.end(commit=True, producer=3, coordinator=9)
    saved = list(partition.producers.snapshot())
    assert saved[0] == SnapshotEntry(1, 0, 5, 7, 2, NOW, -1, -1)

    restored = Partition()
    restored.log_end = partition.log_end
    restored.producers.restore(saved, NOW)
    assert list(restored.producers.snapshot()) == saved
    assert restored.producers.ongoing == {0: 2}
    assert restored.send(3, 3, producer=1).base_offset == 5
    assert restored.refuses(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, 0, 3, producer=1)
    assert restored.producers.entries[3].coordinator_epoch == 9


def test_a_snapshot_of_a_wrapped_sequence_still_knows_the_duplicate(partition):
    partition.send(MAX_SEQUENCE, 3)
    restored = Partition()
    restored.producers.restore(partition.producers.snapshot(), NOW)
    assert restored.send(MAX_SEQUENCE, 3).last_offset == 2


def test_restoring_skips_expired_producers(partition):
    partition.send(0, producer=1)
    partition.send(0, producer=2, transactional=True)
    restored = Producers(expiration_ms=1000)
    restored.restore(partition.producers.snapshot(), NOW + 1000)
    assert list(restored.entries) == [2]
