"""A log moves to another log directory while it grows, shrinks and is flushed."""

import asyncio
import errno
import os
import shutil
import threading
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest

from headrace.model.errors import ErrorCode, Rejected
from headrace.model.ids import LeaderEpoch, Offset, TopicPartition
from headrace.storage import log_copy, log_move
from headrace.storage.compaction.swap import replace_segments
from headrace.storage.log_copy import LogCopy
from headrace.storage.log_flush import LogFlusher
from headrace.storage.log_move import LogMove, relocate
from headrace.storage.log_retention import apply_retention, delete_records_before
from headrace.storage.log_truncation import truncate_to
from headrace.storage.move_throttle import UNLIMITED, MoveThrottle
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
)

BIG = 300_000


@pytest.fixture
def disk(tmp_path):
    disk = Disk(tmp_path / "a", tmp_path / "b", config=settings(segment_bytes=1 << 20))
    yield disk
    disk.crash()


def other(disk, log):
    return next(each for each in disk.logs.directories if each is not log.directory)


def move(disk, log):
    asyncio.run(LogMove(log, other(disk, log)).run())


def copies(disk):
    return [path for directory in disk.paths for path in directory.glob("*-future")]


@pytest.fixture
def between(monkeypatch):
    """Actions on the log while a thread is at work, one list entry per thread."""
    happenings = []
    real_thread, here = asyncio.to_thread, threading.get_ident()

    async def to_thread(work, *arguments):
        if threading.get_ident() != here:  # a broker of other tests, on its own thread
            return await real_thread(work, *arguments)
        done = work(*arguments)
        if happenings:
            happenings.pop(0)()
        return done

    monkeypatch.setattr(asyncio, "to_thread", to_thread)
    return happenings


@pytest.fixture
def synced(disk):
    """The size of each file at its last fsync, by its path then; and synced directories."""
    sizes = {}

    def note(fd):
        sizes[Path(os.readlink(f"/proc/self/fd/{fd}"))] = os.fstat(fd).st_size

    disk.files.before("fsync", note)
    disk.files.before("sync_directory", lambda path: sizes.__setitem__(Path(path), 0))
    return sizes


def test_a_log_moves_with_all_its_files_and_continues(disk):
    log = disk.log()
    fill(log, [bytes(BIG)] * 4)
    append(log, batch(b"a", producer_id=7, transactional=True), leader_epoch=LeaderEpoch(3))
    append(log, marker(commit=False, producer_id=7), leader_epoch=LeaderEpoch(3))
    append(log, batch(b"b", producer_id=8))
    delete_records_before(log, Offset(1))
    before, source = read_all(log), log.path
    bases, names = list(log.segments.bases), {path.name for path in source.iterdir()}
    target = other(disk, log)
    move(disk, log)
    assert log.path == target.path / "orders-0" and log.directory is target
    assert {path.name for path in log.path.iterdir()} == names
    assert list(log.segments.bases) == bases, "a move creates no segments"
    assert not source.exists() and not copies(disk)
    assert read_all(log) == before
    assert append(log, batch(b"b", producer_id=8)).first_of_duplicate
    append(log, batch(b"c", producer_id=8, base_sequence=1))
    expected = [*before, (log.log_end - 1, b"c")]
    for clean in (False, True):
        log = disk.restarted(clean=clean)
        assert log.path == target.path / "orders-0"
        assert read_all(log) == expected
        assert log.aborted_transactions(Offset(0), log.log_end) == [(7, 4)]
        assert log.leader_epochs.latest == 3
        assert append(log, batch(b"c", producer_id=8, base_sequence=1)).first_of_duplicate


def test_a_move_ends_although_appends_never_pause(disk, between):
    """Every round of the thread finds as much as before, and so does every step of the loop."""
    log = disk.log()
    fill(log, [bytes(BIG)] * 20)
    turns = []

    def grow():
        turns.append(log.log_end)
        assert len(turns) < 500, "the move makes no progress"
        fill(log, [bytes(BIG)] * 20)
        between.append(grow)

    between.append(grow)

    async def run():
        moving = asyncio.ensure_future(LogMove(log, other(disk, log)).run())
        while not moving.done():
            fill(log, [bytes(BIG)] * 5)
            await asyncio.sleep(0)
        await moving

    asyncio.run(run())
    assert len(turns) > log_move.SLOW_ROUNDS_MAX
    assert read_all(log) == [(n, bytes(BIG)) for n in range(log.log_end)]
    assert disk.restarted(clean=False).log_end == log.log_end


