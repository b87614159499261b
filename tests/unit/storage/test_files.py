"""Descriptors that close automatically, and atomic replacement of files."""

import errno
import os

import pytest

from headrace.storage.files import OpenFile, OpenFiles, read_into, write_all, write_atomically
from tests.fakes.faulty_files import FaultyFiles


class Holder:
    def __init__(self, path):
        self.file = OpenFile(FaultyFiles(), str(path))
        self.touched = False


@pytest.fixture
def files():
    return FaultyFiles()


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"0123456789")
    return path


def is_open(fd):
    try:
        os.fstat(fd)
    except OSError as error:
        assert error.errno == errno.EBADF
        return False
    return True


def test_a_descriptor_closes_with_its_last_reference(files, path):
    file = OpenFile(files, str(path))
    other, fd = file, file.fd
    del file
    assert is_open(fd)
    del other
    assert not is_open(fd)


def test_a_file_that_cannot_be_opened_leaks_nothing(files, tmp_path):
    with pytest.raises(FileNotFoundError):
        OpenFile(files, str(tmp_path / "absent"))


def test_the_least_recently_used_file_is_closed_first(path):
    held = OpenFiles(limit=8)
    holders = [Holder(path) for _ in range(8)]
    for holder in holders:
        held.opened(holder)
    holders[0].touched = True
    held.opened(Holder(path))
    assert holders[0].file is not None
    assert holders[1].file is None
    assert len(held) == 8


def test_a_forgotten_file_makes_room(path):
    held = OpenFiles(limit=8)
    holder = Holder(path)
    held.opened(holder)
    held.forget(holder)
    held.forget(holder)
    assert (len(held), holder.file) == (0, None)


def test_a_short_write_is_continued(files, path):
    taken = []

    def three_bytes_at_a_time(fd, views, position):
        data = b"".join(views)[:3]
        taken.append(len(data))
        return os.pwrite(fd, data, position)

    files.pwritev = three_bytes_at_a_time
    file = OpenFile(files, str(path))
    write_all(files, file.fd, [memoryview(b"ab"), memoryview(b"cdef"), memoryview(b"gh")], 2, 8)
    assert path.read_bytes() == b"01abcdefgh"
    assert taken == [3, 3, 2]


def test_reading_fills_the_view_up_to_the_end_of_the_file(files, path):
    file = OpenFile(files, str(path))
    view = memoryview(bytearray(8))
    assert read_into(file, view, 5) == 5
    assert view[:5] == b"56789"


def test_a_short_read_is_continued(files, path):
    files.pread_into = lambda fd, view, position: os.preadv(fd, [view[:3]], position)
    view = memoryview(bytearray(8))
    assert read_into(OpenFile(files, str(path)), view, 1) == 8
    assert view == b"12345678"


def test_a_file_is_replaced_atomically(files, path):
    write_atomically(files, path, b"new")
    assert path.read_bytes() == b"new"
    assert os.listdir(path.parent) == ["file"]


def test_a_failing_write_leaves_the_old_file(files, path):
    files.fail(errno.ENOSPC, "pwrite")
    with pytest.raises(OSError):
        write_atomically(files, path, b"new")
    assert path.read_bytes() == b"0123456789"
