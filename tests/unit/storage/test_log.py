"""One partition's log: appending, reading, rolling, deleting."""

import errno
import os
import resource
import struct

import pytest

from headrace.model.errors import Corrupt, ErrorCode, Rejected
from headrace.model.ids import TopicPartition
from headrace.records.batch import crc_holds, headers, read_header
from headrace.records.record import iter_records
from headrace.storage import files
from headrace.storage.log import INTERNAL
from headrace.storage.log_retention import delete_records_before
from headrace.storage.segment_indexes import SegmentIndexes
from headrace.world.files import pwritev_by_seek
from tests.fakes.logs import (
    LEADER_EPOCH,
    NOW,
    ORDERS,
    Disk,
    append,
    batch,
    fill,
    marker,
    read_all,
    read_bytes,
    segment_names,
    settings,
)

DAY_MS = 86_400_000


def refusal(log, records, **options):
    with pytest.raises(Rejected) as caught:
        append(log, records, **options)
    return caught.value.code


# -- appending ---------------------------------------------------------------------------


def test_offsets_are_given_in_order(log):
    assert append(log, batch(b"a", b"b")).base_offset == 0
    appended = append(log, batch(b"c"))
    assert (appended.base_offset, appended.last_offset, appended.append_time) == (2, 2, -1)
    assert read_all(log) == [(0, b"a"), (1, b"b"), (2, b"c")]


def test_a_batch_is_stamped_in_place_and_its_crc_still_holds(log):
    records = batch(b"a")
    append(log, batch(b"x", b"y"))
    append(log, records, leader_epoch=5)
    header = read_header(records)
    assert (header.base_offset, header.leader_epoch) == (2, 5)
    assert crc_holds(records, header)
    assert read_bytes(log, 2) == records.tobytes()


def test_staged_batches_are_not_readable_until_they_are_written(log):
    log.append_as_leader(batch(b"a"), LEADER_EPOCH, NOW)
    log.append_as_leader(batch(b"b"), LEADER_EPOCH, NOW)
    assert (log.log_end, log.staged_end) == (0, 2)
    assert log.read(0, 100, 2) is None
    log.write_staged()
    assert (log.log_end, log.staged_end) == (2, 2)
    assert read_all(log) == [(0, b"a"), (1, b"b")]


def test_more_batches_than_one_call_takes_are_written_whole(log, monkeypatch):
    monkeypatch.setattr(files, "IOV_MAX", 3)
    for i in range(10):
        log.append_as_leader(batch(b"%d" % i), LEADER_EPOCH, NOW)
    log.write_staged()
    assert [value for _, value in read_all(log)] == [b"%d" % i for i in range(10)]


def test_without_pwritev_the_file_gets_the_same_bytes(log, monkeypatch):
    log.directory.files.pwritev = pwritev_by_seek
    monkeypatch.setattr(files, "IOV_MAX", 2)
    for i in range(5):
        log.append_as_leader(batch(b"%d" % i), LEADER_EPOCH, NOW)
    log.write_staged()
    assert [value for _, value in read_all(log)] == [b"%d" % i for i in range(5)]


def test_a_batch_above_max_message_bytes_is_too_large(disk):
    log = disk.log()
    size = len(batch(b"x" * 100))
    log.update_config(settings(max_message_bytes=size - 1))
    assert refusal(log, batch(b"x" * 100)) is ErrorCode.MESSAGE_TOO_LARGE
    log.update_config(settings(max_message_bytes=size))
    assert append(log, batch(b"x" * 100)).base_offset == 0


def test_a_batch_above_segment_bytes_is_refused(log):
    log.update_config(settings(segment_bytes=100))
    assert refusal(log, batch(b"x" * 100)) is ErrorCode.RECORD_LIST_TOO_LARGE


def test_two_batches_are_an_invalid_record_even_if_they_are_too_large_together(log):
    both = memoryview(bytearray(batch(b"x" * 50).tobytes() * 2))
    log.update_config(settings(max_message_bytes=150))
    assert refusal(log, both) is ErrorCode.INVALID_RECORD


def test_a_flipped_bit_is_a_corrupt_message(log):
    records = batch(b"abc")
    records[-2] ^= 1
    assert refusal(log, records) is ErrorCode.CORRUPT_MESSAGE
    assert log.staged_end == 0


def test_clients_may_not_write_markers_but_coordinators_may(log):
    with pytest.raises(Rejected) as caught:
        log.append_as_leader(marker(commit=True, producer_id=1), LEADER_EPOCH, NOW)
    assert caught.value.code is ErrorCode.INVALID_RECORD
    assert append(log, marker(commit=True, producer_id=1)).base_offset == 0


