"""The simulated disk counts the bytes of its files, whichever way they appear and vanish."""

import pytest

from headrace.world.files import O_CREATE
from tests.sim.files import SimulatedDisk, SimulatedFiles


@pytest.fixture
def disk():
    return SimulatedDisk(lambda: 0)


@pytest.fixture
def files(disk):
    files = SimulatedFiles(disk)
    files.make_directories("/data")
    return files


def write(files, path, size):
    fd = files.open(path, O_CREATE)
    files.pwrite(fd, bytes(size), 0)
    files.close(fd)


def test_a_file_that_is_replaced_by_a_rename_uses_no_space(disk, files):
    write(files, "/data/old", 100)
    write(files, "/data/new", 30)
    files.rename("/data/new", "/data/old")
    assert disk.used == 30
    files.rename("/data/old", "/data/old")
    assert disk.used == 30


def test_a_directory_that_is_removed_uses_no_space(disk, files):
    files.make_directories("/data/t-0/inner")
    write(files, "/data/t-0/log", 100)
    write(files, "/data/t-0/inner/index", 10)
    write(files, "/data/kept", 1)
    files.remove_tree("/data/t-0")
    files.remove_tree("/data/t-0")
    assert disk.used == 1


@pytest.mark.parametrize("size", [0, 40, 250])
def test_a_file_that_is_truncated_uses_its_new_size(disk, files, size):
    write(files, "/data/log", 100)
    files.truncate("/data/log", size)
    assert disk.used == size


def test_bytes_that_were_not_synced_use_no_space_after_a_power_cut(disk, files):
    write(files, "/data/kept", 5)
    files.sync_all()
    write(files, "/data/lost", 100)
    disk.lose_power()
    assert disk.used == 5


def test_a_process_killed_while_it_writes_leaves_a_part_of_that_write():
    disk = SimulatedDisk(lambda: 0)
    files = SimulatedFiles(disk)
    fd = files.open("log", O_CREATE)
    files.pwrite(fd, b"whole", 0)
    files.die_writing(0.5, files.kill)
    with pytest.raises(OSError, match="the process was killed"):
        files.pwrite(fd, b"0123456789", 5)
    with pytest.raises(OSError):
        files.open("log", O_CREATE)
    again = SimulatedFiles(disk)
    assert again.pread(again.open("log", O_CREATE), 100, 0) == b"whole01234"
