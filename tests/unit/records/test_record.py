"""Build and read records with every codec, and read those of real clients."""

import struct
import zlib
from pathlib import Path

import pytest

from headrace.model.errors import ErrorCode
from headrace.records.batch import (
    APPEND_TIME,
    ATTRIBUTES_AT,
    CODEC_NAMES,
    MAX_TIMESTAMP_AT,
    RECORD_COUNT_AT,
    BadBatch,
    crc_holds,
    read_header,
    seal,
)
from headrace.records.compression import compress
from headrace.records.record import (
    ABORT,
    COMMIT,
    Record,
    build_batch,
    build_marker,
    iter_records,
    marker_type,
    open_records,
    recompress,
    spans,
    validate_records,
    with_timestamp_delta,
)

GOLDEN = Path(__file__).parents[2] / "golden" / "batches"
T0 = 1_700_000_000_000
CODECS = range(5)

RECORDS = [
    Record(0, T0, b"key", b"value", (("h", b"\x01"), ("null", None), ("", b""))),
    Record(1, T0 - 5, None, b"no key"),
    Record(2, T0 + 100_000, b"tombstone", None),
    Record(3, -1, b"", b""),
    Record(4, T0, b"k" * 200, b"v" * 70_000),
]


@pytest.mark.parametrize("codec", CODECS, ids=CODEC_NAMES)
def test_records_read_as_they_were_built(codec: int) -> None:
    batch = build_batch(RECORDS, codec=codec)
    assert list(iter_records(batch)) == RECORDS
    assert list(iter_records(memoryview(batch))) == RECORDS
    assert crc_holds(memoryview(batch), read_header(batch))


@pytest.mark.parametrize("codec", CODECS, ids=CODEC_NAMES)
def test_offsets_may_have_gaps_and_the_last_record_may_be_missing(codec: int) -> None:
    kept = [RECORDS[0]._replace(offset=102), RECORDS[2]._replace(offset=107)]
    batch = build_batch(kept, base_offset=100, codec=codec, last_offset_delta=9)
    assert list(iter_records(batch)) == kept
    assert read_header(batch).next_offset == 110


def test_a_batch_may_have_no_records_left() -> None:
    batch = build_batch([], base_offset=5, last_offset_delta=3, codec=2, producer_id=1)
    assert len(batch) == 61
    assert read_header(batch).codec == 0
    assert list(iter_records(batch)) == []


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.bin")), ids=lambda path: path.stem)
def test_batches_of_real_clients_can_be_read(path: Path) -> None:
    batch = path.read_bytes()
    header = read_header(batch)
    assert header.size == len(batch)
    assert crc_holds(memoryview(batch), header)
    assert CODEC_NAMES[header.codec] == path.stem.partition("-")[2]
    assert validate_records(batch, compacted=False) == []
    records = list(iter_records(batch))
    assert len(records) == header.record_count > 50
    for record in records:
        i = record.timestamp - T0
        assert record.key == (None if i % 7 == 0 else b"key-%d" % (i % 10))
        assert record.value == (None if i % 5 == 0 else b"value %d " % i * 40)
        assert record.headers == ((("h", b"\x01\x02"), ("null", None)) if i % 3 == 0 else ())


@pytest.mark.parametrize("codec", CODECS, ids=CODEC_NAMES)
def test_recompressing_changes_the_codec_and_nothing_else(codec: int) -> None:
    batch = build_batch(
        RECORDS, codec=1, producer_id=3, producer_epoch=2, base_sequence=1, leader_epoch=6
    )

    again = recompress(batch, codec)

    header = read_header(again)
    assert header.codec == codec
    assert crc_holds(memoryview(again), header)
    assert header._replace(size=0, crc=0, attributes=0) == read_header(batch)._replace(
        size=0, crc=0, attributes=0
    )
    assert list(iter_records(again)) == RECORDS


def test_spans_cover_the_section_without_gaps() -> None:
    batch = build_batch(RECORDS)
    header = read_header(batch)
    data = open_records(batch, header)

    found = spans(data, header.record_count)

    assert [span.start for span in found] == [0] + [span.end for span in found[:-1]]
    assert found[-1].end == len(data)
    assert [span.key for span in found] == [record.key for record in RECORDS]
    assert [span.offset_delta for span in found] == [0, 1, 2, 3, 4]
    assert [header.base_timestamp + span.timestamp_delta for span in found] == [
        record.timestamp for record in RECORDS
    ]
    assert [span.has_value for span in found] == [record.value is not None for record in RECORDS]


def test_a_record_can_be_moved_to_another_base_timestamp() -> None:
    batch = build_batch(RECORDS)
    header = read_header(batch)
    data = open_records(batch, header)
    horizon = T0 + 86_400_000
    moved = b"".join(
        with_timestamp_delta(data, span, header.base_timestamp + span.timestamp_delta - horizon)
        for span in spans(data, len(RECORDS))
    )
    built = build_batch(RECORDS, delete_horizon=horizon)
    assert moved == open_records(built, read_header(built))
    assert list(iter_records(built)) == RECORDS
    assert read_header(built).delete_horizon == horizon