@pytest.mark.parametrize(("off_by", "taken"), [(0, True), (-1000, True), (-1001, False)])
def test_times_before_the_limit_are_refused(log, off_by, taken):
    log.update_config(settings(message_timestamp_before_max_ms=1000))
    records = batch(b"a", timestamp=NOW + off_by)
    if taken:
        append(log, records)
    else:
        assert refusal(log, records) is ErrorCode.INVALID_TIMESTAMP


def test_times_after_the_limit_are_refused(log):
    log.update_config(settings(message_timestamp_after_max_ms=1000))
    append(log, batch(b"a", timestamp=NOW + 1000))
    assert refusal(log, batch(b"a", timestamp=NOW + 1001)) is ErrorCode.INVALID_TIMESTAMP
    append(log, batch(b"a", timestamp=-1))  # no timestamp at all is allowed


def test_append_time_is_stamped_and_the_crc_recomputed(log):
    log.update_config(settings(message_timestamp_type="LogAppendTime"))
    appended = append(log, batch(b"a", b"b", timestamp=5), now=NOW + 9)
    assert appended.append_time == NOW + 9
    data = memoryview(read_bytes(log, 0))
    header = read_header(data)
    assert crc_holds(data, header) and header.log_append_time
    assert [record.timestamp for record in iter_records(data)] == [NOW + 9] * 2


def test_a_duplicate_stages_nothing_and_gets_the_first_offsets(log):
    append(log, batch(b"a", b"b", producer_id=3))
    append(log, batch(b"c", producer_id=3, base_sequence=2))
    again = append(log, batch(b"a", b"b", producer_id=3))
    assert (again.base_offset, again.last_offset, again.first_of_duplicate) == (0, 1, True)
    assert log.log_end == 3


def test_a_refused_batch_leaves_no_trace(log):
    append(log, batch(b"a", producer_id=3))
    code = refusal(log, batch(b"z", producer_id=3, base_sequence=7))
    assert code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert (log.staged_end, len(read_all(log))) == (1, 1)
    append(log, batch(b"b", producer_id=3, base_sequence=1))


def test_internal_records_are_not_validated(log):
    log.append_as_leader(batch(b"a"), LEADER_EPOCH, NOW, origin=INTERNAL)
    log.write_staged()
    assert read_all(log) == [(0, b"a")]


def test_a_leader_epoch_is_assigned_when_its_first_batch_is_written(log):
    log.append_as_leader(batch(b"a"), 3, NOW)
    assert log.leader_epochs.latest == -1
    log.write_staged()
    append(log, batch(b"b"), leader_epoch=3)
    append(log, batch(b"c"), leader_epoch=4)
    assert log.leader_epochs.entries == [(3, 0), (4, 2)]


# -- following ---------------------------------------------------------------------------


def as_the_leader_stores_them(*batches):
    return memoryview(bytearray(b"".join(each.tobytes() for each in batches)))


def test_a_follower_keeps_offsets_and_epochs(log):
    sent = as_the_leader_stores_them(
        batch(b"a", b"b", base_offset=0, leader_epoch=1),
        batch(b"c", base_offset=2, leader_epoch=1, producer_id=5, base_sequence=9),
        batch(b"d", base_offset=7, leader_epoch=4),  # compaction left a gap
    )
    log.append_as_follower(sent)
    assert read_all(log) == [(0, b"a"), (1, b"b"), (2, b"c"), (7, b"d")]
    assert log.leader_epochs.entries == [(1, 0), (4, 7)]
    assert log.producers.entries[5].last_sequence == 9
    assert read_bytes(log, 0) == sent.tobytes()


def test_a_follower_leaves_out_a_batch_that_the_fetch_cut(log):
    sent = as_the_leader_stores_them(batch(b"a", leader_epoch=0), batch(b"b", base_offset=1))
    log.append_as_follower(sent[:-3])
    assert log.log_end == 1


def test_a_follower_refuses_offsets_that_it_already_has(log):
    log.append_as_follower(as_the_leader_stores_them(batch(b"a", b"b", leader_epoch=0)))
    with pytest.raises(Corrupt, match="already ends at 2"):
        log.append_as_follower(as_the_leader_stores_them(batch(b"b", base_offset=1)))
    assert log.log_end == log.staged_end == 2


