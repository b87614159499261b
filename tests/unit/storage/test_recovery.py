"""Opening a log after a clean shutdown, a crash, an incomplete write or a flipped bit."""

import asyncio
import errno
import logging
import os

import pytest

from headrace.model.errors import Corrupt, ErrorCode, Rejected
from headrace.model.ids import NO_TOPIC_ID
from headrace.records.batch import LENGTH_AT, MAGIC_AT, read_header
from headrace.records.record import Record, build_batch
from headrace.storage import checkpoint
from headrace.storage.checkpoint import (
    CLEAN_SHUTDOWN,
    LEADER_EPOCHS,
    PARTITION_METADATA,
    RECOVERY_POINTS,
)
from headrace.storage.compaction.swap import replace_segments
from headrace.storage.log_retention import apply_retention, delete_records_before
from headrace.storage.log_truncation import truncate_fully, truncate_to
from headrace.storage.scan import Scan
from headrace.storage.time_lookup import offset_of_max_timestamp
from tests.fakes.logs import (
    NOW,
    ORDERS,
    ORDERS_ID,
    Disk,
    append,
    batch,
    fill,
    marker,
    read_all,
    settings,
    three_segments,
)


@pytest.fixture
def disk(tmp_path):
    disk = Disk(tmp_path / "data", config=settings(index_interval_bytes=100))
    yield disk
    disk.crash()


def file(log, base, suffix="log"):
    return log.path / f"{base:020d}.{suffix}"


def flip(path, position):
    data = bytearray(path.read_bytes())
    data[position] ^= 0x10
    path.write_bytes(data)


def state(log):
    """Everything that a reader or a producer can observe."""
    return (
        log.log_start,
        log.log_end,
        read_all(log),
        list(log.producers.snapshot()),
        log.producers.ongoing,
        list(log.leader_epochs.entries),
        log.aborted_transactions(0, log.log_end),
        asyncio.run(offset_of_max_timestamp(log)),
    )


def a_busy_log(log):
    """Plain, idempotent and transactional batches in three segments and two leader epochs."""
    for i in range(30):
        leader_epoch = 0 if i < 24 else 4
        plain = batch(b"%d" % i, producer_id=1, base_sequence=i, timestamp=NOW + i)
        append(log, plain, leader_epoch=leader_epoch)
        if i in (9, 19):
            log.roll(NOW)
        if i == 5:
            append(log, batch(b"t", producer_id=2, transactional=True))
        if i == 12:
            append(log, marker(commit=False, producer_id=2))
        if i == 25:
            append(log, batch(b"o", producer_id=3, transactional=True), leader_epoch=leader_epoch)
    return log


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "crash"])
def test_a_log_is_the_same_after_a_restart(disk, clean):
    log = a_busy_log(disk.log())
    before = state(log)
    assert state(disk.restarted(clean=clean)) == before
    append(disk.log(), batch(b"more", producer_id=1, base_sequence=30), leader_epoch=4)


def test_indexes_are_the_same_whether_kept_or_rebuilt(disk):
    log = a_busy_log(disk.log())
    disk.stop()
    names = ["index", "timeindex", "txnindex", "snapshot"]
    kept = {p.name: p.read_bytes() for name in names for p in log.path.glob(f"*.{name}")}
    for path in log.path.glob("*index"):
        path.unlink()
    (disk.paths[0] / CLEAN_SHUTDOWN).unlink()
    (disk.paths[0] / "recovery-point-offset-checkpoint").unlink()
    disk.start()
    disk.stop()
    assert {p.name: p.read_bytes() for name in names for p in log.path.glob(f"*.{name}")} == kept


def test_after_a_clean_shutdown_only_the_end_of_the_active_segment_is_read(disk, monkeypatch):
    log = disk.log()
    fill(log, [b"x" * 50] * 40)
    log.roll(NOW)
    fill(log, [b"x" * 50] * 40)
    disk.stop()
    ranges = watch_scans(monkeypatch)
    disk.start()
    assert ranges and all(end - start < 500 for start, end in ranges)