def test_the_loop_takes_part_if_the_target_falls_behind(disk, between):
    """Each round of the thread finds twice as much as the one before."""
    log = disk.log()
    fill(log, [bytes(BIG)] * 5)
    rounds = []

    def grow():
        rounds.append(log.log_end)
        if len(rounds) < 12:
            fill(log, [bytes(BIG)] * min(5 << len(rounds), 400))
            between.append(grow)

    between.append(grow)
    moving_log = LogMove(log, other(disk, log))
    asyncio.run(moving_log.copy_until_little_is_missing())
    assert len(rounds) == 1 + log_move.SLOW_ROUNDS_MAX


def test_the_loop_copies_little_at_a_time(disk, between, monkeypatch):
    log = disk.log()
    fill(log, [bytes(BIG)] * 3)
    between += [partial(fill, log, [bytes(BIG)] * count) for count in (9, 4, 2, 8)]
    on_the_loop = []
    real = LogCopy.append
    in_thread = []
    real_thread = asyncio.to_thread

    async def to_thread(work, *arguments):
        in_thread.append(1)
        try:
            return await real_thread(work, *arguments)
        finally:
            in_thread.pop()

    def noted(self, source, name, size, **options):
        before = self.size
        real(self, source, name, size, **options)
        if not in_thread:
            on_the_loop.append(self.size - before)

    monkeypatch.setattr(asyncio, "to_thread", to_thread)
    monkeypatch.setattr(LogCopy, "append", noted)
    move(disk, log)
    assert sum(on_the_loop) <= log_move.AT_ONCE_SIZE_MAX
    assert len(read_all(log)) == log.log_end == 26


@pytest.mark.parametrize(("grows_by", "round_count"), [(9, 2), (20, 1)])
def test_a_copy_is_fsynced_in_pieces_unless_the_load_is_as_fast(
    disk, between, synced, monkeypatch, grows_by, round_count
):
    """Too many dirty pages would make the kernel block the loop."""
    monkeypatch.setattr(log_copy, "UNWRITTEN_SIZE_MAX", 2 * BIG)
    monkeypatch.setattr(log_copy, "PIECE_SIZE", BIG)
    disk.config = settings(segment_bytes=1 << 30)
    log = disk.log()
    fill(log, [bytes(BIG)] * 20)
    between.append(partial(fill, log, [bytes(BIG)] * grows_by))
    unwritten = []
    real = LogCopy.append

    def noted(self, source, name, size, **options):
        real(self, source, name, size, **options)
        if size is not None:
            unwritten.append(size - synced.get(self.path / name, 0))

    monkeypatch.setattr(LogCopy, "append", noted)
    move(disk, log)
    assert all(size < 3 * BIG for size in unwritten[:round_count])
    assert (unwritten[1] > 3 * BIG) == (round_count == 1), "another fsync would find as much"
    assert read_all(log) == [(n, bytes(BIG)) for n in range(log.log_end)]


def test_the_recovery_point_does_not_exceed_what_was_fsynced(disk, between, synced):
    log = disk.log()
    append(log, batch(b"a"))
    between.append(lambda: append(log, batch(b"b")))
    move(disk, log)
    assert (log.flusher.recovery_point, log.log_end) == (1, 2)
    assert log.directory.offsets.recovery_point(ORDERS) == 1
    sizes = {path.name: size for path, size in synced.items() if "-future" in str(path)}
    assert sizes[f"{0:020d}.log"] == log.segments.size // 2
    assert {"leader-epoch-checkpoint", "partition.metadata"} <= set(sizes)


