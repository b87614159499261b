"""The batch header: reading, error codes of invalid batches, stamping."""

import struct
from collections.abc import Callable

import pytest

from headrace.model.errors import ErrorCode, Rejected
from headrace.records import batch as batch_layout
from headrace.records.batch import (
    APPEND_TIME,
    CONTROL,
    HEADER,
    HEADER_SIZE,
    ZSTD,
    BadBatch,
    BatchHeader,
    check_produced,
    crc_holds,
    headers,
    read_header,
    seal,
    stamp,
    stamp_append_time,
)
from headrace.records.record import Record, build_batch, iter_records

RECORDS = [Record(i, 1_700_000_000_000 + i, b"k%d" % i, b"v") for i in range(3)]


def a_batch(**changes: object) -> bytearray:
    return bytearray(build_batch(RECORDS, **changes))  # type: ignore[arg-type]


def changed(at: str, value: int, *, sealed: bool = True) -> Callable[[], bytearray]:
    """A batch with one header field overwritten; ``sealed`` updates its CRC."""
    places = {
        "base_offset": (">q", batch_layout.BASE_OFFSET_AT),
        "length": (">i", batch_layout.LENGTH_AT),
        "magic": (">b", batch_layout.MAGIC_AT),
        "crc": (">I", batch_layout.CRC_AT),
        "attributes": (">h", batch_layout.ATTRIBUTES_AT),
        "last_offset_delta": (">i", batch_layout.LAST_OFFSET_DELTA_AT),
        "producer_id": (">q", batch_layout.PRODUCER_ID_AT),
        "base_sequence": (">i", batch_layout.BASE_SEQUENCE_AT),
        "record_count": (">i", batch_layout.RECORD_COUNT_AT),
    }

    def build() -> bytearray:
        batch = a_batch()
        struct.pack_into(places[at][0], batch, places[at][1], value)
        if sealed:
            seal(batch)
        return batch

    return build


def test_the_header_reads_as_it_was_built() -> None:
    batch = a_batch(
        codec=2,
        producer_id=7,
        producer_epoch=1,
        base_sequence=5,
        transactional=True,
        leader_epoch=4,
    )

    header = read_header(batch)

    assert header.size == len(batch)
    assert (header.base_offset, header.last_offset, header.next_offset) == (0, 2, 3)
    assert (header.codec, header.is_transactional, header.is_control) == (2, True, False)
    assert (header.producer_id, header.producer_epoch, header.leader_epoch) == (7, 1, 4)
    assert (header.base_sequence, header.last_sequence) == (5, 7)
    assert (header.base_timestamp, header.max_timestamp) == (1_700_000_000_000, 1_700_000_000_002)
    assert header.record_count == 3
    assert header.delete_horizon is None
    assert crc_holds(memoryview(batch), header)


def test_a_sequence_wraps_to_zero_after_the_largest() -> None:
    header = read_header(a_batch(producer_id=7, producer_epoch=0, base_sequence=2**31 - 2))
    assert header.last_sequence == 0
    assert read_header(a_batch()).last_sequence == -1


def test_a_valid_batch_is_accepted() -> None:
    batch = a_batch(producer_id=7, producer_epoch=0, base_sequence=0)
    assert check_produced(memoryview(batch)) == read_header(batch)