def watch_scans(monkeypatch):
    """The byte ranges that are scanned from now on."""
    ranges = []
    original = Scan.__init__

    def spy(self, file, start, end, next_offset, *, check_crc):
        ranges.append((start, end))
        original(self, file, start, end, next_offset, check_crc=check_crc)

    monkeypatch.setattr(Scan, "__init__", spy)
    return ranges


def test_after_a_crash_nothing_below_the_recovery_point_is_checked(disk, monkeypatch):
    log = disk.log()
    fill(log, [b"x" * 100] * 50)
    log.roll(NOW)
    fill(log, [b"x" * 100] * 50)
    log.flusher.flush_now()
    disk.logs.checkpoint()
    flushed = file(log, 50).stat().st_size
    fill(log, [b"y" * 100] * 3)
    disk.crash()
    flip(file(log, 0), 200)  # not read at all
    checked = []
    original = Scan.__init__

    def spy(self, opened, start, end, next_offset, *, check_crc):
        if check_crc:
            checked.append((os.fstat(opened.fd).st_ino, start))
        original(self, opened, start, end, next_offset, check_crc=check_crc)

    monkeypatch.setattr(Scan, "__init__", spy)
    disk.start()
    assert disk.log().log_end == 103
    [(inode, start)] = checked
    assert inode == file(log, 50).stat().st_ino
    assert flushed - 400 < start <= flushed


@pytest.mark.parametrize("lost", [1, 20, 61, 100])
def test_an_incomplete_tail_is_truncated_after_the_last_complete_batch(disk, lost, caplog):
    log = disk.log()
    fill(log, [b"a" * 40, b"b" * 40, b"c" * 40])
    size = log.segments.size
    disk.crash()
    with file(log, 0).open("r+b") as torn:
        torn.truncate(size - lost)
    with caplog.at_level(logging.WARNING):
        disk.start()
    log = disk.log()
    assert read_all(log) == [(0, b"a" * 40), (1, b"b" * 40)]
    assert file(log, 0).stat().st_size == log.segments.size
    kept = log.segments.size
    assert f"truncated at byte {kept} (offset 2): " in caplog.text
    assert f"{size - lost - kept} bytes" in caplog.text
    assert append(log, batch(b"d")).base_offset == 2


def test_zeros_after_the_last_batch_are_truncated(disk):
    """A file system may extend a file before it writes the data."""
    log = disk.log()
    fill(log, [b"a"])
    disk.crash()
    with file(log, 0).open("ab") as torn:
        torn.write(bytes(5000))
    disk.start()
    assert read_all(disk.log()) == [(0, b"a")]


def test_a_flipped_bit_truncates_the_log_there_and_drops_later_segments(disk, caplog):
    log = a_busy_log(disk.log())
    disk.worker.jobs.clear()
    disk.crash()
    flip(file(log, 11), 4 * read_header(file(log, 11).read_bytes()).size - 1)
    disk.start()
    log = disk.log()
    assert log.log_end == 14
    assert [path.name for path in sorted(log.path.glob("*.log"))] == [
        file(log, 0).name,
        file(log, 11).name,
    ]
    assert not file(log, 22, "index").exists()
    assert not file(log, 22, "snapshot").exists()
    assert "1 later segments" in caplog.text
    last = log.producers.entries[1].last_sequence
    append(log, batch(b"next", producer_id=1, base_sequence=last + 1))


@pytest.mark.parametrize("kept", [0, 1])
@pytest.mark.parametrize("closed", [2, 4])
def test_a_closed_segment_that_lost_its_end_drops_later_segments(disk, closed, kept):
    log = disk.log()
    three_segments(log)
    disk.crash()
    with file(log, closed).open("r+b") as torn:
        torn.truncate(kept * read_header(file(log, closed).read_bytes()).size)
    disk.start()
    log = disk.log()
    assert [offset for offset, _ in read_all(log)] == list(range(closed + kept))
    assert log.log_end == closed + kept


