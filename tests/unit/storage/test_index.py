"""The sparse indexes as values."""

import struct

import pytest

from headrace.storage.index import BadIndex, OffsetIndex, TimeIndex


def an_index(*entries: tuple[int, int, int]) -> OffsetIndex:
    index = OffsetIndex()
    for base_offset, last_offset, position in entries:
        index.append(base_offset, last_offset, position)
    return index


def test_a_lookup_returns_the_position_to_scan_from():
    index = an_index((10, 14, 500), (30, 34, 1500))
    assert index.floor(9) == (0, False)
    assert index.floor(10) == (500, True)
    assert index.floor(12) == (500, False)
    assert index.floor(29) == (500, False)
    assert index.floor(99) == (1500, False)


def test_an_index_read_from_a_file_has_only_last_offsets_and_is_correct():
    index = OffsetIndex.decode(an_index((10, 14, 500), (30, 34, 1500)).encode(), 2000)
    assert index.floor(10) == (0, False)
    assert index.floor(14) == (500, False)
    assert index.floor(13) == (0, False)
    assert index.floor(30) == (500, False)


def test_the_file_holds_pairs_of_big_endian_numbers():
    assert an_index((10, 14, 500)).encode() == struct.pack(">II", 14, 500)
    assert an_index((10, 14, 500), (30, 34, 1500)).encode(1) == struct.pack(">II", 34, 1500)


def test_the_last_boundary_before_a_limit_is_found():
    index = an_index((10, 14, 500), (30, 34, 1500))
    assert [index.cut(limit)[0] for limit in (499, 500, 1499, 9999)] == [0, 500, 500, 1500]


def test_a_boundary_from_a_file_comes_with_the_offset_to_verify():
    index = OffsetIndex.decode(an_index((10, 14, 500)).encode(), 2000)
    index.append(30, 34, 1500)
    assert index.cut(600) == (500, 14)
    assert index.cut(1600) == (1500, None)


def test_preallocated_zeros_are_not_entries():
    data = an_index((10, 14, 256)).encode() + bytes(4096)
    assert len(OffsetIndex.decode(data, 2000)) == 1
    assert len(OffsetIndex.decode(bytes(800), 2000)) == 0
    assert len(TimeIndex.decode(struct.pack(">qI", 5, 0) + bytes(120))) == 1


@pytest.mark.parametrize(
    "data",
    [
        b"abc",
        struct.pack(">IIII", 5, 100, 5, 200),
        struct.pack(">IIII", 5, 100, 6, 100),
        struct.pack(">II", 5, 2000),
    ],
    ids=["cut", "same offset", "same position", "behind the log's end"],
)
def test_an_index_that_contradicts_itself_or_the_log_is_refused(data):
    with pytest.raises(BadIndex):
        OffsetIndex.decode(data, 2000)


def test_truncation_keeps_the_batches_before_a_position():
    index = an_index((10, 14, 500), (30, 34, 1500))
    index.saved_count = 2
    index.truncate(1500)
    assert (len(index), index.saved_count) == (1, 1)


def test_a_time_entry_is_added_only_if_the_timestamp_has_grown():
    index = TimeIndex()
    assert index.maybe_append(100, 3)
    assert not index.maybe_append(100, 5)
    assert not index.maybe_append(90, 7)
    assert index.maybe_append(101, 9)
    assert index.encode() == struct.pack(">qIqI", 100, 3, 101, 9)


def test_a_time_lookup_skips_only_older_records():
    index = TimeIndex()
    index.maybe_append(100, 3)
    index.maybe_append(200, 9)
    assert [index.floor(time) for time in (50, 100, 101, 200, 201)] == [0, 0, 3, 3, 9]


@pytest.mark.parametrize(
    "data",
    [b"abc", struct.pack(">qIqI", 5, 1, 5, 2), struct.pack(">qIqI", 5, 2, 6, 1)],
    ids=["cut", "same time", "falling offset"],
)
def test_a_time_index_that_contradicts_itself_is_refused(data):
    with pytest.raises(BadIndex):
        TimeIndex.decode(data)


def test_truncation_of_a_time_index_keeps_earlier_entries():
    index = TimeIndex()
    index.maybe_append(100, 3)
    index.maybe_append(200, 9)
    index.truncate(9)
    assert index.last_timestamp == 100
    index.truncate(0)
    assert index.last_timestamp == -1
