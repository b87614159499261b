"""What a query read, from the messages of its tasks."""

from headrace.model.audit import ReadMessage, ReadRange
from headrace.pipeline.quality.reads import in_a_row, read_by

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