@pytest.mark.parametrize(
    ("flushed_end", "went_down", "kept"),
    [
        (6, True, [0, 1, 2, 4, 5]),  # compaction stays below the recovery point
        (2, True, [0, 1, 2]),
        (None, True, [0, 1, 2]),
        (2, False, [0, 1, 2, 4, 5]),  # a process that is killed loses nothing
        ("damaged", True, [0, 1, 2, 4, 5]),  # nobody knows where compaction ended
    ],
)
def test_a_gap_in_a_compacted_log_is_a_loss_only_above_the_recovery_point(
    tmp_path, monkeypatch, flushed_end, went_down, kept
):
    disk = Disk(tmp_path / "data", config=settings(cleanup_policy=frozenset({"compact"})))
    log = disk.log()
    three_segments(log)
    disk.crash()
    with file(log, 2).open("r+b") as shorter:
        shorter.truncate(read_header(file(log, 2).read_bytes()).size)
    recovery_points = tmp_path / "data" / RECOVERY_POINTS
    if flushed_end == "damaged":
        recovery_points.write_text("0\n7\n")
    elif flushed_end is not None:
        recovery_points.write_text(f"0\n1\norders 0 {flushed_end}\n")
    if went_down:
        monkeypatch.setattr(disk.world, "boot_id", lambda: "another boot")
    disk.start()
    assert [offset for offset, _ in read_all(disk.log())] == kept
    disk.crash()


def test_a_topic_id_that_a_power_failure_took_is_written_again(disk):
    log = disk.log()
    append(log, batch(b"a"))
    disk.crash()
    for content in (b"", bytes(40)):
        (log.path / PARTITION_METADATA).write_bytes(content)
        disk.start()
        log = disk.logs.get(ORDERS)
        assert (log.topic_id, log.log_end) == (NO_TOPIC_ID, 1)
        log.adopt_topic_id(ORDERS_ID)
        disk.crash()
    disk.start()
    assert disk.log().topic_id == ORDERS_ID


def test_an_incomplete_active_segment_is_detected_despite_a_clean_shutdown(disk):
    log = disk.log()
    fill(log, [b"a" * 40, b"b" * 40, b"c" * 40])
    disk.stop()
    with file(log, 0).open("r+b") as torn:
        torn.truncate(log.segments.size - 7)
    disk.start()
    assert [offset for offset, _ in read_all(disk.log())] == [0, 1]


@pytest.mark.parametrize("suffix", ["index", "timeindex"])
@pytest.mark.parametrize("damage", ["absent", "cut", "garbage", "zeros"])
def test_a_damaged_index_is_rebuilt(disk, suffix, damage):
    log = a_busy_log(disk.log())
    before = state(log)
    disk.stop()
    for base in (0, 11, 22):
        path = file(log, base, suffix)
        data = path.read_bytes()
        if damage == "absent":
            path.unlink()
        elif damage == "cut":
            path.write_bytes(data[:-3])
        elif damage == "garbage":
            path.write_bytes(b"\xa5" * len(data))
        else:
            path.write_bytes(bytes(len(data) + 800))
    disk.start()
    after = state(disk.log())
    if (suffix, damage) == ("timeindex", "zeros"):
        before, after = before[:-1], after[:-1]  # looks like one that was never written
    assert after == before


