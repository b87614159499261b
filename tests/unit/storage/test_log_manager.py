"""Several log directories, their owners, their checkpoints, and disks that fail."""

import errno
import os
import subprocess
import sys
from contextlib import contextmanager

import pytest

from headrace.model.errors import ConfigError, ErrorCode, Rejected
from headrace.model.ids import TopicId, TopicPartition
from headrace.storage import checkpoint
from headrace.storage.log_manager import LogManager
from headrace.storage.log_retention import delete_records_before
from headrace.storage.log_truncation import truncate_fully, truncate_to
from headrace.world.world import World
from tests.fakes.logs import (
    NOW,
    ORDERS,
    ORDERS_ID,
    Disk,
    HandWorker,
    StoredWorld,
    append,
    batch,
    fill,
    read_all,
    settings,
)
from tests.fakes.standin import in_loop


@pytest.fixture
def disk(tmp_path):
    disk = Disk(tmp_path / "a", tmp_path / "b")
    yield disk
    disk.crash()


def partitions(topic, count):
    return [TopicPartition(topic, i) for i in range(count)]


# -- the owner ---------------------------------------------------------------------------


def test_a_new_directory_gets_an_owner(disk):
    paths = [path / "meta.properties" for path in disk.paths]
    properties = [checkpoint.read_properties(disk.files, path) for path in paths]
    assert [each["version"] for each in properties] == ["1", "1"]
    assert {each["cluster.id"] for each in properties} == {disk.logs.directories.cluster_id}
    assert len({each["directory.id"] for each in properties}) == 2
    assert {each["node.id"] for each in properties} == {"1"}


def test_the_owner_is_recognized_after_a_restart(disk):
    cluster_id = disk.logs.directories.cluster_id
    ids = [each.directory_id for each in disk.logs.directories]
    disk.stop()
    disk.start()
    assert disk.logs.directories.cluster_id == cluster_id
    assert [each.directory_id for each in disk.logs.directories] == ids


def test_a_directory_of_a_zookeeper_broker_is_accepted(tmp_path):
    (tmp_path / "meta.properties").write_text(
        "#\n#Sun Nov 15 22:08:16 UTC 2020\nversion=0\nbroker.id=1\ncluster.id=abc\n"
    )
    disk = Disk(tmp_path)
    assert disk.logs.directories.cluster_id == "abc"
    assert disk.logs.directories[0].directory_id
    disk.stop()
    assert checkpoint.read_properties(disk.files, tmp_path / "meta.properties")["broker.id"] == "1"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("node.id=7", "belongs to node 7"),
        ("cluster.id=other", "belongs to cluster other"),
        ("version=2", "version 2"),
    ],
)
def test_a_directory_of_another_owner_is_refused(tmp_path, line, message):
    (tmp_path / "meta.properties").write_text(f"version=1\n{line}\n")
    with pytest.raises(ConfigError, match=message):
        Disk(tmp_path, cluster_id="mine")


def test_a_second_broker_in_the_same_process_is_refused(disk):
    with pytest.raises(ConfigError, match=str(disk.paths[0])):
        Disk(*disk.paths)
    # the refusal has not released the first lock
    with pytest.raises(ConfigError):
        Disk(*disk.paths)
    assert lock_is_held(disk.paths[0])


def test_a_second_process_is_refused(disk):
    assert lock_is_held(disk.paths[0])
    disk.stop()
    assert not lock_is_held(disk.paths[0])
    disk.start()


def lock_is_held(path):
    script = (
        "import fcntl, sys\n"
        "file = open(sys.argv[1], 'r+')\n"
        "try: fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)\n"
        "except OSError: sys.exit(3)\n"
    )
    done = subprocess.run([sys.executable, "-S", "-c", script, str(path / ".lock")], check=False)
    assert done.returncode in (0, 3)
    return done.returncode == 3


# -- partitions --------------------------------------------------------------------------


def test_a_new_partition_goes_to_the_directory_with_the_fewest(disk):
    for name in partitions("orders", 5):
        disk.logs.create(name, ORDERS_ID, settings())
    counts = [len(list(path.glob("orders-*"))) for path in disk.paths]
    assert sorted(counts) == [2, 3]


def test_a_new_partition_has_no_segment_until_its_first_batch(disk):
    log = disk.log()
    assert [path.name for path in log.path.iterdir()] == ["partition.metadata"]
    log.flusher.flush_now()
    for clean in (True, False):
        log = disk.restarted(clean=clean)
        assert log.topic_id == ORDERS_ID and log.log_end == 0
        assert not list(log.path.glob("0*"))
    append(log, batch(b"a"))
    assert (log.path / f"{0:020d}.log").exists()
    assert (log.path / "leader-epoch-checkpoint").exists()
    assert read_all(disk.restarted(clean=False)) == [(0, b"a")]


