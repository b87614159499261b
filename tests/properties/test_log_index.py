"""Finding a batch through an index gives the same result as a scan."""

import tempfile

import hypothesis.strategies as st
from hypothesis import given

from headrace.model.ids import Offset, Position
from headrace.records.batch import read_header, stamp
from headrace.storage.files import OpenFiles, write_all
from headrace.storage.segment import Resources, Segment
from headrace.storage.segment_indexes import IndexCache, as_staged
from headrace.world.files import SystemFiles
from tests.fakes.logs import NOW, batch

BASE = 1000
FILES = SystemFiles()

layouts = st.lists(
    st.tuples(st.integers(1, 5), st.integers(0, 3), st.integers(0, 300), st.integers(-50, 50)),
    max_size=30,
)


def a_segment(directory, layout, interval):
    """Batches of (records, gap in offsets before, bytes, timestamp), as after compaction."""
    segment = Segment.create(
        directory, Offset(BASE), Resources(FILES, OpenFiles(8), IndexCache()), NOW
    )
    batches, next_offset = [], BASE
    for count, gap, size, skew in layout:
        records = batch(*[b"x" * size] * count, timestamp=NOW + skew)
        stamp(records, next_offset + gap, 0)
        header = read_header(records)
        next_offset = header.next_offset
        position = segment.size
        write_all(FILES, segment.files.open().fd, [records], position, len(records))
        batches.append((position, header))
        segment.files.size = segment.indexes.extend([as_staged(header)], position, interval)
    return segment, batches


def reopened(segment):
    """The same segment with indexes that come from the files."""
    segment.indexes.close_times()
    segment.indexes.save()
    return Segment(
        segment.files.directory,
        segment.base_offset,
        segment.size,
        Resources(FILES, OpenFiles(8), IndexCache()),
        created_at=NOW,
    )


@given(layouts, st.sampled_from([0, 200, 4096]), st.booleans())
def test_every_offset_is_found_where_a_scan_finds_it(layout, interval, from_file):
    with tempfile.TemporaryDirectory() as directory:
        segment, batches = a_segment(directory, layout, interval)
        if from_file:
            segment = reopened(segment)
        for offset in range(BASE - 1, BASE + 250):
            expected = next(
                (position for position, header in batches if header.last_offset >= offset),
                segment.size,
            )
            assert segment.position_of(Offset(offset)) == expected


@given(layouts, st.sampled_from([0, 200, 4096]), st.booleans(), st.data())
def test_a_limit_is_cut_to_a_batch_boundary(layout, interval, from_file, data):
    with tempfile.TemporaryDirectory() as directory:
        segment, batches = a_segment(directory, layout, interval)
        if from_file:
            segment = reopened(segment)
        boundaries = [position for position, _ in batches] + [segment.size]
        start = data.draw(st.sampled_from(boundaries))
        limit = start + data.draw(st.integers(0, 3000))
        found = segment.boundary_before(Position(start), limit)
        assert found in boundaries
        assert start <= found <= max(limit, start)
        # Sparse entries may end the range early, but never leave nothing.
        fitting = [b for b in boundaries if start < b <= limit]
        assert (found > start) == bool(fitting)


@given(layouts, st.sampled_from([0, 200, 4096]))
def test_a_rebuilt_index_equals_the_original(layout, interval):
    with tempfile.TemporaryDirectory() as directory:
        segment, _ = a_segment(directory, layout, interval)
        largest = (segment.indexes.max_timestamp, segment.indexes.max_timestamp_offset)
        again = reopened(segment).indexes
        assert (again.max_timestamp, again.max_timestamp_offset) == largest
        if interval == 4096:  # the interval of a rebuild
            kept = again.offsets.encode(), again.times.encode()
            offsets, times = again.rebuild()
            assert (offsets.encode(), times.encode()) == kept


@given(layouts, st.integers(0, 29))
def test_a_truncated_segment_equals_one_that_never_had_more(layout, kept_count):
    kept_count = min(kept_count, len(layout))
    with tempfile.TemporaryDirectory() as directory, tempfile.TemporaryDirectory() as other:
        segment, batches = a_segment(directory, layout, 200)
        twin, _ = a_segment(other, layout[:kept_count], 200)
        if kept_count < len(batches):
            position, header = batches[kept_count]
            segment.cut(Position(position), Offset(header.base_offset))
        assert segment.size == twin.size
        found, expected = segment.indexes, twin.indexes
        assert found.offsets.encode() == expected.offsets.encode()
        assert (found.max_timestamp, found.max_timestamp_offset) == (
            expected.max_timestamp,
            expected.max_timestamp_offset,
        )