def test_records_after_a_damaged_batch_are_served_from_the_active_segment_too(disk):
    log = disk.log()
    fill(log, [b"v" * 100] * 200)
    log = disk.restarted()
    with file(log, 0).open("r+b") as damaged:
        damaged.seek(log.segments.size // 2)
        damaged.write(os.urandom(500))
    for _ in range(2):
        with pytest.raises(Corrupt):
            read_all(log, max_bytes=1000)
        assert log.read(190, 1000, log.log_end) is not None
    assert append(log, batch(b"new")).base_offset == 200
    assert log.read(200, 1000, log.log_end) is not None


@pytest.mark.parametrize("damage", [b"", b"x", b"\xff" * 34], ids=["empty", "cut", "garbage"])
@pytest.mark.parametrize("clean", [True, False], ids=["clean", "crash"])
def test_a_damaged_transaction_index_is_rebuilt(disk, damage, clean):
    log = disk.log()
    for first in range(0, 12, 2):
        append(log, batch(b"t", producer_id=first, transactional=True))
        append(log, marker(commit=first % 4 == 0, producer_id=first))
        if first in (4, 8):
            log.roll(NOW)
    before = log.aborted_transactions(0, 12)
    assert before == [(2, 2), (6, 6), (10, 10)]
    disk.worker.run()
    disk.logs.checkpoint()
    if clean:
        disk.stop()
    else:
        disk.crash()
    for base in (0, 6, 10):
        file(log, base, "txnindex").write_bytes(damage)
    disk.start()
    log = disk.log()
    if damage or not clean:
        found = log.aborted_transactions(0, 12)
        assert found[-1] == before[-1]
        assert not damage or found == before
    append(log, batch(b"t", producer_id=99, transactional=True))
    append(log, marker(commit=False, producer_id=99))
    assert log.aborted_transactions(12, 14) == [(99, 12)]
    truncate_to(log, 8)
    if damage:
        assert log.aborted_transactions(0, 8) == before[:2]


def test_a_damaged_snapshot_is_replaced_by_an_older_one(disk, caplog):
    log = a_busy_log(disk.log())
    before = state(log)
    disk.stop()
    flip(file(log, log.log_end, "snapshot"), 12)
    disk.start()
    assert state(disk.log()) == before
    assert "using an older snapshot" in caplog.text


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("segment_bytes", [1 << 20, 300], ids=["one segment", "several"])
def test_the_last_five_batches_of_a_producer_are_known_after_a_restart(
    tmp_path, clean, segment_bytes
):
    """A snapshot has only the last one; the others come from the log."""
    disk = Disk(tmp_path, config=settings(segment_bytes=segment_bytes, index_interval_bytes=100))
    other = batch(b"x", producer_id=4)
    sent = [batch(b"a", b"b", producer_id=3, base_sequence=2 * number) for number in range(7)]
    for each in sent[:4] + [other] + sent[4:]:
        append(disk.log(), each)
    log = disk.restarted(clean=clean)
    for number in range(2, 7):
        again = append(log, batch(b"a", b"b", producer_id=3, base_sequence=2 * number))
        assert again.first_of_duplicate
        assert again.base_offset == 2 * number + (number > 3)
    assert log.log_end == 15
    with pytest.raises(Rejected, match="sent sequence 2; expected 14"):
        append(log, batch(b"a", b"b", producer_id=3, base_sequence=2))
    disk.crash()


def test_batches_of_an_earlier_producer_epoch_are_not_recalled(disk):
    log = disk.log()
    append(log, batch(b"a", producer_id=3))
    append(log, batch(b"b", producer_id=3, producer_epoch=1))
    log = disk.restarted()
    assert [each.base_offset for each in log.producers.entries[3].batches] == [1]


def test_without_any_snapshot_a_crashed_log_is_read_from_its_start(disk):
    log = a_busy_log(disk.log())
    before = state(log)
    log.flusher.flush_now()
    disk.logs.checkpoint()
    disk.crash()
    for path in log.path.glob("*.snapshot"):
        path.unlink()
    disk.start()
    assert state(disk.log()) == before


def test_leader_epochs_lost_in_a_crash_are_found_in_the_batches(disk):
    log = a_busy_log(disk.log())
    entries = list(log.leader_epochs.entries)
    disk.crash()
    (log.path / LEADER_EPOCHS).write_text("0\n0\n")
    disk.start()
    assert disk.log().leader_epochs.entries == entries


def test_a_leader_epoch_is_saved_once_with_its_first_batch(disk):
    written = []

    def note(path, target):
        written.append(checkpoint.read_leader_epochs(disk.files, path).entries)

    log = disk.log()
    disk.files.before("rename", note)
    log.leader_epochs.assign(2, 0)  # as a new leader does
    for leader_epoch in (2, 2, 5, 5, 5):
        append(log, batch(b"a"), batch(b"b"), leader_epoch=leader_epoch)
    assert written == [[(2, 0)], [(2, 0), (5, 4)]]
    assert written[-1] == log.leader_epochs.entries


def test_a_leader_epoch_below_the_recovery_point_survives_a_crash(disk):
    log = disk.log()
    for leader_epoch in (0, 3):
        append(log, batch(b"a"), leader_epoch=leader_epoch)
    log.roll(NOW)
    append(log, batch(b"b"), leader_epoch=3)
    disk.worker.run()  # the first segment is durable: recovery does not read it again
    disk.logs.checkpoint()
    assert disk.restarted(clean=False).leader_epochs.entries == [(0, 0), (3, 1)]


def test_a_leader_epoch_that_cannot_be_saved_does_not_begin(disk):
    log = disk.log()
    append(log, batch(b"a"))
    with disk.files.failing(errno.ENOSPC, "rename"):
        with pytest.raises(Rejected) as refused:
            append(log, batch(b"b"), leader_epoch=1)
        assert refused.value.code == ErrorCode.KAFKA_STORAGE_ERROR
        assert (log.log_end, log.leader_epochs.entries) == (1, [(0, 0)])
    append(log, batch(b"b"), leader_epoch=1)
    assert disk.restarted(clean=False).leader_epochs.entries == [(0, 0), (1, 1)]


@pytest.mark.parametrize("flushed", [False, True])
@pytest.mark.parametrize("content", ["", "garbage", "0\n7\n0 0\n", "0\n1\nx y\n"])
def test_a_damaged_leader_epoch_file_is_rebuilt(disk, content, flushed):
    log = a_busy_log(disk.log())
    entries = list(log.leader_epochs.entries)
    if flushed:
        log.flusher.flush_now()
        disk.logs.checkpoint()
    disk.crash()
    (log.path / LEADER_EPOCHS).write_text(content)
    disk.start()
    assert disk.log().leader_epochs.entries == entries


@pytest.mark.parametrize("torn_by", [0, 5], ids=["between batches", "within a batch"])
def test_a_snapshot_that_is_ahead_of_the_log_is_dropped(disk, torn_by):
    """It would take the retry of a batch that was lost in the crash for a duplicate."""
    log = disk.log()
    append(log, batch(b"a", producer_id=1))
    kept = log.segments.size
    append(log, batch(b"b", producer_id=1, base_sequence=1))
    log.roll(NOW)
    disk.crash()
    with file(log, 0).open("r+b") as torn:
        torn.truncate(kept + torn_by)
    disk.start()
    log = disk.log()
    assert [offset for offset, _ in read_all(log)] == [0]
    log = disk.restarted()
    assert log.producers.entries[1].last_sequence == 0
    again = append(log, batch(b"b", producer_id=1, base_sequence=1))
    assert not again.first_of_duplicate
    truncate_to(log, again.base_offset)
    assert log.producers.entries[1].last_sequence == 0


def test_deleted_records_stay_deleted_over_a_restart(disk):
    log = disk.log()
    fill(log, [b"a"] * 10)
    delete_records_before(log, 6)
    disk.stop()
    disk.start()
    log = disk.log()
    assert (log.log_start, log.log_end) == (6, 10)


def test_a_log_that_lost_everything_after_its_start_continues_there(disk):
    log = disk.log()
    fill(log, [b"a"] * 10)
    delete_records_before(log, 8)
    disk.logs.checkpoint()
    disk.crash()
    with file(log, 0).open("r+b") as torn:
        torn.truncate(100)
    disk.start()
    log = disk.log()
    assert (log.log_start, log.log_end, read_all(log)) == (8, 8, [])
    assert append(log, batch(b"new")).base_offset == 8


@pytest.mark.parametrize("how", ["clean", "crash", "crash after a flush"])
@pytest.mark.parametrize("left", [b"", bytes(500)], ids=["empty", "preallocated"])
def test_a_leftover_of_a_failed_roll_hides_no_records(disk, how, left):
    log = disk.log()
    fill(log, [b"a", b"b", b"c", b"d"])
    if how == "crash after a flush":
        log.flusher.flush_now()
        disk.logs.checkpoint()
    before = read_all(log)
    if how == "clean":
        disk.stop()
    else:
        disk.crash()
    for base in (2, 3):
        file(log, base).write_bytes(left)
    disk.start()
    log = disk.log()
    assert read_all(log) == before
    assert log.segments.bases == [0]
    assert append(log, batch(b"e")).base_offset == 4


def test_a_half_installed_compacted_segment_is_left_to_the_next_start(disk):
    log = disk.log()
    fill(log, [b"a", b"b"])
    log.roll(NOW)
    fill(log, [b"c"])
    for suffix in ("log", "index", "timeindex"):
        path = file(log, 0, suffix)
        path.with_name(f"{path.name}.cleaned").write_bytes(path.read_bytes())

    def full(source, target):
        if target.endswith(".timeindex.deleted"):
            raise OSError(errno.ENOSPC, "no space left on device")

    disk.files.before("rename", full)
    with pytest.raises(OSError, match="no space"):
        replace_segments(log, [0], 0)
    assert "could not install" in log.offline
    disk.crash()
    disk.start()
    assert read_all(disk.log()) == [(0, b"a"), (1, b"b"), (2, b"c")]


def test_leftovers_of_a_deletion_are_removed_at_start(disk):
    log = a_busy_log(disk.log())
    log.update_config(settings(retention_bytes=0))
    disk.worker.jobs.clear()
    apply_retention(log, 11, NOW)
    assert list(log.path.glob("*.deleted"))
    disk.crash()
    (log.path / "00000000000000000099.index").write_bytes(b"")
    (log.path / f"{LEADER_EPOCHS}.tmp").write_bytes(b"")
    disk.start()
    assert not list(log.path.glob("*.deleted")) + list(log.path.glob("*.tmp"))
    assert not (log.path / "00000000000000000099.index").exists()
    assert disk.log().log_start == 11


def test_an_empty_log_is_empty_after_a_restart(disk):
    log = disk.log()
    truncate_fully(log, 7)
    for clean in (True, False):
        log = disk.restarted(clean=clean)
        assert (log.log_start, log.log_end, read_all(log)) == (7, 7, [])


def set_byte(path, position, value):
    data = bytearray(path.read_bytes())
    data[position] = value
    path.write_bytes(data)


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "crash"])
def test_a_batch_of_a_newer_version_is_never_cut_off(disk, clean):
    """An older version was started by mistake, or after a downgrade."""
    log = disk.log()
    for value in (b"a", b"b"):
        append(log, batch(value))
    position = log.segments.active.size
    append(log, batch(b"c"))
    expected = read_all(log)
    disk.stop() if clean else disk.crash()
    log_file = file(log, 0)
    set_byte(log_file, position + MAGIC_AT, 3)
    written = log_file.read_bytes()
    disk.start()
    reason = disk.logs.offline_reason(ORDERS)
    assert str(log_file) in reason and "(offset 2) has magic 3; " in reason
    assert disk.logs.get(ORDERS) is None
    assert log_file.read_bytes() == written
    assert all(directory.offline is None for directory in disk.logs.directories)
    # The newer version finds everything.
    disk.crash()
    set_byte(log_file, position + MAGIC_AT, 2)
    disk.start()
    assert read_all(disk.log()) == expected


