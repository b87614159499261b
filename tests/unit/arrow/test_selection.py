"""The batches of a fetch that a reader sees."""

import pytest

from headrace.arrow.selection import select_batches
from headrace.records.batch import BadBatch
from headrace.records.record import Record, build_batch, build_marker, iter_records


def a_batch(value, offset, **more):
    return build_batch([Record(offset, 0, None, value)], base_offset=offset, **more)


def values(selected):
    return [record.value for _, batch in selected.sections for record in iter_records(batch)]


def test_a_batch_that_begins_at_or_after_the_end_ends_the_range():
    data = memoryview(a_batch(b"a", 0) + a_batch(b"b", 50))

    selected = select_batches(data, 0, 40, None)

    assert [s.header.base_offset for s in selected.sections] == [0]
    assert selected.next_offset == 40


def test_a_batch_that_the_fetch_cut_off_is_left_for_the_next_fetch():
    whole = a_batch(b"a", 0)
    data = memoryview(whole + a_batch(b"b", 1)[:-1])

    selected = select_batches(data, 0, 100, None)

    assert len(selected.sections) == 1
    assert selected.next_offset == 1
    assert selected.bytes_read == len(whole)


def test_the_offsets_of_the_bytes_read_are_counted_beyond_the_range():
    records = [Record(offset, 0, None, b"a") for offset in range(10)]
    whole = build_batch(records, base_offset=0) + a_batch(b"b", 15)

    selected = select_batches(memoryview(whole), 4, 6, None)

    assert selected.next_offset == 6
    assert (selected.bytes_read, selected.offsets_read) == (len(whole), 16)


def test_aborted_records_are_hidden_until_the_abort_marker():
    def sent(producer_id, offset, value):
        return a_batch(
            value,
            offset,
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=0,
            transactional=True,
        )

    def ended(producer_id, offset, commit):
        return build_marker(
            commit=commit,
            producer_id=producer_id,
            producer_epoch=0,
            coordinator_epoch=0,
            timestamp=0,
            base_offset=offset,
        )

    data = memoryview(
        sent(1, 0, b"lost")
        + sent(2, 1, b"kept")
        + ended(1, 2, commit=False)
        + ended(2, 3, commit=True)
        + sent(1, 4, b"second try")
        + ended(1, 5, commit=True)
    )

    committed = select_batches(data, 0, 100, [(1, 0)])
    everything = select_batches(data, 0, 100, None)

    assert values(committed) == [b"kept", b"second try"]
    assert values(everything) == [
        b"lost",
        b"kept",
        b"second try",
    ]
    assert committed.next_offset == everything.next_offset == 6


def test_a_wrong_checksum_is_refused_unless_checks_are_off():
    batch = bytearray(a_batch(b"value", 0))
    batch[-2] ^= 1

    with pytest.raises(BadBatch, match="checksum"):
        select_batches(memoryview(batch), 0, 10, None)
    assert select_batches(memoryview(batch), 0, 10, None, check_crcs=False).next_offset == 1
