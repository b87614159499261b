"""Compaction of open logs by a real child process: what is removed, what stays, what can fail."""

import asyncio
import errno
import json
import os
import struct
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.core.cleaning import measure
from headrace.model.errors import Rejected
from headrace.model.ids import Offset, TopicPartition
from headrace.records.batch import GZIP, headers, seal
from headrace.records.compression import compress
from headrace.records.record import Record, build_batch, iter_records
from headrace.storage import checkpoint
from headrace.storage.compaction import log_cleaner
from headrace.storage.compaction.job import Job
from headrace.storage.compaction.log_cleaner import (
    ChildDied,
    CleanerSettings,
    LogCleaner,
    clean,
    summarize,
)
from headrace.storage.log import Log
from headrace.storage.log_retention import apply_retention
from headrace.storage.log_truncation import truncate_to
from headrace.world.jobs import SystemJobs
from tests.fakes.compactable import CompactableLog
from tests.fakes.logs import (
    NOW,
    ORDERS,
    Disk,
    append,
    marker,
    read_all,
    read_bytes,
    settings,
)
from tests.fakes.standin import in_loop

SETTINGS = CleanerSettings(buffer_size=1 << 20)


@pytest.fixture
def disk(tmp_path) -> Iterator[Disk]:
    disk = Disk(
        tmp_path / "data",
        config=settings(
            cleanup_policy=frozenset({"compact"}), segment_bytes=2_000, delete_retention_ms=1_000
        ),
    )
    yield disk
    disk.crash()


def keyed(*pairs: tuple[bytes, bytes | None], **options) -> memoryview:
    records = [Record(i, NOW, key, value) for i, (key, value) in enumerate(pairs)]
    return memoryview(bytearray(build_batch(records, **options)))


def put(log: Log, count: int, keys: int = 5, **options) -> None:
    for i in range(count):
        append(log, keyed((b"k%d" % (i % keys), b"v%d" % log.log_end), **options))


def compact(log: Log, now: int = NOW, settings: CleanerSettings = SETTINGS):
    stable_end = log.last_stable_offset(log.log_end)
    return asyncio.run(LogCleaner().clean_dirtiest([(log, stable_end)], settings, now))


def latest(log: Log) -> dict[bytes, bytes]:
    state: dict[bytes, bytes] = {}
    for record in stored(log):
        if record.value is None:
            state.pop(record.key, None)
        else:
            state[record.key] = record.value
    return state


def stored(log: Log) -> list[Record]:
    found = []
    for path in sorted(log.path.glob("*.log")):
        data = path.read_bytes()
        for position, header in headers(data):
            if not header.is_control:
                found += iter_records(data[position : position + header.size])
    return found


def names(log: Log) -> set[str]:
    return {path.name.partition(".")[2] for path in log.path.iterdir()}


def test_each_key_keeps_its_last_value_and_offsets_stay(disk: Disk) -> None:
    log = disk.log()
    put(log, 200)
    before = latest(log)
    active = log.segments.active.base_offset

    cleaned = compact(log)

    assert cleaned is not None
    assert cleaned.cleaned_end == active
    assert latest(log) == before
    below = [record for record in stored(log) if record.offset < active]
    assert len({record.key for record in below}) == len(below) == 5
    assert all(record.value == b"v%d" % record.offset for record in stored(log))
    assert log.log_end == 200
    assert log.directory.offsets.cleaned_end(ORDERS) == active
    assert (log.directory.path / "cleaner-offset-checkpoint").read_text().split() == (
        ["0", "1", "orders", "0", str(active)]
    )
    assert "log.cleaned" not in names(log) and "log.swap" not in names(log)


def test_a_reader_can_start_at_any_offset_and_keeps_its_open_file(disk: Disk) -> None:
    log = disk.log()
    put(log, 200)
    held = log.read(Offset(0), 500, Offset(200))
    assert held is not None
    before = os.pread(held.file.fd, held.size, held.position)

    compact(log)

    assert os.pread(held.file.fd, held.size, held.position) == before
    kept = [record.offset for record in stored(log)]
    for start in range(200):
        data = read_bytes(log, start)
        first = next(
            record.offset
            for position, header in headers(data)
            for record in iter_records(data[position : position + header.size])
            if record.offset >= start
        )
        assert first == min(offset for offset in kept if offset >= start)
    assert [offset for offset, _ in read_all(log)] == kept


def test_the_active_segment_is_never_touched(disk: Disk) -> None:
    log = disk.log()
    put(log, 10, keys=1)
    assert len(log.segments) == 1
    assert compact(log) is None
    assert len(stored(log)) == 10


def test_a_log_that_is_not_dirty_enough_is_not_cleaned(disk: Disk) -> None:
    log = disk.log()
    put(log, 200)
    assert compact(log) is not None
    assert compact(log) is None
    put(log, 60)
    assert compact(log) is not None