@pytest.mark.parametrize("damage", ["offset", "length"])
def test_an_unknown_magic_in_a_batch_that_does_not_fit_is_damage(disk, damage):
    log = disk.log()
    append(log, batch(b"a"))
    position = log.segments.active.size
    append(log, batch(b"b"))
    disk.crash()
    log_file = file(log, 0)
    set_byte(log_file, position + MAGIC_AT, 3)
    set_byte(log_file, position if damage == "offset" else position + LENGTH_AT, 0x90)
    disk.start()
    assert disk.log().log_end == 1
    assert log_file.stat().st_size == position


def test_a_log_of_magic_0_and_1_can_be_read(disk):
    """Messages from before Kafka 0.11, which no client can append any more."""
    log = disk.log()
    disk.stop()
    old = b"".join(_old_message(offset, b"v%d" % offset) for offset in range(5))
    new = build_batch([Record(5, NOW, None, b"new")], base_offset=5, leader_epoch=0)
    file(log, 0).write_bytes(old + new)
    (disk.paths[0] / CLEAN_SHUTDOWN).unlink()
    disk.start()
    log = disk.log()
    assert [value for _, value in read_all(log)] == [b"v%d" % i for i in range(5)] + [b"new"]
    assert append(log, batch(b"x")).base_offset == 6


def _old_message(offset, value):
    import struct
    import zlib

    body = struct.pack(">bbq", 1, 0, NOW) + struct.pack(">ii", -1, len(value)) + value
    crc = zlib.crc32(body)
    return struct.pack(">qiI", offset, len(body) + 4, crc) + body
