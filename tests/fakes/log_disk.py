"""Log files in memory that are rotated by hand, and a shipper that reads them in steps."""

import copy
import itertools
from dataclasses import dataclass

from headrace.ship.generations import Catalog, Finding, Generation, Kind, Mark

DEVICE = 7


@dataclass
class FileOnDisk:
    """What ``generations.Content`` asks of a file."""

    path: str
    inode: int
    data: bytearray
    device: int = DEVICE
    unchanged: bool = False

    @property
    def size(self):
        return len(self.data)

    @size.setter
    def size(self, value):
        raise AssertionError("the size of a file is what it holds")

    def read(self, offset, length):
        return bytes(self.data[offset : offset + length])


class LogDisk:
    """Names and inodes; a freed inode is used again at once, as ext4 does."""

    def __init__(self):
        self.inodes: dict[int, bytearray] = {}
        self.names: dict[str, int] = {}

    def append(self, path, data):
        if path not in self.names:
            self.names[path] = next(n for n in itertools.count(1) if n not in self.inodes)
            self.inodes[self.names[path]] = bytearray()
        self.inodes[self.names[path]] += data

    def rename(self, path, to):
        self.delete(to)
        self.names[to] = self.names.pop(path)

    def copy(self, path, to):
        self.delete(to)
        self.append(to, self.inodes[self.names[path]])

    def truncate(self, path, size=0):
        del self.inodes[self.names[path]][size:]

    def delete(self, path):
        inode = self.names.pop(path, None)
        if inode is not None:
            del self.inodes[inode]

    def files(self, prefix=""):
        return [
            FileOnDisk(path, inode, self.inodes[inode])
            for path, inode in sorted(self.names.items())
            if path.startswith(prefix)
        ]


class HandShipper:
    """Ships lines in steps: scan, read, acknowledge, crash."""

    def __init__(self, disk, pattern="/log/app.log", siblings=True):
        self.disk = disk
        self.events: dict[tuple[str, str, int], bytes] = {}  # what the topic holds, by event ID
        self.findings: list[Finding] = []
        self.now = 0.0
        self._pattern = pattern
        self._siblings = siblings
        self._numbers = itertools.count(1)
        self._saved: list[Generation] = []
        self.catalog = Catalog(self._new_id)

    def _new_id(self):
        return f"g{next(self._numbers)}"

    def scan(self, **options):
        found = self.catalog.observe(
            self.disk.files(self._pattern),
            lambda _: self.disk.files("/log/") if self._siblings else [],
            self.now,
            **options,
        )
        self.findings += found
        for generation in list(self.catalog.generations.values()):
            if generation.gone:
                self.catalog.forget(generation)
        self.save()
        return [finding.kind for finding in found]

    def read(self, acknowledge=True):
        """Send the complete lines of all files."""
        by_key = {(file.device, file.inode): file for file in self.disk.files()}
        for generation in self.catalog.generations.values():
            file = by_key.get(generation.key)
            if file is None or not generation.is_in(file):
                continue  # the next scan finds out what became of it
            generation.see(file)
            offset = generation.read.offset
            data = file.read(offset, file.size)
            lines = data[: data.rfind(b"\n") + 1].splitlines(keepends=True)
            for line in lines:
                self.events[generation.file, generation.id, offset] = line
                offset += len(line)
            if lines:
                generation.advance(Mark.after(offset, b"".join(lines)))
            if acknowledge:
                generation.acknowledged = generation.read

    def save(self):
        self._saved = copy.deepcopy(list(self.catalog.generations.values()))

    def crash(self):
        """Lose everything but the saved positions."""
        restored = copy.deepcopy(self._saved)
        for generation in restored:
            valid = [m for m in generation.marks if m.offset < generation.acknowledged.offset]
            generation.marks = [*valid, generation.acknowledged]
        self.catalog = Catalog(self._new_id, restored)

    def settle(self):
        """Ship all that can be shipped."""
        for _ in range(4):
            self.now += 10
            self.scan()
            self.read()

    @property
    def lost(self):
        return sum(found.size for found in self.findings if found.kind is Kind.LOST)
