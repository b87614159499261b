"""What a query read, from the messages of its tasks."""

from headrace.model.audit import LoadMessage, ReadMessage, ReadRange
from headrace.pipeline.quality.reads import in_a_row, loaded_by, read_by

MINUTE = 60_000


def piece(first, end, partition=0, topic_id="T"):
    return ReadRange("views", topic_id, partition, first, end, {MINUTE: end - first})


def read(*messages, last=9):
    return read_by([ReadMessage("q", batch, ranges) for batch, ranges in messages], "T", last)


def test_the_ranges_of_all_batches_and_partitions_are_counted():
    found = read((0, (piece(5, 9), piece(0, 3, partition=1))), (1, (piece(9, 10),)))
    assert found.first_offsets == {0: 5, 1: 0}
    assert found.counts == {MINUTE: 4 + 3 + 1}


def test_a_batch_that_ran_again_with_other_tasks_counts_once():
    found = read((0, (piece(0, 60),)), (0, (piece(0, 50),)), (0, (piece(50, 100),)))
    assert found.counts == {MINUTE: 100}


def test_what_two_batches_read_counts_twice():
    assert read((0, (piece(0, 10),)), (1, (piece(4, 8),))).counts == {MINUTE: 14}


def test_batches_that_may_be_unfinished_and_other_topics_are_left_out():
    messages = (0, (piece(0, 10), piece(0, 7, topic_id="older"))), (1, (piece(10, 20),))
    assert read(*messages, last=0).counts == {MINUTE: 10}


def test_ranges_after_a_gap_are_kept():
    ranges = [piece(20, 30), piece(0, 10), piece(30, 31)]
    assert [one.first_offset for one in in_a_row(ranges)] == [0, 20, 30]


def test_an_empty_range_counts_nothing():
    assert in_a_row([piece(5, 5)]) == []
    assert in_a_row([piece(5, 5), piece(5, 8), piece(8, 8)]) == [piece(5, 8)]


def test_a_load_counts_each_offset_once_however_often_it_published():
    messages = [
        LoadMessage("t", (piece(0, 60),)),  # killed before its commit
        LoadMessage("t", (piece(0, 100), piece(0, 5, partition=1))),
        LoadMessage("t", (piece(0, 100),)),
        LoadMessage("t", (ReadRange("views", "T", 0, 100, 140, {}),), is_lost=True),
        LoadMessage("t", (piece(140, 150), piece(0, 9, topic_id="older"))),
    ]
    found = loaded_by(messages, "T")
    assert (found.first_offsets, found.end_offsets) == ({0: 0, 1: 0}, {0: 150, 1: 5})
    assert found.counts == {MINUTE: 100 + 10 + 5}


def test_many_commits_are_put_in_a_row_quickly():
    pieces = [piece(first, first + 1) for first in range(50_000)]
    assert in_a_row(pieces) == pieces