def test_acknowledged_records_are_fsynced_before_the_switch(disk, synced, monkeypatch):
    """As with flush.messages=1 under load: a producer always writes and waits for the fsync."""
    log = disk.log()
    first_name = f"{0:020d}.log"
    switches = []
    real = log_move.relocate

    def noted(log, directory, path, recovery_point):
        switches.append((log.flusher.recovery_point, recovery_point, synced.get(path / first_name)))
        real(log, directory, path, recovery_point)

    monkeypatch.setattr(log_move, "relocate", noted)

    async def run():
        moving = asyncio.ensure_future(LogMove(log, other(disk, log)).run())
        while not moving.done():
            end_offset = append(log, batch(b"more")).last_offset + 1
            await log.flusher.flush()
            assert log.flusher.recovery_point >= end_offset
        await moving

    asyncio.run(run())
    promised, recovery_point, synced_size = switches[0]
    assert recovery_point >= promised > 0
    assert synced_size >= log.segments.items[0].position_of(Offset(promised)) > 0


def test_concurrent_flushes_share_one_fsync(disk, monkeypatch):
    log = disk.log()
    append(log, batch(b"a"))
    flushes = []
    begin = LogFlusher.begin

    def counted(flusher):
        flushes.append(log.log_end)
        return begin(flusher)

    monkeypatch.setattr(LogFlusher, "begin", counted)

    async def run():
        first = asyncio.ensure_future(log.flusher.flush())
        await asyncio.sleep(0)
        append(log, batch(b"b"))
        await asyncio.gather(first, *(log.flusher.flush() for _ in range(5)))

    asyncio.run(run())
    assert flushes == [1, 2] and log.flusher.recovery_point == 2


def test_while_flushes_are_postponed_a_closed_segment_waits_for_its_fsync(disk, synced):
    log = disk.log()
    append(log, batch(b"a"))
    log.flusher.postpone(True)
    log.roll(NOW)
    disk.worker.run()
    assert (log.flusher.recovery_point, synced) == (0, {})
    log.flusher.postpone(False)
    disk.worker.run()
    assert log.flusher.recovery_point == 1


def test_flushes_are_postponed_only_until_the_end_of_a_move(disk, between, monkeypatch):
    log = disk.log()
    append(log, batch(b"a"))
    between.append(lambda: (append(log, batch(b"b")), log.roll(NOW), disk.worker.run()))
    real = log_move.relocate
    are_held = []

    def noted(log, *arguments):
        are_held.append(log.flusher.turn.locked())
        real(log, *arguments)

    monkeypatch.setattr(log_move, "relocate", noted)
    move(disk, log)
    assert are_held == [True, False], "by the switch, not by the rename"
    assert log.flusher.recovery_point == 1
    append(log, batch(b"c"))
    log.roll(NOW)
    disk.worker.run()
    assert log.flusher.recovery_point == 3


def test_a_flush_is_repeated_if_the_log_moves_meanwhile(disk, synced):
    log = disk.log()
    append(log, batch(b"a"))
    copy = disk.paths[0] / "orders-9"
    moves = [lambda: relocate(log, log.directory, shutil.copytree(log.path, copy), Offset(0))]

    def move_once(directory):
        if moves:
            moves.pop()()  # after the last fsync, before the recovery point moves

    disk.files.before("sync_directory", move_once)
    asyncio.run(log.flusher.flush())
    assert log.flusher.recovery_point == log.log_end == 1
    assert synced[copy / f"{0:020d}.log"] == log.segments.size


def test_a_flush_syncs_the_renames_of_a_move_that_has_not_settled(disk, synced):
    log = disk.log()
    append(log, batch(b"a"))
    log.flusher.renamed(tuple(disk.logs.directories))
    log.flusher.flush_now()
    assert set(disk.paths) <= set(synced)
    move(disk, log)
    assert log.flusher.renamed_in == ()


def test_a_log_survives_the_failure_of_the_disk_that_it_has_left(disk):
    log = disk.log()
    append(log, batch(b"a"))
    source, target = log.directory, other(disk, log)

    def refuse(path):
        if path == source.path:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    disk.files.before("sync_directory", refuse)
    moving_log = LogMove(log, target)
    asyncio.run(moving_log.catch_up())
    moving_log.switch()
    append(log, batch(b"b"))
    log.flusher.flush_now()
    assert log.flusher.recovery_point == log.log_end == 2
    assert source.offline is not None and target.offline is None
    asyncio.run(moving_log.settle())
    assert log.path == target.path / "orders-0" and log.path.exists()
    assert target.offline is None


