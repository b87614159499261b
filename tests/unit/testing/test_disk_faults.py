"""A full disk refuses writes, serves reads, and recovers."""

import errno

import pytest

from headrace.testing.disk_faults import FillableFiles
from headrace.world.files import O_CREATE


@pytest.fixture
def files():
    return FillableFiles()


@pytest.fixture
def fd(files, tmp_path):
    fd = files.open(f"{tmp_path}/file", O_CREATE)
    files.pwrite(fd, b"before", 0)
    yield fd
    files.close(fd)


def test_a_full_disk_refuses_writes_and_serves_reads(files, fd, tmp_path):
    files.fill()
    for write in (
        lambda: files.pwrite(fd, b"more", 6),
        lambda: files.pwritev(fd, [b"more"], 6),
        lambda: files.preallocate(fd, 100),
        lambda: files.make_directory(tmp_path / "new"),
    ):
        with pytest.raises(OSError) as refused:
            write()
        assert refused.value.errno == errno.ENOSPC
    assert files.pread(fd, 10, 0) == b"before"


def test_a_freed_disk_makes_the_real_calls(files, fd):
    real = files.pwrite
    files.fill()
    files.free()
    assert files.pwrite is real
    files.free()
    assert files.pwritev(fd, [b"after"], 0) == 5
