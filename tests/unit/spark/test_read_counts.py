"""The counts of what tasks read: by minute, in messages that brokers take."""

from collections import Counter

import numpy as np
import pytest

from headrace.model.audit import MINUTE_MS, ReadMessage
from headrace.model.ids import TopicPartition
from headrace.spark.offsets import Range
from headrace.spark.read_counts import RangeCounts, count_by_minute, groups

MESSAGE_BYTES_MAX = 1_000_000
TOPIC_ID = bytes(16)


class Fetched:
    """The columns of records that are counted."""

    def __init__(self, first_offset, timestamp_ms):
        self.size = len(timestamp_ms)
        self.offset = np.arange(first_offset, first_offset + self.size)
        self.timestamp_ms = np.array(timestamp_ms, np.int64)


def counted(*fetched, end):
    counts = RangeCounts(Range(TopicPartition("views", 3), 0, end), TOPIC_ID)
    for one in fetched:
        counts.add(one)
    return counts.ranges()


@pytest.mark.parametrize("last", [10 * MINUTE_MS, 10**12, (1 << 62)])
def test_timestamps_are_counted_by_minute(last):
    found = count_by_minute(np.array([0, 59_999, 60_000, -1, last, 61_000], np.int64))
    assert found == {-MINUTE_MS: 1, 0: 2, MINUTE_MS: 2, last - last % MINUTE_MS: 1}


def test_no_timestamps():
    assert count_by_minute(np.array([], np.int64)) == {}


def test_a_range_is_one_piece_with_offsets_that_no_record_has():
    (found,) = counted(Fetched(2, [0, 0]), Fetched(7, [MINUTE_MS]), end=9)
    assert found[:5] == ("views", "AAAAAAAAAAAAAAAAAAAAAA", 3, 0, 9)
    assert found.counts == {0: 2, MINUTE_MS: 1}


def test_a_year_of_minutes_makes_pieces_that_follow_each_other_and_messages_of_some_size():
    times = [MINUTE_MS * n for n in range(525_600)]
    pieces = counted(Fetched(0, times[:300_007]), Fetched(300_007, times[300_007:]), end=525_600)
    ends = [one.offset_end for one in pieces]
    assert [one.first_offset for one in pieces] == [0, *ends[:-1]] and ends[-1] == 525_600
    total = Counter()
    for one in pieces:
        assert sum(one.counts.values()) == one.offset_end - one.first_offset
        total.update(one.counts)
    assert total == dict.fromkeys(times, 1)

    messages = [ReadMessage("q", 0, some) for some in groups(pieces)]
    assert all(len(one.key) + len(one.value) < MESSAGE_BYTES_MAX for one in messages)
    assert [one for message in messages for one in message.ranges] == pieces
    assert len({message.key for message in messages}) == len(messages)


def test_many_partitions_make_messages_of_some_size():
    pieces = [
        counted(Fetched(0, [0]), end=1)[0]._replace(topic="t" * 249, partition=n)
        for n in range(3_000)
    ]
    messages = [ReadMessage("q", 0, some) for some in groups(pieces)]
    assert all(len(one.key) + len(one.value) < MESSAGE_BYTES_MAX for one in messages)
    assert sum(len(message.ranges) for message in messages) == 3_000