def test_segments_that_retention_deletes_meanwhile_are_not_in_the_copy(disk, between):
    log = disk.log()
    fill(log, [bytes(BIG)] * 12)
    first = list(log.segments.bases)[2]

    def retain():
        log.update_config(settings(segment_bytes=1 << 20, retention_bytes=2 * BIG))
        apply_retention(log, log.log_end, NOW)

    between.append(retain)
    move(disk, log)
    assert log.segments.first_base_offset >= first
    kept = {int(path.stem) for path in log.path.glob("*.log")}
    assert kept == set(log.segments.bases)
    assert {int(path.stem) for path in log.path.glob("*.snapshot")} == set(log.snapshots.offsets)
    assert [n for n, _ in read_all(log)] == list(range(log.log_start, 12))


@pytest.mark.parametrize("threads_before", [0, 1])
def test_a_segment_that_is_compacted_meanwhile_is_copied_again(
    disk, between, synced, threads_before
):
    log = disk.log()
    fill(log, [b"a" * BIG, b"b" * BIG, b"c" * BIG, b"d" * BIG])
    assert len(log.segments) == 2

    def compact():
        whole = log.path / f"{0:020d}.log"
        (log.path / f"{0:020d}.log.cleaned").write_bytes(whole.read_bytes()[-log_size // 3 :])
        for kind in ("index", "timeindex"):
            (log.path / f"{0:020d}.{kind}.cleaned").write_bytes(b"")
        replace_segments(log, [Offset(0)], Offset(0))

    log_size = log.segments.items[0].size
    between += [lambda: None] * threads_before + [compact]
    move(disk, log)
    sizes = {path.name: size for path, size in synced.items() if "-future" in str(path)}
    assert sizes[f"{0:020d}.log"] == log_size // 3, "the new segment was fsynced"
    expected = [(2, b"c" * BIG), (3, b"d" * BIG)]
    assert read_all(log) == expected
    assert read_all(disk.restarted(clean=False)) == expected


def test_a_log_that_is_truncated_meanwhile_is_copied_again(disk, between):
    log = disk.log()
    fill(log, [b"a", b"b", b"c"])

    def cut():
        truncate_to(log, Offset(1))
        append(log, batch(b"other" * 100))  # longer than before

    between.append(cut)
    move(disk, log)
    expected = [(0, b"a"), (1, b"other" * 100)]
    assert read_all(log) == expected
    assert read_all(disk.restarted(clean=False)) == expected


def test_a_full_target_ends_the_move_and_keeps_no_files(disk, monkeypatch):
    log = disk.log()
    append(log, batch(b"a"))

    def full(self, source, name, size, **options):
        (self.path / "half").write_bytes(b"a segment, in part")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(LogCopy, "append", full)
    moving_log = LogMove(log, other(disk, log))
    with pytest.raises(OSError, match="No space"):
        asyncio.run(moving_log.run())
    moving_log.discard()
    disk.worker.run()
    assert list(moving_log.target.path.glob("orders-0*")) == []
    append(log, batch(b"b"))
    assert read_all(disk.log()) == [(0, b"a"), (1, b"b")]


@pytest.mark.parametrize("end", ["deleted", "source offline", "target offline", "file gone"])
def test_a_move_ends_if_it_cannot_continue(disk, between, end):
    log = disk.log()
    fill(log, [bytes(BIG)] * 6)
    target = other(disk, log)

    def happen():
        if end == "deleted":
            disk.logs.delete(ORDERS)
        elif end == "file gone":
            Path(log.segments.active.path("log")).unlink()
        else:
            (log.directory if end == "source offline" else target).take_offline("it broke")

    between.append(happen)
    moving_log = LogMove(log, target)
    with pytest.raises(Rejected):
        asyncio.run(moving_log.run())
    assert not moving_log.is_switched and log.directory is not target


def test_a_cancelled_move_waits_for_its_thread_which_stops_early(disk, monkeypatch):
    log = disk.log()
    fill(log, [bytes(BIG)] * 12)
    pieces = []

    async def run():
        moving_log = LogMove(log, other(disk, log))
        moving = asyncio.ensure_future(moving_log.run())
        begun = asyncio.Event()
        loop = asyncio.get_running_loop()
        real = LogCopy.append

        def slow(copy, source, name, size, **options):
            real(copy, source, name, size, **options)
            pieces.append(name)
            if len(pieces) == 1:
                loop.call_soon_threadsafe(begun.set)
                while not moving_log.is_over:
                    pass

        monkeypatch.setattr(LogCopy, "append", slow)
        await begun.wait()
        moving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await moving
        return moving_log, len(pieces)

    _, count = asyncio.run(run())
    assert len(pieces) == count < 10, "the thread has stopped"


def test_a_topic_name_too_long_for_a_copy_is_refused_as_by_kafka(disk):
    longest = TopicPartition("x" * 213, 0)
    log_move.check_name(longest)
    log = disk.log(longest)
    assert len(LogMove(log, other(disk, log)).path.name) == 255
    with pytest.raises(Rejected) as caught:
        log_move.check_name(TopicPartition("x" * 214, 0))
    assert caught.value.code is ErrorCode.INVALID_TOPIC_EXCEPTION


def test_discarding_a_copy_writes_no_checkpoint_on_the_loop(disk):
    log = disk.log()
    fill(log, [b"1", b"2", b"3"])
    delete_records_before(log, Offset(3))
    target = other(disk, log)
    moving_log = LogMove(log, target)
    asyncio.run(moving_log.catch_up())
    with disk.files.failing(errno.EIO, "open"):
        moving_log.discard()
    assert target.offline is None
    assert (target.offsets.log_start(ORDERS), target.offsets.recovery_point(ORDERS)) == (None, 0)
    assert not copies(disk)
    disk.crash()  # before the next checkpoint: the file still has the log start of the copy
    disk.start()
    disk.logs.delete(ORDERS)
    made = disk.logs.create(ORDERS, ORDERS_ID, disk.config, directory=disk.logs.directories[1])
    append(made, batch(b"of the new topic"))
    assert read_all(disk.restarted(clean=False)) == [(0, b"of the new topic")]


def test_a_log_gets_its_plain_name_before_it_moves_on(disk, between):
    """Otherwise a start could find two copies that might be the log, and no log."""
    log = disk.log()
    append(log, batch(b"a"))
    target = other(disk, log)

    def full(path, to):
        if Path(to).name == "orders-0":
            raise OSError(errno.ENOSPC, "No space left on device")

    disk.files.before("rename", full)
    with pytest.raises(OSError, match="No space"):
        move(disk, log)
    disk.files.repair("rename")
    assert log.directory is target and log.path.name.endswith("-future")
    names = []
    between += [lambda: names.append(log.path.name)] * 2
    move(disk, log)
    assert names == ["orders-0", "orders-0"]
    assert read_all(disk.restarted(clean=False)) == [(0, b"a")]


# -- resuming ----------------------------------------------------------------------------


@pytest.fixture(params=["orders", "orders.eu", "a-0.b"])
def named(request):
    """A partition; a dot in its name must not be taken for the one before the hex digits."""
    return TopicPartition(request.param, 0)


def unfinished(disk):
    return {each: copy.path for each, copy in disk.logs.unfinished_moves.items()}


def resume(disk, topic_partition=ORDERS):
    copy = disk.logs.unfinished_moves[topic_partition]
    resumed = LogMove(disk.logs.get(topic_partition), copy.directory, copy=copy.path)
    asyncio.run(resumed.run())
    return resumed


def test_a_start_keeps_an_unfinished_copy_and_the_move_resumes(disk, named):
    log = disk.log(named)
    append(log, batch(b"a"))
    moving_log = LogMove(log, other(disk, log))
    asyncio.run(moving_log.catch_up())
    target = moving_log.target.path
    disk.crash()
    disk.start()
    assert read_all(disk.logs.get(named)) == [(0, b"a")]
    assert unfinished(disk) == {named: moving_log.path}
    assert copies(disk) == [moving_log.path]
    append(disk.logs.get(named), batch(b"b"))
    resume(disk, named)
    log = disk.logs.get(named)
    assert log.path == target / str(named) and not copies(disk)
    assert read_all(log) == [(0, b"a"), (1, b"b")]
    disk.crash()
    disk.start()
    assert read_all(disk.logs.get(named)) == [(0, b"a"), (1, b"b")]


@pytest.fixture
def written(monkeypatch):
    """Bytes of batches that copies write, by file name."""
    sizes = {}
    append_to_copy = LogCopy.append

    def noted(copy, source, name, size, **options):
        before = copy.size
        append_to_copy(copy, source, name, size, **options)
        if copy.size > before:
            sizes[name] = sizes.get(name, 0) + copy.size - before

    monkeypatch.setattr(LogCopy, "append", noted)
    return sizes


def interrupted(disk):
    """A move that has copied everything, suspended by a shutdown."""
    log = disk.log()
    fill(log, [b"%d" % n * BIG for n in range(8)])
    moving_log = LogMove(log, other(disk, log))
    asyncio.run(moving_log.catch_up())
    asyncio.run(asyncio.to_thread(moving_log.suspend))
    return log, moving_log


def test_a_resumed_move_copies_only_the_rest(disk, written):
    log, moving_log = interrupted(disk)
    before = read_all(log)
    disk.stop()
    written.clear()
    disk.start()
    append(disk.log(), batch(b"more"))
    moved = resume(disk)
    assert sum(written.values()) == len(batch(b"more"))
    assert moved.size == disk.log().segments.size
    assert read_all(disk.log()) == [*before, (8, b"more")]
    assert disk.log().directory is moved.target
    assert read_all(disk.restarted(clean=False)) == [*before, (8, b"more")]


def truncated(disk, moving_log):
    truncate_to(disk.log(), Offset(2))
    append(disk.log(), batch(b"other" * 100))


def changed_in_the_copy(disk, moving_log):
    with (moving_log.path / f"{0:020d}.log").open("r+b") as file:
        file.seek(BIG)
        file.write(bytes(100))


def longer_in_the_copy(disk, moving_log):
    with (moving_log.path / f"{0:020d}.log").open("ab") as file:
        file.write(bytes(100))


def not_in_the_log(disk, moving_log):
    (moving_log.path / f"{999:020d}.log").write_bytes(b"of an older segment")
    (moving_log.path / f"{999:020d}.snapshot").write_bytes(b"of an older segment")


def retained(disk, moving_log):
    delete_records_before(disk.log(), Offset(5))
    apply_retention(disk.log(), disk.log().log_end, NOW)
    disk.worker.run()


@pytest.mark.parametrize(
    "difference",
    [truncated, changed_in_the_copy, longer_in_the_copy, not_in_the_log, retained],
)
def test_a_resumed_move_keeps_only_what_equals_the_log(disk, difference):
    _, moving_log = interrupted(disk)
    disk.stop()
    disk.start()
    difference(disk, moving_log)
    log = disk.log()
    before = read_all(log)
    resume(disk)
    assert read_all(log) == before
    assert {int(path.stem) for path in log.path.glob("*.log")} == set(log.segments.bases)
    assert {int(path.stem) for path in log.path.glob("*.snapshot")} == set(log.snapshots.offsets)
    assert read_all(disk.restarted(clean=False)) == before


def test_a_suspended_copy_is_never_taken_for_the_log(disk):
    log, moving_log = interrupted(disk)
    disk.stop()
    shutil.rmtree(log.path)
    disk.start()
    assert disk.logs.get(ORDERS) is None and "unfinished copy" in disk.logs.offline_reason(ORDERS)


# -- the throttle ------------------------------------------------------------------------


@pytest.fixture
def throttled(disk, monkeypatch):
    """A move of ten batches, its rates, and (delay, bytes copied) of each wait."""
    log = disk.log()
    fill(log, [bytes(BIG)] * 10)
    rates = []
    throttle = MoveThrottle(lambda: rates.pop(0) if len(rates) > 1 else rates[0])
    moving_log = LogMove(log, other(disk, log), throttle=throttle)
    noted = []
    real_sleep, here = asyncio.sleep, threading.get_ident()

    async def sleep(delay, result=None):
        if threading.get_ident() != here:  # a broker of other tests, on its own thread
            return await real_sleep(delay, result)
        noted.append((delay, moving_log.size))
        return await real_sleep(0, result)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    return moving_log, rates, noted


def test_a_throttled_move_copies_a_tenth_of_a_second_at_a_time(throttled):
    moving_log, rates, noted = throttled
    rates += [1_000_000] * 6 + [UNLIMITED]
    asyncio.run(moving_log.run())
    assert [size for _, size in noted[:3]] == [100_000, 200_000, 300_000]
    assert all(delay <= 0.1 for delay, _ in noted)
    assert moving_log.is_switched and len(read_all(moving_log.log)) == 10


def test_a_rate_of_zero_pauses_a_move(throttled):
    moving_log, rates, noted = throttled
    rates += [0] * 6 + [UNLIMITED]
    asyncio.run(moving_log.run())
    assert noted[:3] == [(1, 0)] * 3
    assert moving_log.is_switched and len(read_all(moving_log.log)) == 10


def test_a_throttle_below_the_load_is_not_exceeded(throttled, monkeypatch):
    """Without a throttle the loop would take part after some rounds."""
    moving_log, rates, noted = throttled
    rates.append(10 * BIG)
    steps = [2] * 20 + [0] * 100
    sleep = asyncio.sleep

    here = threading.get_ident()

    async def grow_and_sleep(delay, result=None):
        if threading.get_ident() == here:
            fill(moving_log.log, [bytes(BIG)] * steps.pop(0))
        return await sleep(delay, result)

    monkeypatch.setattr(asyncio, "sleep", grow_and_sleep)
    asyncio.run(moving_log.copy_until_little_is_missing())
    sizes = [0, *(size for _, size in noted)]
    assert len(sizes) > 20 + log_move.SLOW_ROUNDS_MAX
    assert all(after - before <= BIG for before, after in pairwise(sizes))


# -- what a start finds ------------------------------------------------------------------


def test_a_start_finishes_a_move_that_ended_between_switch_and_rename(disk, named):
    log = disk.log(named)
    append(log, batch(b"a"))
    target = other(disk, log)
    moving_log = LogMove(log, target)
    asyncio.run(moving_log.catch_up())
    moving_log.switch()
    append(log, batch(b"b"))
    assert copies(disk) == [moving_log.path]
    disk.crash()
    disk.start()
    log = disk.logs.get(named)
    assert read_all(log) == [(0, b"a"), (1, b"b")]
    assert log.path == target.path / str(named)
    assert disk.logs.unfinished_moves == {}


def test_a_log_without_a_batch_is_moved(disk):
    log = disk.log()
    target = other(disk, log)
    asyncio.run(LogMove(log, target).run())
    assert log.directory is target and log.path.parent == target.path
    append(log, batch(b"a"))
    assert read_all(disk.restarted(clean=False)) == [(0, b"a")]


def test_a_topic_deleted_between_switch_and_rename_is_gone(disk):
    log = disk.log()
    moving_log = LogMove(log, other(disk, log))
    asyncio.run(moving_log.catch_up())
    moving_log.switch()
    disk.logs.delete(ORDERS)
    asyncio.run(moving_log.settle())
    disk.worker.run()
    assert not any(list(directory.glob("orders-0*")) for directory in disk.paths)


@pytest.mark.parametrize("is_nearly_complete", [False, True])
def test_a_topic_deleted_during_a_move_stays_deleted_after_a_kill(disk, is_nearly_complete):
    log = disk.log()
    append(log, batch(b"a"))
    moving_log = LogMove(log, other(disk, log))
    if is_nearly_complete:
        asyncio.run(moving_log.catch_up())
    renamed = []
    disk.files.before("rename", lambda path, target: renamed.append(path))
    disk.logs.delete(ORDERS)
    directories = [path for path in renamed if isinstance(path, Path)]  # without the checkpoints
    assert directories == [moving_log.path, disk.paths[0] / "orders-0"]
    disk.crash()
    disk.start()
    assert disk.logs.get(ORDERS) is None and not disk.logs.offline_partitions() and not copies(disk)


def test_an_incomplete_copy_is_never_taken_for_the_log(disk):
    log = disk.log()
    append(log, batch(b"a"))
    moving_log = LogMove(log, other(disk, log))
    shutil.copy(log.path / f"{0:020d}.log", moving_log.path)
    aside = log.path.rename(log.path.with_name("aside"))
    disk.crash()
    disk.start()
    assert disk.logs.get(ORDERS) is None and "unfinished copy" in disk.logs.offline_reason(ORDERS)
    disk.crash()
    aside.rename(aside.with_name("orders-0"))
    disk.start()
    assert read_all(disk.log()) == [(0, b"a")]


def test_a_copy_does_not_replace_a_log_that_cannot_be_opened(disk):
    log = disk.log()
    append(log, batch(b"a"))
    moving_log = LogMove(log, other(disk, log))
    asyncio.run(moving_log.catch_up())
    disk.crash()

    def refuse(path):
        if path == str(log.path):
            raise PermissionError(errno.EACCES, "Permission denied", path)

    disk.files.before("names_in", refuse)
    disk.start()
    assert disk.logs.get(ORDERS) is None and "Permission denied" in disk.logs.offline_reason(ORDERS)
    assert log.path.exists() and moving_log.path.exists()


@pytest.fixture
def three(tmp_path):
    """Three log directories; the last one has the log."""
    disk = Disk(*(tmp_path / name for name in "abc"), config=settings(segment_bytes=1 << 20))
    log = disk.logs.create(ORDERS, ORDERS_ID, disk.config, directory=disk.logs.directories[2])
    append(log, batch(b"a"))
    yield disk
    disk.crash()


def age(directory, seconds):
    os.utime(directory, (NOW / 1000 - seconds,) * 2)


@pytest.mark.parametrize("last", [0, 1])
def test_of_two_unfinished_copies_the_younger_is_resumed(three, last):
    paths = [LogMove(three.log(), target).path for target in list(three.logs.directories)[:2]]
    for number, path in enumerate(paths):
        age(path, 10 if number == last else 20)
    three.crash()
    three.start()
    assert read_all(three.log()) == [(0, b"a")]
    assert unfinished(three) == {ORDERS: paths[last]}
    assert copies(three) == [paths[last]]


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("next_is_younger", [True, False])
def test_a_copy_that_is_the_log_is_found_beside_one_that_has_just_begun(
    three, first, next_is_younger
):
    target, next_target = three.logs.directories[first], three.logs.directories[1 - first]
    log = three.log()
    moving_log = LogMove(log, target)
    asyncio.run(moving_log.catch_up())
    moving_log.switch()
    append(log, batch(b"b"))
    begun = LogMove(log, next_target)
    age(moving_log.path, 10)
    age(begun.path, 5 if next_is_younger else 20)
    three.crash()
    three.start()
    log = three.logs.get(ORDERS)
    assert log.path == target.path / "orders-0"
    assert read_all(log) == [(0, b"a"), (1, b"b")]
    assert unfinished(three) == ({ORDERS: begun.path} if next_is_younger else {})
    assert copies(three) == ([begun.path] if next_is_younger else [])
    assert not three.logs.offline_partitions()


def test_of_two_complete_copies_none_is_taken_for_the_log(three, caplog):
    log = three.log()
    for target in list(three.logs.directories)[:2]:
        asyncio.run(LogMove(log, target).catch_up())
    shutil.rmtree(log.path)
    both = copies(three)
    three.crash()
    three.start()
    assert three.logs.get(ORDERS) is None and ORDERS in three.logs.offline_partitions()
    assert copies(three) == both and "with one copy alone" in caplog.text
    three.crash()
    shutil.rmtree(both[0])
    three.start()
    assert read_all(three.logs.get(ORDERS)) == [(0, b"a")]


def test_a_copy_of_a_deleted_topic_is_not_taken_for_its_log(disk):
    log = disk.log()
    moving_log = LogMove(log, other(disk, log))
    asyncio.run(moving_log.catch_up())
    shutil.rmtree(log.path)
    disk.crash()
    disk.start(deleted_ids={ORDERS_ID})
    assert disk.logs.get(ORDERS) is None and not disk.logs.offline_partitions() and not copies(disk)


def test_a_topic_with_only_a_copy_can_be_deleted(disk):
    log = disk.log()
    LogMove(log, other(disk, log))
    log.path.rename(log.path.with_name("aside"))
    disk.crash()
    disk.start()
    assert ORDERS in disk.logs.offline_partitions()
    disk.logs.delete(ORDERS)
    assert not copies(disk)
    disk.crash()
    disk.start()
    assert not disk.logs.offline_partitions()
