"""Decisions about offsets: commit, repeated, overlap, gap, loss."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.model.ids import TopicPartition
from headrace.pipeline.errors import CommitRefused, LoadStopped
from headrace.pipeline.warehouse.offsets import (
    Bounds,
    Decision,
    Span,
    decide,
    lost_span,
    pending_span,
    txn_id,
)

ID = bytes(range(16))
OTHER_ID = bytes(range(1, 17))
offsets = st.integers(0, 30)


def span(first, end, partition=0, topic="orders", topic_id=ID):
    return Span(TopicPartition(topic, partition), topic_id, first, end)


def test_a_txn_id_is_made_of_topic_id_and_partition_only():
    assert txn_id(ID, 7) == "AAECAwQFBgcICQoLDA0ODw/7"
    assert span(0, 1, topic="renamed").txn_id == span(5, 9).txn_id
    assert span(0, 1, topic_id=OTHER_ID).txn_id != span(0, 1).txn_id
    assert span(0, 1, 1).txn_id != span(0, 1, 11).txn_id


def test_a_batch_that_begins_at_the_recorded_offset_commits():
    assert decide([span(5, 9)], {span(5, 9).txn_id: 5}) is Decision.COMMIT


def test_the_first_batch_of_a_partition_commits():
    assert decide([span(40, 60)], {span(40, 60).txn_id: None}) is Decision.COMMIT


def test_a_batch_that_ends_at_or_before_the_recorded_offset_is_repeated():
    for recorded in (9, 10):
        assert decide([span(5, 9)], {span(5, 9).txn_id: recorded}) is Decision.REPEATED


def test_an_overlap_is_refused_with_both_numbers():
    with pytest.raises(CommitRefused, match=r"overlaps.*begins at offset 5 .*continues at 7"):
        decide([span(5, 9)], {span(5, 9).txn_id: 7})


def test_a_gap_is_refused_with_both_numbers():
    with pytest.raises(CommitRefused, match=r"leaves a gap.*begins at offset 5 .*continues at 3"):
        decide([span(5, 9)], {span(5, 9).txn_id: 3})


def test_a_batch_of_which_only_one_partition_was_loaded_is_refused():
    first, second = span(0, 10), span(0, 10, 1)
    with pytest.raises(CommitRefused, match="orders-0 overlaps"):
        decide([first, second], {first.txn_id: 10, second.txn_id: 0})


@given(st.lists(st.tuples(offsets, offsets, offsets), min_size=1, max_size=5))
def test_every_offset_lands_once_whatever_is_tried(tries):
    """Against a model: the set of loaded offsets. Each try is a batch over two partitions."""
    recorded = {span(0, 1).txn_id: None, span(0, 1, 1).txn_id: None}
    loaded = {0: [], 1: []}
    for first, size, other in tries:
        batch = [span(first, first + size + 1), span(other, other + size + 1, 1)]
        try:
            decision = decide(batch, recorded)
        except CommitRefused:
            continue
        if decision is Decision.REPEATED:
            for one in batch:
                assert one.offset_end <= recorded[one.txn_id]
            continue
        for one in batch:
            loaded[one.place.partition] += range(one.first_offset, one.offset_end)
            recorded[one.txn_id] = one.offset_end
    for rows in loaded.values():
        assert rows == sorted(set(rows))
        assert not rows or rows == list(range(rows[0], rows[-1] + 1))


@given(st.one_of(st.none(), offsets), offsets, offsets)
def test_what_is_pending_begins_where_the_table_continues(recorded, earliest, size):
    bounds = Bounds(earliest, earliest + size)
    place = TopicPartition("orders", 0)
    lost = lost_span(place, ID, recorded, bounds)
    if lost is not None:
        assert (lost.first_offset, lost.offset_end) == (recorded, earliest)
        with pytest.raises(LoadStopped, match=rf"offset {recorded}, .* starts at {earliest}"):
            pending_span(place, ID, recorded, bounds)
        return
    first = earliest if recorded is None else recorded
    if first > bounds.latest:
        with pytest.raises(LoadStopped, match=rf"offset {first}, .* ends at {bounds.latest}"):
            pending_span(place, ID, recorded, bounds)
        return
    pending = pending_span(place, ID, recorded, bounds)
    if first == bounds.latest:
        assert pending is None
    else:
        assert pending == Span(place, ID, first, bounds.latest)
        assert decide([pending], {pending.txn_id: recorded}) is Decision.COMMIT


def test_the_offsets_of_an_empty_log_that_retention_emptied_are_lost():
    assert lost_span(TopicPartition("orders", 0), ID, 3, Bounds(10, 10)) == span(3, 10)