def test_a_first_batch_that_the_disk_refuses_can_be_sent_again(disk):
    log = disk.log()
    with disk.files.failing(errno.ENOSPC, "open"), pytest.raises(Rejected):
        append(log, batch(b"a"))
    append(log, batch(b"b"))
    assert read_all(log) == [(0, b"b")]
    assert read_all(disk.restarted(clean=False)) == [(0, b"b")]


def test_a_log_that_begins_later_has_its_segment_at_once(disk):
    """Only the name of the file tells a start where the log begins."""
    log = disk.log()
    truncate_fully(log, 7)
    assert disk.restarted(clean=False).log_end == 7


def test_all_partitions_are_opened_after_a_restart(disk):
    for name in partitions("orders", 4):
        append(disk.log(name), batch(str(name).encode()))
    for clean in (True, False):
        disk.restarted(clean=clean)
        for name in partitions("orders", 4):
            log = disk.logs.get(name)
            assert read_all(log) == [(0, str(name).encode())]
            assert log.topic_id == ORDERS_ID


def test_topic_names_may_end_like_a_partition(disk):
    names = [TopicPartition("a-1", 0), TopicPartition("a", 10), TopicPartition("a.b_c-", 3)]
    for name in names:
        disk.log(name)
    disk.stop()
    disk.start()
    assert sorted(str(log.topic_partition) for log in disk.logs) == ["a-1-0", "a-10", "a.b_c--3"]


def test_other_directories_are_ignored(disk, caplog):
    disk.stop()
    strange = ("my-future", "my-delete", "x-1.ab-stray", f"x.{'ab' * 16}-future")
    for name in ("lost+found", "notes", "__cluster_metadata-0", "x-1y", *strange):
        (disk.paths[0] / name).mkdir()
    (disk.paths[0] / "headrace.sqlite").write_bytes(b"ours")
    disk.start()
    assert len(disk.logs) == 0
    disk.worker.run()
    assert (disk.paths[0] / "lost+found").exists()
    assert all((disk.paths[0] / name).exists() for name in strange)
    assert "notes: not a partition directory" in caplog.text
    assert "my-future: not a partition directory" in caplog.text
    assert "__cluster_metadata" not in caplog.text


def test_interrupted_deletions_are_finished(disk):
    log = disk.log()
    append(log, batch(b"a"))
    disk.logs.delete(ORDERS)
    disk.crash()
    assert log.path.exists()
    disk.start()
    assert len(disk.logs) == 0
    disk.worker.run()
    assert not log.path.exists()


def test_a_directory_that_is_set_aside_keeps_its_files(disk, caplog):
    log = disk.log()
    append(log, batch(b"a"))
    plain = log.path
    aside = disk.logs.set_aside(ORDERS)
    assert aside is not None and aside.name.startswith(f"{ORDERS}.")
    assert aside.name.endswith("-stray") and not plain.exists()
    assert disk.logs.get(ORDERS) is None
    files = sorted(path.name for path in aside.iterdir())
    disk.crash()
    disk.start()
    disk.worker.run()
    assert len(disk.logs) == 0
    assert sorted(path.name for path in aside.iterdir()) == files
    assert f"{aside} was set aside" in caplog.text


def test_a_recreated_topic_does_not_inherit_offsets(disk):
    log = disk.log()
    fill(log, [b"a"] * 10)
    delete_records_before(log, 5)
    disk.logs.checkpoint({ORDERS: 10})
    disk.logs.delete(ORDERS)
    log = disk.log()
    assert (log.log_start, log.log_end, disk.logs.high_watermark(ORDERS)) == (0, 0, 0)
    disk.logs.checkpoint()
    log = disk.restarted(clean=False)
    assert (log.log_start, log.log_end) == (0, 0)


def test_a_recreated_topic_does_not_inherit_a_log_start_after_a_crash(disk):
    fill(disk.log(), [b"1", b"2", b"3"])
    delete_records_before(disk.log(), 3)
    disk.logs.checkpoint()
    disk.logs.delete(ORDERS)
    fill(disk.log(), [b"of the new topic"])
    again = disk.restarted(clean=False)
    assert read_all(again) == [(0, b"of the new topic")]


