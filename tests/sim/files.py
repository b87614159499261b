"""Simulated disks: what was written and what is durable are kept apart.

A ``SimulatedDisk`` outlives processes. ``SimulatedFiles`` is one process's view of it, with the
methods of ``headrace.world.files.SystemFiles``. A process that is killed (``kill``) leaves what the
kernel was given; a power cut (``SimulatedDisk.lose_power``) leaves what was synced: file contents
by ``fsync``, names by ``sync_directory``.
"""

import errno
import os
from collections.abc import Callable, Sequence
from typing import Any

from headrace.world.files import O_CREATE, FileStat


class _File:
    def __init__(self, now_ns: int) -> None:
        self.data = bytearray()
        self.durable = bytearray()
        self.modified_at_ns = now_ns
        self.locked_by: SimulatedFiles | None = None
        self._unsynced: list[tuple[int, int]] = []  # ranges written since the last fsync

    def write(self, piece: Any, position: int) -> int:
        end = position + len(piece)
        if len(self.data) < end:
            self.data.extend(bytes(end - len(self.data)))
        self.data[position:end] = piece
        self._unsynced.append((position, end))
        return len(piece)

    def truncate(self, size: int) -> None:
        if size < len(self.data):
            del self.data[size:]
        else:
            self.data.extend(bytes(size - len(self.data)))
            self._unsynced.append((0, 0))

    def sync(self) -> None:
        size = len(self.data)
        if len(self.durable) < size:
            self.durable.extend(bytes(size - len(self.durable)))
        del self.durable[size:]
        for start, end in self._unsynced:
            self.durable[start:end] = self.data[start:end]
        del self.durable[size:]
        self._unsynced.clear()

    def lose_power(self) -> None:
        self.data = bytearray(self.durable)
        self._unsynced.clear()
        self.locked_by = None


class _Directory:
    def __init__(self) -> None:
        self.entries: dict[str, _File | _Directory] = {}
        self.durable: dict[str, _File | _Directory] = {}

    def lose_power(self) -> None:
        self.entries = dict(self.durable)
        for entry in self.entries.values():
            entry.lose_power()


_CAPACITY = 1 << 40


class SimulatedDisk:
    def __init__(self, now_ns: Callable[[], int], capacity: int = _CAPACITY) -> None:
        self.now_ns = now_ns
        self.capacity = capacity
        self.used = 0
        self.failing: int | None = None  # the errno of every write, if the disk is broken
        self.root = _Directory()
        self.boot_count = 1  # of the machine

    def fill(self) -> None:
        """No file can grow from now on."""
        self.capacity = 0

    def empty(self) -> None:
        self.capacity = _CAPACITY

    def lose_power(self) -> None:
        self.boot_count += 1
        self.root.lose_power()
        self.used = _size_of(self.root)

    def write_back(self, path: str) -> None:
        """The kernel writes a file on its own: a power cut leaves it there.

        Names are journaled, and become durable in the order of their changes.
        """
        node = self.find(path)
        assert isinstance(node, _File)
        node.sync()
        parts = _parts(path)
        for count in range(len(parts), 0, -1):
            directory, _ = self.parent("/".join(parts[:count]))
            directory.durable = dict(directory.entries)

    def find(self, path: str) -> "_File | _Directory":
        node: _File | _Directory = self.root
        for name in _parts(path):
            if not isinstance(node, _Directory):
                raise NotADirectoryError(errno.ENOTDIR, "Not a directory", path)
            if name not in node.entries:
                raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
            node = node.entries[name]
        return node

    def parent(self, path: str) -> tuple[_Directory, str]:
        parts = _parts(path)
        node = self.find("/".join(parts[:-1]))
        if not isinstance(node, _Directory):
            raise NotADirectoryError(errno.ENOTDIR, "Not a directory", path)
        return node, parts[-1]


def _size_of(node: _File | _Directory) -> int:
    if isinstance(node, _File):
        return len(node.data)
    return sum(map(_size_of, node.entries.values()))


def _parts(path: str) -> list[str]:
    return [part for part in str(path).split("/") if part]


