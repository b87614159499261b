"""Log files on disk: what the user's patterns match, and files that are held open."""

import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from headrace.ship.generations import Generation

Key = tuple[int, int]  # device and inode


class LogFile:
    """One file, by its inode. It is opened when it is first read, and stays open."""

    def __init__(self, path: str, status: os.stat_result) -> None:
        self.path = path
        self.device = status.st_dev
        self.inode = status.st_ino
        self.size = status.st_size
        self._changed_ns = status.st_mtime_ns
        self._links = status.st_nlink
        self._compared: tuple[int, int] | None = None
        self._descriptor: int | None = None
        self.trouble: str | None = None  # why it cannot be opened

    @property
    def key(self) -> Key:
        return self.device, self.inode

    @property
    def unchanged(self) -> bool:
        return self._compared == (self.size, self._changed_ns)

    @property
    def is_open(self) -> bool:
        return self._descriptor is not None

    @property
    def deleted(self) -> bool:
        return self._links == 0

    def compared(self, matches: bool = True) -> None:
        """The content was compared with what is known about it."""
        self._compared = (self.size, self._changed_ns) if matches else None

    def look(self, status: os.stat_result) -> None:
        self.size = status.st_size
        self._changed_ns = status.st_mtime_ns
        self._links = status.st_nlink

    def refresh(self) -> None:
        """Learn the present size of an open file."""
        if self._descriptor is not None:
            self.look(os.fstat(self._descriptor))

    def read(self, offset: int, length: int) -> bytes:
        """Bytes at an offset; none if the path now names another file."""
        if not self.open():
            return b""
        assert self._descriptor is not None
        return os.pread(self._descriptor, length, offset)

    def open(self) -> bool:
        """Open the file, unless it is open. Return False if that fails."""
        if self._descriptor is not None:
            return True
        try:
            # Not blocking: a FIFO may have taken the name.
            descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as failure:
            self.trouble = failure.strerror
            return False
        status = os.fstat(descriptor)
        if (status.st_dev, status.st_ino) != self.key:
            os.close(descriptor)
            return False
        self.trouble = None
        self.look(status)
        self._descriptor = descriptor
        return True

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


class LogFiles:
    """The files to ship."""

    def __init__(self, patterns: Sequence[str]) -> None:
        self._patterns = [str(Path(pattern).absolute()) for pattern in patterns]
        self.by_key: dict[Key, LogFile] = {}

    def scan(self, known: Iterable[Generation]) -> list[LogFile]:
        """All files that match or were read before, and open ones that have no name any more."""
        paths = {path for pattern in self._patterns for path in _matches(pattern)}
        paths |= {generation.path for generation in known if not generation.gone}
        found: dict[Key, LogFile] = {}
        for path in sorted(paths):
            status = _status(path)
            if status is None or (status.st_dev, status.st_ino) in found:
                continue
            key = (status.st_dev, status.st_ino)
            file = self.by_key.get(key) or LogFile(path, status)
            file.path = path
            file.look(status)
            if not file.unchanged and not file.open() and file.trouble is not None:
                file.compared()  # it cannot be; a known file keeps its positions
            found[key] = file
        for key, file in self.by_key.items():
            if key not in found and file.is_open:
                file.refresh()
                file.path = _new_path(file) or file.path
                found[key] = file
        self.by_key = found
        return list(found.values())

    def siblings(self, generation: Generation) -> Iterator[LogFile]:
        """Files beside a generation's last path whose names begin like its first one."""
        stem = Path(generation.file).stem
        for path in _listed(Path(generation.path).parent, stem):
            status = _status(path)
            if status is None or (status.st_dev, status.st_ino) in self.by_key:
                continue
            file = LogFile(path, status)
            yield file
            # The generator continues only if this is not the file that was searched for.
            file.close()

    def adopt(self, file: LogFile) -> None:
        """Keep a file that ``siblings`` found."""
        self.by_key.setdefault(file.key, file)

    def drop(self, file: LogFile) -> None:
        file.close()
        self.by_key.pop(file.key, None)

    def close(self) -> None:
        for file in self.by_key.values():
            file.close()


def _matches(pattern: str) -> list[str]:
    if Path(pattern).exists():
        return [pattern]  # also if its name has characters with a meaning in patterns
    root = Path(pattern).anchor
    return [str(path) for path in Path(root).glob(pattern.removeprefix(root))]


def _status(path: str) -> os.stat_result | None:
    try:
        status = Path(path).stat()
    except OSError:
        return None
    return status if stat.S_ISREG(status.st_mode) else None


def _listed(directory: Path, stem: str) -> list[str]:
    try:
        with os.scandir(directory) as entries:
            return sorted(entry.path for entry in entries if entry.name.startswith(stem))
    except OSError:
        return []


def _new_path(file: LogFile) -> str | None:
    """Where an open file was renamed to within its directory."""
    if file.deleted:
        return None
    try:
        with os.scandir(Path(file.path).parent) as entries:
            return next((entry.path for entry in entries if entry.inode() == file.inode), None)
    except OSError:
        return None