def test_a_topic_deleted_on_a_full_disk_does_not_come_back(disk, monkeypatch):
    log = disk.log()
    fill(log, [b"1", b"2", b"3"])
    delete_records_before(log, 2)
    disk.logs.checkpoint()

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "write_offsets", full)
        disk.logs.delete(ORDERS)
        assert log.closed
    fill(disk.log(), [b"of the new topic"])
    again = disk.restarted(clean=False)
    assert read_all(again) == [(0, b"of the new topic")]
    disk.logs.delete(ORDERS)
    disk.crash()
    disk.start()
    assert len(disk.logs) == 0


def test_a_late_checkpoint_does_not_restore_deleted_offsets(disk):
    fill(disk.log(), [b"1", b"2", b"3"])
    delete_records_before(disk.log(), 3)
    disk.logs.note_offsets(disk.log(), None)
    disk.logs.checkpoint_noted()  # not written yet: another job runs
    late = disk.worker.jobs.pop()[1]
    disk.logs.checkpoint()
    disk.logs.delete(ORDERS)
    fill(disk.log(), [b"of the new topic"])
    late()
    again = disk.restarted(clean=False)
    assert read_all(again) == [(0, b"of the new topic")]


def test_a_partition_in_two_directories_is_refused(disk):
    disk.log()
    disk.stop()
    for path in disk.paths:
        (path / "orders-0").mkdir(exist_ok=True)
    with pytest.raises(ConfigError, match="orders-0 is in both"):
        disk.start()


def test_a_new_partition_holds_no_open_file_until_its_first_record(disk):
    before = len(os.listdir("/proc/self/fd"))
    log = disk.log()
    assert len(os.listdir("/proc/self/fd")) == before
    append(log, batch(b"a"))
    assert len(os.listdir("/proc/self/fd")) == before + 1


def test_open_files_are_bounded(tmp_path):
    disk = Disk(tmp_path / "data", open_files_max=16)
    before = len(os.listdir("/proc/self/fd")) if os.path.exists("/proc/self/fd") else 0
    for name in partitions("many", 60):
        append(disk.log(name), batch(b"x"))
    if before:
        assert len(os.listdir("/proc/self/fd")) - before <= 16
    for name in partitions("many", 60):
        assert read_all(disk.logs.get(name)) == [(0, b"x")]
        append(disk.logs.get(name), batch(b"y"))
    disk.crash()


# -- checkpoints -------------------------------------------------------------------------


def test_checkpoints_have_kafkas_names_and_format(disk):
    for name in partitions("orders", 2):
        fill(disk.log(name), [b"a"] * 3)
    delete_records_before(disk.log(TopicPartition("orders", 1)), 2)
    disk.log().flusher.flush_now()
    disk.logs.checkpoint(dict.fromkeys(partitions("orders", 2), 3))
    first, second = (disk.log(name).directory.path for name in partitions("orders", 2))
    assert (first / "recovery-point-offset-checkpoint").read_text() == "0\n1\norders 0 3\n"
    assert (second / "recovery-point-offset-checkpoint").read_text() == "0\n1\norders 1 0\n"
    assert (first / "replication-offset-checkpoint").read_text() == "0\n1\norders 0 3\n"
    assert (first / "log-start-offset-checkpoint").read_text() == "0\n0\n"
    assert (second / "log-start-offset-checkpoint").read_text() == "0\n1\norders 1 2\n"


def test_high_watermarks_survive_a_restart_within_the_log(disk):
    fill(disk.log(), [b"a"] * 5)
    disk.logs.checkpoint({ORDERS: 4})
    disk.restarted(clean=False)
    assert disk.logs.high_watermark(ORDERS) == 4
    truncate_to(disk.log(), 2)
    assert disk.logs.high_watermark(ORDERS) == 2


def test_a_damaged_checkpoint_loses_no_data(disk, caplog):
    fill(disk.log(), [b"a"] * 5)
    disk.stop()
    (disk.paths[0] / checkpoint.CLEAN_SHUTDOWN).unlink()
    for name in (checkpoint.RECOVERY_POINTS, checkpoint.HIGH_WATERMARKS, checkpoint.LOG_STARTS):
        (disk.paths[0] / name).write_text("0\n5\norders 0\n")
    disk.start()
    assert len(read_all(disk.log())) == 5
    assert "Ignoring the file" in caplog.text


def test_the_clean_shutdown_marker_is_removed_while_running(disk):
    disk.stop()
    markers = [path / checkpoint.CLEAN_SHUTDOWN for path in disk.paths]
    assert all(marker.exists() for marker in markers)
    disk.start()
    assert not any(marker.exists() for marker in markers)
    disk.crash()
    disk.start()
    assert not any(directory.clean_start for directory in disk.logs.directories)