def test_small_segments_are_joined(disk: Disk) -> None:
    log = disk.log()
    put(log, 300)
    count = len(log.segments)
    assert count > 8
    compact(log)
    put(log, 300)
    compact(log)
    assert len(log.segments) <= count + 2


def test_tombstones_are_removed_after_delete_retention_ms(disk: Disk) -> None:
    log = disk.log()
    append(log, keyed((b"gone", b"value")))
    append(log, keyed((b"gone", None)))
    put(log, 100)
    log.roll(NOW)
    put(log, 1)

    compact(log)
    assert [r.value for r in stored(log) if r.key == b"gone"] == [None]
    put(log, 200)
    compact(log, now=NOW + 999)
    assert [r.value for r in stored(log) if r.key == b"gone"] == [None]
    put(log, 200)
    compact(log, now=NOW + 1_000)
    assert [r.value for r in stored(log) if r.key == b"gone"] == []


def test_aborted_records_are_removed_and_open_transactions_end_the_cleaning(disk: Disk) -> None:
    log = disk.log()
    options = {"producer_id": 5, "producer_epoch": 0, "transactional": True}
    append(log, keyed((b"k0", b"aborted"), base_sequence=0, **options))
    append(log, marker(commit=False, producer_id=5))
    put(log, 100)
    append(log, keyed((b"k1", b"open"), base_sequence=1, **options))
    put(log, 100)
    open_at = 102

    cleaned = compact(log)

    assert cleaned is not None and cleaned.cleaned_end <= open_at
    assert all(record.value != b"aborted" for record in stored(log))
    assert [record for record in stored(log) if record.value == b"open"]
    append(log, marker(commit=False, producer_id=5))
    put(log, 100)
    compact(log)
    assert all(record.value not in (b"aborted", b"open") for record in stored(log))


def test_a_producer_can_continue_after_compaction_and_a_restart(
    disk: Disk,
) -> None:
    log = disk.log()
    options = {"producer_id": 5, "producer_epoch": 0}
    append(log, keyed((b"k0", b"first"), base_sequence=0, **options))
    duplicate = keyed((b"k0", b"second"), base_sequence=1, **options)
    append(log, memoryview(bytearray(duplicate)))
    put(log, 200)
    compact(log)
    for snapshot in log.path.glob("*.snapshot"):
        snapshot.unlink()  # so that the start has to read the log

    log = disk.restarted(clean=False)

    assert append(log, duplicate).first_of_duplicate
    assert append(log, keyed((b"k0", b"third"), base_sequence=2, **options)).base_offset == 202


def test_a_compacted_log_opens_again_with_the_same_records(disk: Disk) -> None:
    log = disk.log()
    put(log, 300)
    compact(log)
    before = read_all(log)
    for clean_stop in (True, False):
        log = disk.restarted(clean=clean_stop)
        assert read_all(log) == before
        assert log.log_end == 300


def test_young_segments_wait_for_the_lag_time(disk: Disk) -> None:
    log = disk.log()
    log.update_config(disk.config._replace(min_compaction_lag_ms=5_000))
    put(log, 200)
    assert compact(log, now=NOW + 4_999) is None
    assert compact(log, now=NOW + 5_000) is not None


def test_an_overdue_log_is_cleaned_at_any_dirty_ratio(disk: Disk) -> None:
    log = disk.log()
    lazy = disk.config._replace(min_cleanable_dirty_ratio=1.0, max_compaction_lag_ms=60_000)
    log.update_config(lazy)
    put(log, 200)
    assert compact(log, now=NOW + 60_000) is None
    assert compact(log, now=NOW + 60_001) is not None


def test_a_small_buffer_cleans_a_part_of_the_log(disk: Disk) -> None:
    log = disk.log()
    put(log, 300, keys=100)
    before = latest(log)
    tiny = CleanerSettings(buffer_size=24 * 40)

    ends = [cleaned.cleaned_end for _ in range(30) if (cleaned := compact(log, settings=tiny))]

    assert ends == sorted(set(ends)) and len(ends) > 2
    assert latest(log) == before