def test_a_follower_refuses_a_wrong_crc_and_the_whole_response_with_it(log):
    good, bad = batch(b"a", producer_id=4), batch(b"b", base_offset=1)
    bad[-1] ^= 4
    with pytest.raises(Corrupt, match="CRC"):
        log.append_as_follower(as_the_leader_stores_them(good, bad))
    assert (log.log_end, log.staged_end, log.producers.entries) == (0, 0, {})


# -- reading -----------------------------------------------------------------------------


def test_a_read_begins_with_the_batch_that_holds_the_offset(log):
    append(log, batch(b"a", b"b"), batch(b"c", b"d", b"e"))
    header = read_header(read_bytes(log, 3))
    assert (header.base_offset, header.next_offset) == (2, 5)


def test_a_read_ends_at_a_batch_boundary_within_the_limit(log):
    fill(log, [b"x" * 100] * 10)
    size = len(batch(b"x" * 100))
    for limit in (size, size + 1, 3 * size - 1, 3 * size, 10 * size, 99 * size):
        data = read_bytes(log, 0, limit)
        assert len(data) == min(limit // size, 10) * size


def test_the_first_batch_is_returned_whole_despite_the_limit(log):
    append(log, batch(b"x" * 500), batch(b"y"))
    assert read_header(read_bytes(log, 0, 1)).size == len(read_bytes(log, 0, 1)) > 500
    assert log.read(0, 1, 2, at_least_one=False) is None


def test_nothing_beyond_the_end_offset_is_read(log):
    fill(log, [b"a", b"b", b"c", b"d"])
    assert [h.base_offset for _, h in headers(read_bytes(log, 1, end=3))] == [1, 2]
    assert log.read(3, 1000, 3) is None
    assert log.read(4, 1000, 99) is None


@pytest.mark.parametrize("offset", [1, 9])
def test_offsets_outside_of_the_log_are_out_of_range(log, offset):
    fill(log, [b"x"] * 8)
    delete_records_before(log, 2)
    with pytest.raises(Rejected) as caught:
        log.read(offset, 100, 8)
    assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE


def test_a_read_continues_in_the_next_segment(disk):
    log = disk.log()
    fill(log, [b"a", b"b"])
    log.roll(NOW)
    fill(log, [b"c", b"d"])
    assert read_all(log, max_bytes=80) == [(0, b"a"), (1, b"b"), (2, b"c"), (3, b"d")]


def test_a_slice_outlives_roll_eviction_and_deletion(tmp_path):
    disk = Disk(tmp_path / "data", open_files_max=8)
    log = disk.log()
    append(log, batch(b"keep me"))
    held = log.read(0, 1000, 1)
    log.roll(NOW)
    for partition in range(1, 30):
        append(disk.log(TopicPartition("orders", partition)), batch(b"x"))
    disk.logs.delete(ORDERS)
    disk.worker.run()
    assert not log.path.exists()
    assert b"keep me" in os.pread(held.file.fd, held.size, held.position)
    disk.crash()


def test_the_size_of_a_range_is_about_right(log):
    fill(log, [b"x" * 1000] * 50)
    assert log.bytes_between(50, 50) == 0
    assert abs(log.bytes_between(0, 50) - log.segments.size) < 10
    assert abs(log.bytes_between(25, 50) - log.segments.size // 2) < 8000
    log.roll(NOW)
    fill(log, [b"x" * 1000] * 10)
    assert abs(log.bytes_between(40, 55) - 15 * log.segments.size // 60) < 8000


# -- rolling -----------------------------------------------------------------------------


def test_a_segment_rolls_when_the_next_batch_would_not_fit(disk):
    log = disk.log()
    size = len(batch(b"x" * 50))
    log.update_config(settings(segment_bytes=3 * size))
    fill(log, [b"x" * 50] * 7)
    assert segment_names(log) == [0, 3, 6]
    assert len(read_all(log)) == 7


def test_a_roll_in_the_middle_of_staging_loses_nothing(disk):
    log = disk.log()
    size = len(batch(b"x" * 50, producer_id=1))
    log.update_config(settings(segment_bytes=2 * size))
    for sequence in range(5):
        log.append_as_leader(
            batch(b"x" * 50, producer_id=1, base_sequence=sequence), LEADER_EPOCH, NOW
        )
    log.write_staged()
    assert segment_names(log) == [0, 2, 4]
    # The snapshot of the roll must not include batches staged after it.
    for base in (2, 4):
        snapshot = (log.path / f"{base:020d}.snapshot").read_bytes()
        assert struct.unpack_from(">i", snapshot, 20)[0] == base - 1  # the last sequence


def test_a_segment_rolls_by_the_age_of_its_records(disk):
    log = disk.log()
    log.update_config(settings(segment_ms=1000))
    fill(log, [b"a"])
    append(log, batch(b"b", timestamp=NOW + 1000))
    assert segment_names(log) == [0]
    append(log, batch(b"c", timestamp=NOW + 1001))
    assert segment_names(log) == [0, 2]


def test_records_without_times_roll_by_the_age_of_the_file(disk):
    log = disk.log()
    log.update_config(settings(segment_ms=1000))
    append(log, batch(b"a", timestamp=-1), now=NOW + 999)
    append(log, batch(b"b", timestamp=-1), now=NOW + 1000)
    assert segment_names(log) == [0]
    append(log, batch(b"c", timestamp=-1), now=NOW + 1001)
    assert segment_names(log) == [0, 2]


def test_jitter_brings_the_roll_forward(disk):
    disk.world.random.randrange = lambda limit: limit - 1
    log = disk.log()
    log.update_config(settings(segment_ms=1000, segment_jitter_ms=400))
    fill(log, [b"a"])
    append(log, batch(b"b", timestamp=NOW + 601))
    append(log, batch(b"c", timestamp=NOW + 602))
    assert segment_names(log) == [0, 2]


def test_a_full_index_rolls_the_segment(disk):
    log = disk.log()
    log.update_config(settings(segment_index_bytes=40, index_interval_bytes=1))
    fill(log, [b"x"] * 20)
    bases = segment_names(log)
    assert len(bases) > 2
    for base in bases:
        assert (log.path / f"{base:020d}.index").stat().st_size <= 40
    assert len(read_all(log)) == 20


def test_offsets_too_far_from_the_base_roll_the_segment(log):
    log.append_as_follower(as_the_leader_stores_them(batch(b"a", base_offset=0)))
    log.append_as_follower(as_the_leader_stores_them(batch(b"b", base_offset=2**31 - 1)))
    log.append_as_follower(as_the_leader_stores_them(batch(b"c", base_offset=2**31)))
    assert segment_names(log) == [0, 2**31]
    assert [offset for offset, _ in read_all(log)] == [0, 2**31 - 1, 2**31]


def test_an_empty_segment_is_not_rolled(log):
    assert not log.roll(NOW)
    append(log, batch(b"a"))
    assert log.roll(NOW)
    assert not log.roll(NOW)
    assert segment_names(log) == [0, 1]


@pytest.mark.parametrize("suffix", ["index", "timeindex"])
@pytest.mark.parametrize("clean", [True, False])
def test_a_roll_that_finds_no_file_descriptor_leaves_no_files(tmp_path, suffix, clean):
    disk = Disk(tmp_path / "data", config=settings(segment_bytes=1000))
    log = disk.log()
    append(log, batch(b"a" * 400))

    def no_more(path, *arguments):
        if path.endswith(f".{suffix}"):
            raise OSError(errno.EMFILE, "too many open files")

    disk.files.before("open", no_more)
    assert refusal(log, batch(b"b" * 600)) == ErrorCode.KAFKA_STORAGE_ERROR
    disk.files.repair("open")
    fill(log, [b"c", b"d"])  # small: the current segment continues
    assert segment_names(log) == [0]
    log = disk.restarted(clean=clean)
    assert [value for _, value in read_all(log)] == [b"a" * 400, b"c", b"d"]
    assert append(log, batch(b"e")).base_offset == 3
    disk.crash()


# -- transactions ------------------------------------------------------------------------


def test_readers_of_committed_records_stop_at_the_first_open_transaction(log):
    append(log, batch(b"plain"))
    append(log, batch(b"open", producer_id=1, transactional=True))
    append(log, batch(b"plain"))
    assert log.last_stable_offset(3) == 1
    assert log.last_stable_offset(1) == 1
    append(log, marker(commit=True, producer_id=1))
    assert log.last_stable_offset(3) == 1  # the marker is not replicated yet
    assert log.last_stable_offset(4) == 4


def test_aborted_transactions_are_listed_by_the_range_of_their_records(log):
    append(log, batch(b"a", producer_id=1, transactional=True))
    append(log, batch(b"b", producer_id=2, transactional=True))
    append(log, marker(commit=False, producer_id=1))
    log.roll(NOW)
    append(log, marker(commit=False, producer_id=2))
    append(log, batch(b"c", producer_id=3, transactional=True), marker(commit=True, producer_id=3))
    assert log.aborted_transactions(0, 6) == [(1, 0), (2, 1)]
    assert log.aborted_transactions(0, 1) == [(1, 0)]
    assert log.aborted_transactions(3, 6) == [(2, 1)]
    assert log.aborted_transactions(4, 6) == []


def test_a_slice_ends_where_the_next_batch_begins(log):
    append(log, batch(b"a"), batch(b"b", b"c"), batch(b"d"))
    log.roll(NOW)
    append(log, batch(b"e"))

    def end_of_piece(fetch_offset, max_bytes, end_offset):
        found = log.read(fetch_offset, max_bytes, end_offset, at_least_one=True)
        return log.end_of(found, fetch_offset, end_offset)

    assert [end_of_piece(offset, 1, 5) for offset in range(5)] == [1, 3, 3, 4, 5]
    assert end_of_piece(0, 1 << 20, 5) == 4  # the end of the segment
    assert end_of_piece(0, 1 << 20, 3) == 3


def test_damage_after_a_slice_does_not_affect_it(log):
    append(log, batch(b"a"), batch(b"b"), batch(b"c"))
    found = log.read(0, 1, 3, at_least_one=True)
    path = log.path / "00000000000000000000.log"
    damaged = bytearray(path.read_bytes())
    damaged[found.size + 16] = 9  # an unknown magic
    path.write_bytes(damaged)
    assert log.end_of(found, 0, 3) == 3


# -- a disk that fails -------------------------------------------------------------------


def test_a_full_disk_rejects_all_staged_batches_and_accepts_writes_again_later(disk):
    """A limit on the size of files makes the kernel write less than asked."""
    log = disk.log()
    append(log, batch(b"kept" * 100, producer_id=1))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    for sequence in (1, 2):
        log.append_as_leader(
            batch(b"lost" * 100, producer_id=1, base_sequence=sequence), LEADER_EPOCH, NOW
        )
    log.append_as_leader(batch(b"open", producer_id=2, transactional=True), LEADER_EPOCH, NOW)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (log.segments.size + 200, hard))
        with pytest.raises(Rejected) as caught:
            log.write_staged()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert (log.log_end, log.staged_end, log.offline) == (1, 1, None)
    assert read_all(log) == [(0, b"kept" * 100)]
    assert (log.path / f"{0:020d}.log").stat().st_size == log.segments.size
    assert log.last_stable_offset(1) == 1

    retried = append(log, batch(b"lost" * 100, producer_id=1, base_sequence=1))
    assert (retried.base_offset, retried.first_of_duplicate) == (1, False)


def test_a_broken_disk_takes_its_log_directory_offline(disk, log):
    log.append_as_leader(batch(b"a"), LEADER_EPOCH, NOW)
    disk.files.fail(errno.EIO, "pwrite", "pwritev")
    with pytest.raises(Rejected) as caught:
        log.write_staged()
    assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert log.offline is not None


def test_a_write_that_fails_during_a_roll_is_reported_by_the_next_write(disk, log):
    size = len(batch(b"x" * 50))
    log.update_config(settings(segment_bytes=2 * size))
    log.append_as_leader(batch(b"1" * 50), LEADER_EPOCH, NOW)
    log.append_as_leader(batch(b"2" * 50), LEADER_EPOCH, NOW)
    with disk.files.failing(errno.ENOSPC, "pwrite", "pwritev"):
        for _ in range(2):  # the third batch, and the next
            with pytest.raises(Rejected):
                log.append_as_leader(batch(b"3" * 50), LEADER_EPOCH, NOW)
    with pytest.raises(Rejected) as caught:
        log.write_staged()
    assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert (log.log_end, log.staged_end) == (0, 0)
    log.write_staged()
    assert append(log, batch(b"4")).base_offset == 0


def test_a_failed_roll_leaves_no_segment_that_would_hide_records(disk, monkeypatch):
    log = disk.log()
    log.update_config(settings(segment_bytes=300))
    fill(log, [b"a" * 100])
    with monkeypatch.context() as patched:
        patched.setattr(SegmentIndexes, "save", no_space)
        for _ in range(3):
            with pytest.raises(Rejected):
                log.append_as_leader(batch(b"b" * 200), LEADER_EPOCH, NOW)
    assert segment_names(log) == [0]
    log.update_config(settings())
    fill(log, [b"c", b"d"])
    log.path.joinpath(f"{1:020d}.log").touch()  # as if killed before the file was removed
    log = disk.restarted(clean=False)
    assert [value for _, value in read_all(log)] == [b"a" * 100, b"c", b"d"]
    assert segment_names(log) == [0]


def no_space(*arguments):
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_follower_can_retry_after_its_disk_was_full(disk, log):
    log.update_config(settings(segment_bytes=200))
    sent = [batch(b"x" * 50, base_offset=i, leader_epoch=0) for i in range(4)]
    with disk.files.failing(errno.ENOSPC, "pwrite", "pwritev"), pytest.raises(Rejected):
        log.append_as_follower(as_the_leader_stores_them(*sent))
    assert (log.log_end, log.staged_end) == (0, 0)
    log.append_as_follower(as_the_leader_stores_them(*sent))
    assert len(read_all(log)) == 4


def test_settings_may_change_while_batches_are_staged(log):
    log.append_as_leader(batch(b"a" * 100), LEADER_EPOCH, NOW)
    log.update_config(settings(segment_bytes=250, segment_ms=1000))
    log.append_as_leader(batch(b"b" * 100), LEADER_EPOCH, NOW)
    log.append_as_leader(batch(b"c", timestamp=NOW + 1001), LEADER_EPOCH, NOW)
    log.write_staged()
    assert segment_names(log) == [0, 1, 2]
    assert len(read_all(log)) == 3


def test_an_index_entry_that_points_into_a_batch_is_detected_and_repaired(disk, caplog):
    log = disk.log()
    log.update_config(settings(index_interval_bytes=1))
    fill(log, [b"%02d" % i for i in range(20)])
    log.roll(NOW)
    fill(log, [b"x"])
    disk.stop()
    path = log.path / f"{0:020d}.index"
    entries = bytearray(path.read_bytes())
    entries[8 * 9 + 7] ^= 0x05
    path.write_bytes(entries)
    disk.start()
    log = disk.log()
    assert [value for _, value in read_all(log, max_bytes=300)][:20] == [
        b"%02d" % i for i in range(20)
    ]
    assert [read_header(read_bytes(log, i)).base_offset for i in range(20)] == list(range(20))


# -- the end of a log --------------------------------------------------------------------


def test_deletion_renames_the_directory_and_removes_it_later(disk):
    log = disk.log()
    append(log, batch(b"a"))
    disk.logs.delete(ORDERS)
    assert disk.logs.get(ORDERS) is None
    assert log.path.name.startswith("orders-0.") and log.path.name.endswith("-delete")
    assert len(log.path.name) == len("orders-0.-delete") + 32
    assert log.path.exists()
    disk.worker.run()
    assert not log.path.exists()


def test_a_topic_with_the_longest_name_can_be_deleted(disk):
    name = TopicPartition("t" * 249, 12)
    log = disk.log(name)
    disk.logs.delete(name)
    assert len(log.path.name) == 255


# --- preallocate


@pytest.fixture
def preallocating(tmp_path):
    config = settings(preallocate=True, segment_bytes=100_000)
    disk = Disk(tmp_path / "preallocated", config=config)
    yield disk
    disk.crash()


def size_on_disk(log, base=0):
    return (log.path / f"{base:020d}.log").stat().st_size


def test_a_new_segment_is_preallocated_and_trimmed_when_it_is_closed(preallocating):
    log = preallocating.log()
    assert size_on_disk(log) == 100_000
    fill(log, [b"x" * 1000] * 10)
    assert log.segments.size < 11_000
    log.roll(NOW)
    assert size_on_disk(log) == log.segments.size < 11_000
    assert size_on_disk(log, 10) == 100_000
    preallocating.stop()
    assert size_on_disk(log, 10) == 0
    preallocating.start()
    assert len(read_all(preallocating.log())) == 10


def test_preallocated_space_is_not_read_as_records_after_a_crash(preallocating):
    fill(preallocating.log(), [b"x" * 1000] * 10)
    log = preallocating.restarted(clean=False)
    assert log.log_end == 10 and len(read_all(log)) == 10
    assert size_on_disk(log) == log.segments.size
    fill(log, [b"y"])
    assert len(read_all(log)) == 11


def test_a_disk_without_room_to_preallocate_leaves_no_files(preallocating):
    log = preallocating.log()
    fill(log, [b"x"])
    preallocating.files.fail(errno.ENOSPC, "preallocate")
    with pytest.raises(OSError, match="No space"):
        log.roll(NOW)
    assert not (log.path / f"{1:020d}.log").exists()
    fill(log, [b"y"])
    assert len(read_all(log)) == 2
