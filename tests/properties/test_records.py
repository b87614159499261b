"""Any records read as they were written, and any garbage raises BadBatch and nothing else."""

from contextlib import suppress

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.model.errors import Rejected
from headrace.records.batch import BadBatch, check_produced, headers, read_header, seal
from headrace.records.record import (
    Record,
    build_batch,
    iter_records,
    open_records,
    recompress,
    spans,
    validate_records,
)

calm = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
fields = st.none() | st.binary(max_size=300)
int64 = st.integers(-(2**62), 2**62)


@st.composite
def batches(draw: st.DrawFn) -> tuple[list[Record], bytes]:
    base_offset = draw(st.integers(0, 2**62))
    gaps = draw(st.lists(st.integers(1, 2**20), max_size=12))
    offset = base_offset - 1
    records = []
    for gap in gaps:
        offset += gap
        record_headers = draw(
            st.lists(st.tuples(st.text("aé\U0001f40d", max_size=5), fields), max_size=3)
        )
        records.append(
            Record(offset, draw(int64), draw(fields), draw(fields), tuple(record_headers))
        )
    batch = build_batch(
        records,
        base_offset=base_offset,
        codec=draw(st.integers(0, 4)),
        last_offset_delta=offset - base_offset + draw(st.integers(1, 9)),
        delete_horizon=draw(st.none() | int64),
    )
    return records, batch


@calm
@given(batches())
def test_records_read_as_they_were_written(built: tuple[list[Record], bytes]) -> None:
    records, batch = built
    assert list(iter_records(batch)) == records
    header = read_header(batch)
    found = spans(open_records(batch, header), len(records))
    assert [
        (header.base_offset + s.offset_delta, header.base_timestamp + s.timestamp_delta, s.key)
        for s in found
    ] == [(r.offset, r.timestamp, r.key) for r in records]
    assert [s.has_value for s in found] == [r.value is not None for r in records]


@calm
@given(batches(), st.integers(0, 4))
def test_recompressed_records_read_as_they_were_written(
    built: tuple[list[Record], bytes], codec: int
) -> None:
    records, batch = built
    assert list(iter_records(recompress(batch, codec))) == records


@settings(calm, max_examples=400)
@given(batches(), st.data())
def test_a_batch_with_flipped_bytes_is_read_or_raises_bad_batch(
    built: tuple[list[Record], bytes], data: st.DataObject
) -> None:
    damaged = bytearray(built[1])
    for at in data.draw(st.lists(st.integers(0, len(damaged) - 1), min_size=1, max_size=4)):
        damaged[at] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        seal(damaged)  # so that the CRC does not reveal the damage
    damaged = damaged[: data.draw(st.integers(0, len(damaged)) | st.just(len(damaged)))]
    with suppress(Rejected):
        check_produced(memoryview(damaged))
    with suppress(BadBatch):
        for _ in headers(damaged):
            pass
        header = read_header(damaged)
        validate_records(damaged, compacted=True)
        assert len(spans(open_records(damaged, header), header.record_count)) == header.record_count


@calm
@given(st.binary(max_size=200))
def test_garbage_raises_bad_batch(garbage: bytes) -> None:
    with suppress(BadBatch):
        records = list(iter_records(garbage))
        header = read_header(garbage)
        assert header.magic < 2 or len(records) == header.record_count