def test_only_what_is_below_the_recovery_point_on_disk_is_cleaned(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Above it, recovery takes a gap for records that a power failure took."""
    log = disk.log()
    put(log, 200)
    swap = log_cleaner.replace_segments
    written: list[int] = []

    def swap_and_look(owner: Log, replaced: list[Offset], base_offset: Offset) -> None:
        path = owner.directory.path / checkpoint.RECOVERY_POINTS
        written.append(checkpoint.read_offsets(owner.directory.files, path)[ORDERS])
        swap(owner, replaced, base_offset)

    monkeypatch.setattr(log_cleaner, "replace_segments", swap_and_look)
    done = compact(log)
    assert done is not None and written
    assert min(written) >= done.cleaned_end


def test_a_log_that_cannot_be_flushed_is_not_cleaned(disk: Disk) -> None:
    log = disk.log()
    put(log, 200)
    log.flusher.postpone(True)  # as during a move to another disk
    assert compact(log) is None
    assert len(stored(log)) == 200
    log.flusher.postpone(False)
    assert compact(log) is not None


def test_segments_that_change_meanwhile_invalidate_the_cleaning(disk: Disk) -> None:
    log = disk.log()
    put(log, 200)
    dirt = measure(summarize(log, log.log_end), NOW)

    async def race() -> None:
        cleaning = asyncio.create_task(clean(log, dirt, SETTINGS, NOW))
        await asyncio.sleep(0)
        truncate_to(log, Offset(3))
        put(log, 200)
        await cleaning

    with pytest.raises(Rejected):
        asyncio.run(race())
    assert len(stored(log)) == 203
    assert "log.cleaned" not in names(log)
    assert compact(log) is not None


def test_records_written_after_a_truncation_count_as_dirty(disk: Disk) -> None:
    log = disk.log()
    put(log, 200)
    compact(log)
    truncate_to(log, Offset(20))
    assert log.log_end <= 20
    put(log, 400)
    assert measure(summarize(log, log.log_end), NOW).first_dirty <= 20
    compact(log)
    below = [record for record in stored(log) if record.offset < log.segments.active.base_offset]
    assert len({record.key for record in below}) == len(below)


def test_a_topic_deleted_meanwhile_ends_the_cleaning(disk: Disk) -> None:
    log = disk.log()
    put(log, 200)
    dirt = measure(summarize(log, log.log_end), NOW)

    async def race() -> None:
        cleaning = asyncio.create_task(clean(log, dirt, SETTINGS, NOW))
        await asyncio.sleep(0)
        disk.logs.delete(ORDERS)
        await cleaning

    with pytest.raises(Rejected):
        asyncio.run(race())
    assert log.directory.offline is None
    assert log.directory.offsets.cleaned_end(ORDERS) is None


@pytest.mark.parametrize("child_runs", [False, True])
def test_a_cancelled_cleaning_ends_its_child_and_leaves_no_files(
    disk: Disk, monkeypatch: pytest.MonkeyPatch, child_runs: bool
) -> None:
    log = disk.log()
    put(log, 200)
    before = read_all(log)
    slow = CleanerSettings(buffer_size=1 << 20, bytes_per_second=1)
    dirt = measure(summarize(log, log.log_end), NOW)
    jobs = log.directory.world.jobs
    start = jobs.start

    async def cancel() -> None:
        running = asyncio.Event()

        async def start_and_tell(*arguments, **options):
            child = await start(*arguments, **options)
            running.set()
            return child

        monkeypatch.setattr(jobs, "start", start_and_tell)
        cleaning = asyncio.create_task(clean(log, dirt, slow, NOW))
        await (running.wait() if child_runs else asyncio.sleep(0))
        cleaning.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cleaning

    asyncio.run(cancel())
    assert read_all(log) == before
    assert "log.cleaned" not in names(log)


def test_damage_stops_the_cleaning_of_that_log_alone(disk: Disk) -> None:
    log = disk.log()
    put(log, 200)
    other = disk.log(TopicPartition("other", 0))
    put(other, 100)
    path = min(log.path.glob("*.log"))
    data = bytearray(path.read_bytes())
    data[40] ^= 1
    path.write_bytes(data)
    rounds = LogCleaner()
    candidates = [(log, log.log_end), (other, other.log_end)]

    done = [asyncio.run(rounds.clean_dirtiest(candidates, SETTINGS, NOW)) for _ in range(3)]

    assert list(rounds.uncleanable) == [ORDERS]
    assert [each.topic_partition.topic for each in done if each] == ["other"]
    assert path.read_bytes() == data
    assert log.directory.offline is None


def test_a_recreated_topic_is_cleaned_though_the_old_one_was_damaged(disk: Disk) -> None:
    log = disk.log()
    put(log, 200)
    path = min(log.path.glob("*.log"))
    data = bytearray(path.read_bytes())
    data[40] ^= 1
    path.write_bytes(data)
    rounds = LogCleaner()
    asyncio.run(rounds.clean_dirtiest([(log, log.log_end)], SETTINGS, NOW))
    assert list(rounds.uncleanable) == [ORDERS]
    disk.logs.delete(ORDERS)
    again = disk.log()
    put(again, 200)

    done = asyncio.run(rounds.clean_dirtiest([(again, again.log_end)], SETTINGS, NOW))

    assert done is not None and done.topic_partition == ORDERS


def test_an_unreadable_batch_is_kept_unchanged(disk: Disk) -> None:
    log = disk.log()
    broken = bytearray(keyed((b"k0", b"value")))
    broken[22] = 4  # says zstd, wrongly
    seal(broken)
    append(log, memoryview(broken))
    put(log, 200)
    compact(log)
    assert read_bytes(log, 0)[22] == 4


def test_a_child_that_dies_is_distinguished_from_one_that_is_done(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = disk.log()
    put(log, 200)
    dirt = measure(summarize(log, log.log_end), NOW)
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(ChildDied):
        asyncio.run(clean(log, dirt, SETTINGS, NOW))
    assert compact(log) is None
    assert log.directory.offline is None


@pytest.mark.parametrize(
    "limit",
    [
        BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"),
        RuntimeError("can't start new thread"),
    ],
)
def test_a_child_that_cannot_be_started_does_not_take_the_disk_offline(
    disk: Disk, monkeypatch: pytest.MonkeyPatch, limit: Exception
) -> None:
    log = disk.log()
    put(log, 200)

    async def refused(*_, **__):
        raise limit

    with monkeypatch.context() as patch:
        patch.setattr(asyncio, "create_subprocess_exec", refused)
        assert compact(log) is None
    assert log.directory.offline is None
    assert compact(log) is not None


def test_a_file_that_the_child_may_not_read_does_not_take_the_disk_offline(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = disk.log()
    put(log, 200)

    class RefusedChild:
        async def send(self, request):
            pass

        async def receive(self):
            return json.dumps({"failed": {"errno": errno.EACCES, "message": "denied"}}).encode()

        async def kill(self):
            pass

    async def start(*_, **__):
        return RefusedChild()

    monkeypatch.setattr(log.directory.world.jobs, "start", start)
    assert compact(log) is None
    assert log.directory.offline is None


@in_loop
async def test_the_child_ends_when_its_parent_does(disk: Disk) -> None:
    log = disk.log()
    put(log, 200)
    dirt = measure(summarize(log, log.log_end), NOW)
    slow = CleanerSettings(buffer_size=1 << 20, bytes_per_second=1)
    job = log_cleaner.job_for(log, dirt, slow, NOW)
    child = await SystemJobs().start("headrace.storage.compaction.cleaner")
    await child.send(job.to_json().encode())
    child.release()  # as the kernel does when the parent dies
    status = await asyncio.wait_for(child.wait(), 30)
    assert status == 0, "it ended at once, though its work would have taken hours"


def test_a_job_is_the_same_after_json(disk: Disk) -> None:
    log = disk.log()
    append(log, keyed((b"k", b"v"), producer_id=5, producer_epoch=1, base_sequence=0))
    dirt = measure(summarize(log, log.log_end), NOW)
    job = log_cleaner.job_for(log, dirt, CleanerSettings(), NOW)
    assert Job.from_json(job.to_json()) == job
    assert json.loads(job.to_json())["producers"] == [[5, [0, 1]]]


def test_messages_of_old_formats_are_compacted_too(tmp_path: Path) -> None:
    def message(offset: int, key: bytes | None, value: bytes | None, codec: int = 0) -> bytes:
        fields = [struct.pack(">bbq", 1, codec, NOW)]
        for field in (key, value):
            fields.append(struct.pack(">i", -1 if field is None else len(field)) + (field or b""))
        body = b"".join(fields)
        return struct.pack(">qiI", offset, len(body) + 4, zlib.crc32(body)) + body

    inner = [message(i, key, b"wrapped") for i, key in enumerate((b"a", b"b", b"c"))]
    old = [
        message(2, None, compress(GZIP, b"".join(inner)), GZIP),
        message(3, b"a", b"last"),
        message(4, b"d", b"first"),
        message(5, b"d", None),
        message(6, b"e", b"alone"),
    ]
    log = CompactableLog(tmp_path)
    log.path(0).write_bytes(b"".join(old))
    log.log_end = 7
    log.roll()

    log.clean(NOW)

    assert [(r.offset, r.key, r.value) for r in log.stored()] == [
        (1, b"b", b"wrapped"),
        (2, b"c", b"wrapped"),
        (3, b"a", b"last"),
        (5, b"d", None),
        (6, b"e", b"alone"),
    ]
    assert [header.magic for header, _ in log.batches()] == [2, 1, 2, 1]
    log.cleaned_end = 0
    log.clean(NOW + 1_000)
    assert [record.offset for record in log.stored()] == [1, 2, 3, 6]


def test_compact_and_delete_together_expire_compacted_segments(disk: Disk) -> None:
    log = disk.log()
    log.update_config(
        disk.config._replace(cleanup_policy=frozenset({"compact", "delete"}), retention_ms=1_000)
    )
    put(log, 200)
    compact(log)
    # A segment without records expires by the time of its file, which is today.
    assert apply_retention(log, log.log_end, 1 << 50).segment_count > 0
    assert log.log_start > 0
    put(log, 100)
    assert compact(log, now=NOW + 2_000) is not None