@pytest.mark.parametrize(
    ("why", "build", "code"),
    [
        ("nothing", lambda: bytearray(), ErrorCode.INVALID_RECORD),
        ("a truncated header", lambda: a_batch()[:60], ErrorCode.INVALID_RECORD),
        ("a truncated batch", lambda: a_batch()[:-1], ErrorCode.INVALID_RECORD),
        ("two batches", lambda: a_batch() + a_batch(), ErrorCode.INVALID_RECORD),
        ("bytes after it", lambda: a_batch() + b"x", ErrorCode.INVALID_RECORD),
        ("a wrong CRC", changed("crc", 1, sealed=False), ErrorCode.CORRUPT_MESSAGE),
        ("an old magic", changed("magic", 1), ErrorCode.INVALID_RECORD),
        ("a future magic", changed("magic", 3), ErrorCode.CORRUPT_MESSAGE),
        ("a negative magic", changed("magic", -1), ErrorCode.CORRUPT_MESSAGE),
        ("a negative length", changed("length", -5), ErrorCode.CORRUPT_MESSAGE),
        ("a tiny length", changed("length", 48), ErrorCode.CORRUPT_MESSAGE),
        ("a base offset", changed("base_offset", 7), ErrorCode.INVALID_RECORD),
        ("too many records", changed("record_count", 4), ErrorCode.INVALID_RECORD),
        ("too few records", changed("record_count", 2), ErrorCode.INVALID_RECORD),
        ("no records", changed("record_count", 0), ErrorCode.INVALID_RECORD),
        ("a wrong last delta", changed("last_offset_delta", 5), ErrorCode.INVALID_RECORD),
        ("a negative last delta", changed("last_offset_delta", -1), ErrorCode.INVALID_RECORD),
        ("a control bit", changed("attributes", CONTROL), ErrorCode.INVALID_RECORD),
        ("an unknown codec", changed("attributes", 5), ErrorCode.INVALID_RECORD),
        ("an append-time bit", changed("attributes", APPEND_TIME), ErrorCode.INVALID_TIMESTAMP),
        ("no sequence", changed("producer_id", 5), ErrorCode.INVALID_RECORD),
    ],
)
def test_a_produced_batch_is_refused_with_kafkas_code_for(
    why: str, build: Callable[[], bytearray], code: ErrorCode
) -> None:
    with pytest.raises(Rejected) as refused:
        check_produced(memoryview(build()))
    assert refused.value.code is code, why
    assert refused.value.message


def test_a_batch_without_records_is_refused() -> None:
    batch = changed("record_count", 0)()
    struct.pack_into(">i", batch, batch_layout.LAST_OFFSET_DELTA_AT, -1)
    seal(batch)
    with pytest.raises(Rejected) as refused:
        check_produced(memoryview(batch))
    assert refused.value.code is ErrorCode.INVALID_RECORD


def test_zstd_needs_produce_version_7() -> None:
    batch = memoryview(a_batch(codec=ZSTD))
    with pytest.raises(Rejected) as refused:
        check_produced(batch, 6)
    assert refused.value.code is ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert check_produced(batch, 7).codec == ZSTD


def test_stamping_leaves_the_crc_valid() -> None:
    batch = a_batch()
    before = bytes(batch)

    stamp(memoryview(batch), 1 << 40, 9)

    header = read_header(batch)
    assert (header.base_offset, header.leader_epoch, header.size) == (1 << 40, 9, len(batch))
    assert crc_holds(memoryview(batch), header)
    assert batch[batch_layout.MAGIC_AT :] == before[batch_layout.MAGIC_AT :]


def test_the_append_time_becomes_the_time_of_every_record_and_the_crc_is_updated() -> None:
    batch = a_batch(codec=1)

    stamp_append_time(memoryview(batch), 5_000)

    header = read_header(batch)
    assert header.log_append_time
    assert header.max_timestamp == 5_000
    assert crc_holds(memoryview(batch), header)
    assert [record.timestamp for record in iter_records(batch)] == [5_000] * 3


def test_headers_walk_over_complete_batches_and_stop_at_a_truncated_one() -> None:
    one, two = bytes(a_batch()), bytes(a_batch(base_offset=0, codec=1))
    buffer = b"xxx" + one + two + one[:-1]

    walked = list(headers(buffer, 3))

    assert [position for position, _ in walked] == [3, 3 + len(one)]
    assert [header.codec for _, header in walked] == [0, 1]
    assert list(headers(buffer, 3, 3 + len(one) - 1)) == []
    assert list(headers(b"")) == []


def test_an_impossible_header_raises_bad_batch() -> None:
    for size in range(HEADER_SIZE):
        with pytest.raises(BadBatch):
            read_header(bytes(a_batch()[:size]))
    with pytest.raises(BadBatch):
        read_header(changed("length", 3)())
    with pytest.raises(BadBatch):
        read_header(changed("magic", 9)())


def test_every_header_field_has_a_position_and_an_index() -> None:
    codes = HEADER.format.removeprefix(">")
    ends = [struct.calcsize(f">{codes[:count]}") for count in range(len(codes) + 1)]
    for index, (field, position) in enumerate(zip(BatchHeader._fields, ends, strict=False)):
        name = field.upper()
        # The length field becomes the size of the whole batch.
        place = "LENGTH_AT" if name == "SIZE" else f"{name}_AT"
        assert getattr(batch_layout, name) == index, name
        assert getattr(batch_layout, place) == position, name
    assert ends[-1] == HEADER_SIZE == batch_layout.RECORDS_AT == 61