class _NoDisk:
    """The disk as a killed process sees it."""

    def __getattr__(self, name: str) -> Any:
        raise OSError(errno.EIO, "the process was killed")


class SimulatedFiles:
    """One process's view of a disk; see ``SystemFiles`` for what the methods mean."""

    def __init__(self, disk: SimulatedDisk) -> None:
        self._disk: Any = disk
        self._open: dict[int, _File] = {}
        self._last_fd = 2
        self._dies_writing: tuple[float, Callable[[], None]] | None = None

    @property
    def boot_id(self) -> str:
        return f"boot {self._disk.boot_count}"

    def die_writing(self, share: float, die: Callable[[], None]) -> None:
        """The process is killed within its next write: ``share`` of it reaches the kernel."""
        self._dies_writing = (share, die)

    def spare(self) -> None:
        self._dies_writing = None

    def kill(self) -> None:
        """The process is gone: descriptors are closed, locks released, and every call fails.

        The simulation cannot always stop the rest of such a process at once.
        """
        for file in self._open.values():
            if file.locked_by is self:
                file.locked_by = None
        self._open.clear()
        self._disk = _NoDisk()

    def _file(self, fd: int) -> _File:
        if fd not in self._open:
            raise OSError(errno.EBADF, "Bad file descriptor")
        return self._open[fd]

    def _check_disk(self) -> None:
        if self._disk.failing is not None:
            raise OSError(self._disk.failing, os.strerror(self._disk.failing))

    def _grow(self, file: _File, end: int) -> None:
        growth = end - len(file.data)
        if growth > 0:
            if self._disk.used + growth > self._disk.capacity:
                raise OSError(errno.ENOSPC, "No space left on device")
            self._disk.used += growth

    def _resize(self, file: _File, size: int) -> None:
        self._grow(file, size)
        self._disk.used -= max(0, len(file.data) - size)
        file.truncate(size)

    # --- descriptors

    def open(self, path: str, flags: int, mode: int = 0o644) -> int:
        try:
            node = self._disk.find(path)
        except FileNotFoundError:
            if not flags & os.O_CREAT:
                raise
            self._check_disk()
            directory, name = self._disk.parent(path)
            node = directory.entries[name] = _File(self._disk.now_ns())
        if isinstance(node, _Directory):
            raise IsADirectoryError(errno.EISDIR, "Is a directory", path)
        if flags & os.O_TRUNC:
            self._disk.used -= len(node.data)
            node.truncate(0)
        self._last_fd += 1
        self._open[self._last_fd] = node
        return self._last_fd

    def close(self, fd: int) -> None:
        self._open.pop(fd, None)

    def pread(self, fd: int, size: int, position: int) -> bytes:
        return bytes(self._file(fd).data[position : position + size])

    def pread_into(self, fd: int, view: memoryview, position: int) -> int:
        piece = self._file(fd).data[position : position + len(view)]
        view[: len(piece)] = piece
        return len(piece)

    def read_now(self, fd: int, into: bytearray, position: int) -> bool:
        return self.pread_into(fd, memoryview(into), position) == len(into)

    def will_need(self, fd: int, position: int, size: int) -> None:
        pass

    def pwrite(self, fd: int, piece: Any, position: int) -> int:
        self._check_disk()
        file = self._file(fd)
        if self._dies_writing is not None:
            share, die = self._dies_writing
            self._dies_writing = None
            part = bytes(piece)[: int(len(piece) * share)]
            self._grow(file, position + len(part))
            file.write(part, position)
            die()
            raise OSError(errno.EIO, "the process was killed")
        self._grow(file, position + len(piece))
        file.modified_at_ns = self._disk.now_ns()
        return file.write(piece, position)

    def pwritev(self, fd: int, views: Sequence[Any], position: int) -> int:
        return self.pwrite(fd, b"".join(views), position)

    def preallocate(self, fd: int, size: int) -> None:
        self.ftruncate(fd, size)

    def ftruncate(self, fd: int, size: int) -> None:
        self._check_disk()
        self._resize(self._file(fd), size)

    def fsync(self, fd: int) -> None:
        self._check_disk()
        self._file(fd).sync()

    def size_of(self, fd: int) -> int:
        return len(self._file(fd).data)

    def descriptors_max(self) -> int:
        return 1024

    # --- locks

    def lock(self, path: str) -> int:
        fd = self.open(path, O_CREATE)
        if self._open[fd].locked_by is not None:
            self.close(fd)
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable", path)
        self._open[fd].locked_by = self
        return fd

    def unlock(self, fd: int) -> None:
        self._file(fd).locked_by = None
        self.close(fd)

    # --- paths

    def stat(self, path: str) -> FileStat:
        node = self._disk.find(path)
        if isinstance(node, _Directory):
            return FileStat(0, 0, is_directory=True)
        return FileStat(len(node.data), node.modified_at_ns, is_directory=False)

    def exists(self, path: str) -> bool:
        try:
            self._disk.find(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def names_in(self, path: str) -> list[str]:
        node = self._disk.find(path)
        if not isinstance(node, _Directory):
            raise NotADirectoryError(errno.ENOTDIR, "Not a directory", path)
        return sorted(node.entries)

    def directories_in(self, path: str) -> list[str]:
        return [name for name in self.names_in(path) if self.stat(f"{path}/{name}").is_directory]

    def make_directory(self, path: str) -> None:
        self._check_disk()
        directory, name = self._disk.parent(path)
        if name in directory.entries:
            raise FileExistsError(errno.EEXIST, "File exists", path)
        directory.entries[name] = _Directory()

    def make_directories(self, path: str) -> None:
        parts = _parts(path)
        for count in range(1, len(parts) + 1):
            prefix = "/".join(parts[:count])
            if not self.exists(prefix):
                self.make_directory(prefix)
        if not self.stat(path).is_directory:
            raise FileExistsError(errno.EEXIST, "File exists", path)

    def rename(self, old: str, new: str) -> None:
        self._check_disk()
        from_directory, old_name = self._disk.parent(old)
        to_directory, new_name = self._disk.parent(new)
        if old_name not in from_directory.entries:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", old)
        replaced = to_directory.entries.get(new_name)
        if isinstance(replaced, _Directory) and replaced.entries:
            raise OSError(errno.ENOTEMPTY, "Directory not empty", new)
        moved = from_directory.entries.pop(old_name)
        if replaced is not None and replaced is not moved:
            self._disk.used -= _size_of(replaced)
        to_directory.entries[new_name] = moved

    def unlink(self, path: str) -> None:
        self._check_disk()
        directory, name = self._disk.parent(path)
        node = directory.entries.get(name)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
        if isinstance(node, _Directory):
            raise IsADirectoryError(errno.EISDIR, "Is a directory", path)
        del directory.entries[name]
        self._disk.used -= len(node.data)

    def remove_tree(self, path: str) -> None:
        try:
            directory, name = self._disk.parent(path)
        except FileNotFoundError:
            return
        removed = directory.entries.pop(name, None)
        if removed is not None:
            self._disk.used -= _size_of(removed)

    def sync_directory(self, path: str) -> None:
        self._check_disk()
        node = self._disk.find(path)
        assert isinstance(node, _Directory)
        node.durable = dict(node.entries)

    def sync_all(self) -> None:
        def sync(node: _File | _Directory) -> None:
            if isinstance(node, _File):
                node.sync()
            else:
                node.durable = dict(node.entries)
                for entry in node.entries.values():
                    sync(entry)

        sync(self._disk.root)

    def set_modified(self, path: str, modified_at_ns: int) -> None:
        node = self._disk.find(path)
        assert isinstance(node, _File)
        node.modified_at_ns = modified_at_ns

    def truncate(self, path: str, size: int) -> None:
        node = self._disk.find(path)
        assert isinstance(node, _File)
        self._resize(node, size)

    def disk_usage(self, path: str) -> tuple[int, int]:
        return self._disk.capacity, self._disk.capacity - self._disk.used
