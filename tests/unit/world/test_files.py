"""The real and the simulated file system give the same answers to the same calls."""

import errno
from pathlib import Path

import pytest

from headrace.world.files import O_CREATE, O_RDONLY, O_TRUNCATE, SystemFiles
from tests.sim.files import SimulatedDisk, SimulatedFiles


@pytest.fixture(params=["system", "simulated"])
def place(request, tmp_path):
    """A file system and an empty directory in it."""
    if request.param == "system":
        return SystemFiles(), str(tmp_path)
    files = SimulatedFiles(SimulatedDisk(lambda: 1))
    files.make_directories("/data")
    return files, "/data"


def test_bytes_are_read_back_where_they_were_written(place):
    files, root = place
    fd = files.open(f"{root}/a", O_CREATE, 0o644)
    assert files.pwrite(fd, b"0123456789", 0) == 10
    assert files.pwritev(fd, [b"ab", memoryview(b"cd")], 8) == 4
    assert files.pread(fd, 100, 6) == b"67abcd"
    into = bytearray(4)
    assert files.pread_into(fd, memoryview(into), 10) == 2 and bytes(into) == b"cd\0\0"
    assert files.size_of(fd) == 12
    files.ftruncate(fd, 3)
    files.preallocate(fd, 5)
    assert files.pread(fd, 100, 0) == b"012\0\0"
    files.fsync(fd)
    files.close(fd)
    assert files.stat(f"{root}/a")[::2] == (5, False)


def test_names_are_listed_in_order_and_replaced_by_a_rename(place):
    files, root = place
    for name in ("b", "a", "c"):
        fd = files.open(f"{root}/{name}", O_TRUNCATE, 0o644)
        files.pwrite(fd, name.encode(), 0)
        files.close(fd)
    files.make_directory(f"{root}/d")
    assert files.names_in(root) == ["a", "b", "c", "d"]
    assert files.directories_in(root) == ["d"]
    files.rename(f"{root}/c", f"{root}/a")
    files.unlink(f"{root}/b")
    assert files.names_in(root) == ["a", "d"]
    fd = files.open(f"{root}/a", O_RDONLY)
    assert files.pread(fd, 10, 0) == b"c"
    files.close(fd)
    assert files.stat(f"{root}/d").is_directory and files.exists(f"{root}/d")
    files.remove_tree(f"{root}/d")
    files.sync_directory(root)
    assert not files.exists(f"{root}/d")


def test_an_unlinked_file_is_readable_while_it_is_open(place):
    files, root = place
    fd = files.open(f"{root}/a", O_CREATE, 0o644)
    files.pwrite(fd, b"kept", 0)
    files.unlink(f"{root}/a")
    assert files.pread(fd, 10, 0) == b"kept"
    files.close(fd)


def _file(files, root):
    files.close(files.open(f"{root}/file", O_CREATE, 0o644))
    return f"{root}/file"


def test_what_is_in_the_page_cache_is_read_now(place):
    files, root = place
    fd = files.open(f"{root}/a", O_CREATE, 0o644)
    files.pwrite(fd, b"0123", 0)
    into = bytearray(3)
    assert files.read_now(fd, into, 1) in (True, None)  # None: the file system cannot tell
    assert files.read_now(fd, bytearray(3), 2) in (False, None), "the file is shorter"
    files.close(fd)


def test_a_path_may_be_a_path_object(place):
    files, root = place
    path = Path(root) / "a"
    files.close(files.open(path, O_CREATE, 0o644))
    files.rename(path, path.with_name("b"))
    files.make_directories(path / "below")
    assert files.directories_in(Path(root)) == ["a"] and files.exists(path.with_name("b"))
    files.set_modified(path.with_name("b"), 1_000_000_000)
    assert files.stat(path.with_name("b")) == (0, 1_000_000_000, False)


def test_a_lock_is_held_by_one_caller_at_a_time(place):
    files, root = place
    fd = files.lock(f"{root}/.lock")
    for _ in range(2):
        with pytest.raises(BlockingIOError):
            files.lock(f"{root}/.lock")
    files.unlock(fd)
    files.unlock(files.lock(f"{root}/.lock"))


@pytest.mark.parametrize(
    ("call", "code"),
    [
        (lambda files, root: files.open(f"{root}/none", O_RDONLY), errno.ENOENT),
        (lambda files, root: files.stat(f"{root}/none"), errno.ENOENT),
        (lambda files, root: files.unlink(f"{root}/none"), errno.ENOENT),
        (lambda files, root: files.rename(f"{root}/none", f"{root}/b"), errno.ENOENT),
        (lambda files, root: files.names_in(f"{root}/none"), errno.ENOENT),
        (lambda files, root: files.make_directory(root), errno.EEXIST),
        (lambda files, root: files.open(root, O_CREATE), errno.EISDIR),
        (lambda files, root: files.truncate(f"{root}/none", 0), errno.ENOENT),
        (lambda files, root: files.make_directory(f"{root}/none/below"), errno.ENOENT),
        (lambda files, root: files.make_directories(f"{_file(files, root)}/a"), errno.ENOTDIR),
        (lambda files, root: files.make_directories(_file(files, root)), errno.EEXIST),
        (lambda files, root: files.names_in(_file(files, root)), errno.ENOTDIR),
        (lambda files, root: files.pread(12345, 1, 0), errno.EBADF),
    ],
)
def test_what_cannot_be_done_is_refused_with_the_same_errno(place, call, code):
    files, root = place
    with pytest.raises(OSError) as refused:
        call(files, root)
    assert refused.value.errno == code


def test_a_killed_process_leaves_what_the_kernel_was_given_and_a_power_cut_what_was_synced():
    disk = SimulatedDisk(lambda: 1)
    files = SimulatedFiles(disk)
    files.make_directories("/data")
    files.sync_directory("/")
    fd = files.open("/data/log", O_CREATE)
    files.pwrite(fd, b"synced", 0)
    files.fsync(fd)
    files.sync_directory("/data")
    files.pwrite(fd, b"not", 6)
    files.close(files.open("/data/new", O_CREATE))
    files.kill()
    with pytest.raises(OSError, match="killed"):
        files.unlink("/data/log")
    after_kill = SimulatedFiles(disk)
    assert after_kill.names_in("/data") == ["log", "new"]
    assert after_kill.stat("/data/log").size == 9
    disk.lose_power()
    after_power_cut = SimulatedFiles(disk)
    assert after_power_cut.names_in("/data") == ["log"]
    assert after_power_cut.stat("/data/log").size == 6


def test_a_lock_goes_with_its_process():
    disk = SimulatedDisk(lambda: 1)
    first, second = SimulatedFiles(disk), SimulatedFiles(disk)
    first.lock("/lock")
    with pytest.raises(BlockingIOError):
        second.lock("/lock")
    first.kill()
    second.lock("/lock")


def test_a_full_disk_and_a_broken_one_refuse_writes():
    disk = SimulatedDisk(lambda: 1, capacity=5)
    files = SimulatedFiles(disk)
    fd = files.open("/a", O_CREATE)
    with pytest.raises(OSError) as full:
        files.pwrite(fd, b"123456", 0)
    assert full.value.errno == errno.ENOSPC
    disk.failing = errno.EIO
    with pytest.raises(OSError) as broken:
        files.fsync(fd)
    assert broken.value.errno == errno.EIO