def test_markers_say_commit_or_abort() -> None:
    for commit, kind in ((True, COMMIT), (False, ABORT)):
        batch = build_marker(
            commit=commit, producer_id=9, producer_epoch=1, coordinator_epoch=4, timestamp=T0
        )
        header = read_header(batch)
        assert header.is_control and header.is_transactional
        (record,) = iter_records(batch)
        assert marker_type(record.key) == kind
        assert record.value == struct.pack(">hi", 0, 4)
        assert batch == build_batch(
            [record], producer_id=9, producer_epoch=1, transactional=True, control=True
        )
    with pytest.raises(BadBatch):
        marker_type(None)


def test_records_without_a_key_are_refused_only_on_a_compacted_topic() -> None:
    batch = build_batch([Record(i, T0, key, b"v") for i, key in enumerate((None, b"k", None))])
    assert validate_records(batch, compacted=False) == []
    faults = validate_records(batch, compacted=True)
    assert [fault.record_index for fault in faults] == [0, 2]
    assert {fault.code for fault in faults} == {ErrorCode.INVALID_RECORD}


def test_offset_deltas_must_count_up_from_zero() -> None:
    batch = build_batch([Record(0, T0, b"k", b"v"), Record(5, T0, b"k", b"v")])
    (fault,) = validate_records(batch, compacted=False)
    assert fault.record_index == 1


def test_a_wrong_maximum_timestamp_is_refused() -> None:
    batch = bytearray(build_batch([Record(0, T0, b"k", b"v")]))
    struct.pack_into(">q", batch, MAX_TIMESTAMP_AT, T0 + 1)
    assert len(validate_records(batch, compacted=False)) == 1
    struct.pack_into(">h", batch, ATTRIBUTES_AT, APPEND_TIME)
    assert validate_records(batch, compacted=False) == []


@pytest.mark.parametrize("count", [1, 3])
def test_a_wrong_record_count_raises_bad_batch(count: int) -> None:
    batch = bytearray(build_batch(RECORDS[:2]))
    struct.pack_into(">i", batch, RECORD_COUNT_AT, count)
    with pytest.raises(BadBatch):
        validate_records(batch, compacted=False)
    with pytest.raises(BadBatch):
        spans(open_records(batch, read_header(batch)), count)


@pytest.mark.parametrize("codec", [1, 2, 3, 4], ids=CODEC_NAMES[1:])
def test_garbage_under_a_codec_raises_bad_batch(codec: int) -> None:
    batch = bytearray(build_batch(RECORDS[:2]))
    struct.pack_into(">h", batch, ATTRIBUTES_AT, codec)
    seal(batch)
    with pytest.raises(BadBatch):
        list(iter_records(batch))


def legacy(
    magic: int,
    offset: int,
    key: bytes | None,
    value: bytes | None,
    attributes: int = 0,
    time: int = T0,
) -> bytes:
    def field(data: bytes | None) -> bytes:
        return struct.pack(">i", -1) if data is None else struct.pack(">i", len(data)) + data

    body = struct.pack(">bb", magic, attributes)
    if magic:
        body += struct.pack(">q", time)
    body += field(key) + field(value)
    return struct.pack(">qiI", offset, len(body) + 4, zlib.crc32(body)) + body


@pytest.mark.parametrize("magic", [0, 1])
def test_messages_of_magic_0_and_1_are_read(magic: int) -> None:
    message = legacy(magic, 42, b"k", None)
    header = read_header(message)
    assert (header.base_offset, header.next_offset, header.size) == (42, 43, len(message))
    assert (header.magic, header.record_count, header.producer_id) == (magic, 1, -1)
    assert crc_holds(memoryview(message), header)
    assert list(iter_records(message)) == [Record(42, T0 if magic else -1, b"k", None)]
    with pytest.raises(BadBatch):
        list(iter_records(message[:-1]))


@pytest.mark.parametrize("codec", [1, 2])
def test_wrappers_of_magic_0_and_1_give_their_messages_absolute_offsets(codec: int) -> None:
    inner = b"".join(legacy(1, i, b"k%d" % i, b"v", time=T0 + i) for i in range(3))
    wrapper = legacy(1, 102, None, compress(codec, inner), attributes=codec, time=T0 + 2)
    assert list(iter_records(wrapper)) == [
        Record(100 + i, T0 + i, b"k%d" % i, b"v") for i in range(3)
    ]
    stamped = legacy(1, 102, None, compress(codec, inner), attributes=codec | APPEND_TIME, time=7)
    assert [record.timestamp for record in iter_records(stamped)] == [7, 7, 7]
    inner = b"".join(legacy(0, 50 + i, b"k", b"v") for i in range(3))
    wrapper = legacy(0, 52, None, compress(codec, inner), attributes=codec)
    assert [record.offset for record in iter_records(wrapper)] == [50, 51, 52]