class Machine(StoredWorld):
    """A machine that can lose its power."""

    boot_count = 1
    tells_boots = True

    def boot_id(self):
        return f"boot {self.boot_count}" if self.tells_boots else None


@pytest.fixture
def machine(tmp_path):
    return Machine(), [tmp_path / "a", tmp_path / "b"]


@contextmanager
def started(machine):
    world, paths = machine
    logs = LogManager(
        paths,
        world=world,
        node_id=1,
        config_of=lambda topic: settings(),
        later=HandWorker().later,
    )
    logs.open_all(NOW)
    yield logs
    logs.abandon()


def loses_records(machine):
    """Whether a start finds that records may be lost. Its process is then killed."""
    with started(machine) as logs:
        return logs.directories.may_have_lost_records


def test_a_process_that_is_killed_loses_no_records(machine):
    assert [loses_records(machine) for _ in range(3)] == [False] * 3


def test_a_machine_that_goes_down_under_a_broker_may_lose_records(machine):
    loses_records(machine)
    machine[0].boot_count += 1
    assert loses_records(machine)


def test_records_may_be_lost_until_the_controller_knows(machine):
    loses_records(machine)
    machine[0].boot_count += 1
    assert loses_records(machine) and loses_records(machine)
    with started(machine) as logs:
        logs.directories.losses_reported()
        assert not logs.directories.may_have_lost_records
    assert not loses_records(machine)


def test_a_machine_that_goes_down_after_a_clean_shutdown_loses_no_records(machine):
    with started(machine) as logs:
        logs.close_clean()
    machine[0].boot_count += 1
    assert not loses_records(machine)
    assert not loses_records(machine), "the boot of the clean start is known"


def test_a_clean_shutdown_does_not_hide_that_records_may_be_lost(machine):
    loses_records(machine)
    machine[0].boot_count += 1
    with started(machine) as logs:
        logs.close_clean()
    assert loses_records(machine)


def test_where_the_system_does_not_tell_boots_every_unclean_start_may_have_lost_records(machine):
    machine[0].tells_boots = False
    assert not loses_records(machine), "the directories are new"
    assert loses_records(machine)


def test_a_directory_that_is_added_has_lost_nothing(machine):
    world, paths = machine
    loses_records((world, paths[:1]))
    assert not loses_records((world, paths))


def test_the_broker_epoch_of_a_clean_shutdown_is_restored(disk):
    disk.logs.close_clean(broker_epoch=42)
    disk.start()
    assert disk.logs.directories[0].last_broker_epoch == 42


def test_many_changed_logs_are_closed_with_one_sync(disk):
    synced = []
    disk.files.sync_all = lambda: synced.append(True)
    for name in partitions("many", 40):
        append(disk.log(name), batch(b"x"))
    disk.stop()
    assert synced == [True]
    disk.start()
    assert all(read_all(disk.logs.get(name)) == [(0, b"x")] for name in partitions("many", 40))
    assert all(log.flusher.recovery_point == 1 for log in disk.logs)


def test_a_full_disk_is_reported_at_intervals(disk, caplog):
    directory = disk.logs.directories[0]
    for _ in range(100):
        assert not directory.failed(OSError(errno.ENOSPC, "No space left on device"))
    assert caplog.text.count("No space left") == 1
    assert "until there is room" in caplog.text
    assert directory.offline is None


# -- disks that fail ---------------------------------------------------------------------


def test_many_unflushed_segments_are_closed_with_one_sync(disk):
    disk.config = settings(segment_bytes=100)
    fill(disk.log(), [b"as large as a segment"] * 50)
    disk.worker.jobs.clear()
    synced = []
    disk.files.sync_all = lambda: synced.append(1)
    log = disk.restarted()
    assert synced == [1]
    assert (log.flusher.recovery_point, log.log_end) == (50, 50)


def test_a_failed_log_directory_goes_offline_alone(disk):
    names = partitions("orders", 2)
    for name in names:
        append(disk.log(name), batch(b"x"))
    told = []
    disk.logs.report_to(told.append, lambda bug: None)
    broken = disk.log(names[0])
    broken.directory.take_offline("tested")
    assert told == [broken.directory]
    assert (broken.offline, disk.log(names[1]).offline) == ("tested", None)
    append(disk.log(names[1]), batch(b"y"))
    for i in range(2, 5):
        made = disk.logs.create(TopicPartition("orders", i), ORDERS_ID, settings())
        assert made.directory is disk.log(names[1]).directory
    disk.stop()
    assert not (broken.directory.path / checkpoint.CLEAN_SHUTDOWN).exists()
    disk.start()


@in_loop
async def test_a_bug_in_a_background_job_prevents_the_clean_shutdown_marker(tmp_path):
    logs = opened(tmp_path)
    met = []
    logs.report_to(lambda directory: None, met.append)
    logs.directories[0].later(0, lambda: 1 / 0)
    logs.close_clean()
    assert len(met) == 1
    assert not (tmp_path / checkpoint.CLEAN_SHUTDOWN).exists()


def test_without_an_online_directory_no_log_is_created(disk):
    for directory in disk.logs.directories:
        directory.take_offline("tested")
    with pytest.raises(Rejected) as caught:
        disk.logs.create(ORDERS, ORDERS_ID, settings())
    assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR


def test_nothing_is_left_of_a_log_that_a_full_disk_did_not_let_create(disk, tmp_path):
    with disk.files.failing(errno.ENOSPC, "pwrite"), pytest.raises(Rejected) as caught:
        disk.logs.create(ORDERS, ORDERS_ID, settings())
    assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert not list(tmp_path.glob("*/orders-0"))
    assert disk.log().log_end == 0  # there is room again


def test_a_directory_that_is_unusable_at_start_is_left_out(tmp_path):
    (tmp_path / "file").write_text("not a directory")
    disk = Disk(tmp_path / "file", tmp_path / "good")
    assert [each.offline is None for each in disk.logs.directories] == [False, True]
    append(disk.log(), batch(b"a"))
    disk.crash()
    with pytest.raises(ConfigError, match="Cannot use any of log.dirs"):
        Disk(tmp_path / "file", tmp_path / "file" / "below")


def test_the_only_directory_must_be_usable(tmp_path, caplog):
    (tmp_path / "file").write_text("not a directory")
    with pytest.raises(
        ConfigError, match="Cannot use data directory .*file: it is not a directory"
    ):
        Disk(tmp_path / "file")
    assert not caplog.records, "there are no other directories"


def test_an_unreadable_partition_stays_offline_and_the_others_open(disk):
    names = partitions("orders", 2)
    for name in names:
        append(disk.log(name), batch(b"x"))
    broken = disk.log(names[0]).path
    disk.stop()

    def refuse(path):
        if path == str(broken):
            raise PermissionError(errno.EACCES, "Permission denied", path)

    disk.files.before("names_in", refuse)
    disk.start()
    assert disk.logs.get(names[0]) is None
    assert "Permission denied" in disk.logs.offline_reason(names[0])
    assert read_all(disk.logs.get(names[1])) == [(0, b"x")]
    with pytest.raises(Rejected) as caught:
        disk.logs.create(names[0], TopicId(bytes(16)), settings())
    assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR


def test_an_io_error_at_start_takes_the_log_directory_offline(disk):
    append(disk.log(), batch(b"x"))
    path_of_log = disk.log().path
    disk.stop()

    def refuse(path):
        if path == str(path_of_log):
            raise OSError(errno.EIO, "Input/output error")

    disk.files.before("names_in", refuse)
    disk.start()
    assert [each.offline is None for each in disk.logs.directories].count(False) == 1


def test_a_shutdown_on_a_full_disk_ends_without_the_marker(disk, caplog):
    def full(path, *arguments):
        if checkpoint.CLEAN_SHUTDOWN in path:
            raise OSError(errno.ENOSPC, "No space left on device")

    append(disk.log(), batch(b"a"))
    disk.files.before("open", full)
    disk.stop()
    disk.files.repair("open")
    assert "No space left on device" in caplog.text
    assert not any((path / checkpoint.CLEAN_SHUTDOWN).exists() for path in disk.paths)
    disk.start()
    assert read_all(disk.log()) == [(0, b"a")]


def test_a_failing_shutdown_still_unlocks_the_directories(disk, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(disk.logs, "checkpoint", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            disk.stop()
    disk.start()


# -- background jobs ---------------------------------------------------------------------


def opened(path):
    """Logs whose jobs run in the executor of the running loop."""
    logs = LogManager([path], world=World(), node_id=1, config_of=lambda topic: settings())
    logs.open_all(NOW)
    return logs


@in_loop
async def test_deleted_files_are_removed_before_a_shutdown_ends(tmp_path):
    logs = opened(tmp_path / "data")
    log = logs.create(ORDERS, ORDERS_ID, settings(file_delete_delay_ms=0))
    append(log, batch(b"a"))
    log.roll(NOW)
    logs.delete(ORDERS)
    logs.close_clean()
    assert not log.path.exists()
