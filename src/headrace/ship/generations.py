"""Which content a file holds: the identity of log files across rotations. Pure.

A *generation* is one growing content: what a program wrote to a file from its first byte until the
file was truncated or replaced. It is known by device and inode, by a digest of its first bytes,
and by digests of the bytes before the positions that were read. The last ones tell two contents
with the same beginning apart, and find a copy that continues a truncated file.

Offsets count within a generation, and its ID is never used again, so host, file, generation and
offset identify an event, also after a rename.
"""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple, Protocol

HEAD_SIZE = 1024
TAIL_SIZE = 256
_MARKS_KEPT = 16
# How long a file that looks like a copy waits for its original to be truncated.
COPY_GRACE_S = 5.0

_COMPRESSED = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ\x00", b"\x28\xb5\x2f\xfd", b"\x04\x22\x4d\x18")


class Content(Protocol):
    """An open file."""

    path: str
    device: int
    inode: int
    size: int

    @property
    def unchanged(self) -> bool:
        """Whether it is as it was when it was last compared."""

    def read(self, offset: int, length: int) -> bytes:
        """Bytes at an offset; fewer at the end of the file."""


class Digest(NamedTuple):
    """A digest of some bytes, with their number."""

    length: int
    value: str

    @classmethod
    def of(cls, data: bytes) -> "Digest":
        return cls(len(data), hashlib.blake2b(data, digest_size=12).hexdigest())


class Mark(NamedTuple):
    """A position between two events, and the bytes before it, by which it is recognized."""

    offset: int
    tail: Digest
    inside: bool = False  # within a line that was cut

    @classmethod
    def after(cls, offset: int, data: bytes, inside: bool = False) -> "Mark":
        """The position ``offset``, which follows ``data``."""
        return cls(offset, Digest.of(data[-TAIL_SIZE:]), inside)

    def is_in(self, file: Content) -> bool:
        if file.size < self.offset:
            return False
        start = self.offset - self.tail.length
        return Digest.of(file.read(start, self.tail.length)) == self.tail


START = Mark(0, Digest.of(b""))


@dataclass
class Generation:
    """One content, and how far it was read and acknowledged."""

    id: str
    file: str  # the path at which it was found first; part of every event ID
    path: str  # the present path
    device: int
    inode: int
    head: Digest
    acknowledged: Mark = START
    size: int = 0  # when it was last seen
    marks: list[Mark] = field(default_factory=lambda: [START])  # recent positions, the last: read
    gone: bool = False  # no file holds it

    @property
    def key(self) -> tuple[int, int]:
        return self.device, self.inode

    @property
    def read(self) -> Mark:
        """The position of the next event to read."""
        return self.marks[-1]

    @property
    def unread(self) -> int:
        """Bytes that were seen and not read."""
        return max(0, self.size - self.read.offset)

    def advance(self, mark: Mark) -> None:
        self.marks.append(mark)
        del self.marks[:-_MARKS_KEPT]

    def is_in(self, file: Content) -> bool:
        """Whether a file still holds this content, at least up to the position read."""
        return self.begins(file) and self.read.is_in(file)

    def is_copied_in(self, file: Content) -> bool:
        """Whether another file holds a copy; the copy may end before the position read."""
        if not _may_be_copy(self.file, file.path):
            return False
        within = [mark for mark in self.marks if mark.offset <= file.size]
        if file.size < self.head.length:
            return within[-1:] != [START] and any(mark.is_in(file) for mark in within[-1:])
        if not self.begins(file):
            return False
        return within[-1].is_in(file) if within else self.head.length == HEAD_SIZE

    def continue_in(self, file: Content) -> int:
        """Go on in a copy. Return the number of bytes that are lost.

        If the copy ends before the position read, what it holds behind the last acknowledged mark
        is read again; its events have the same IDs.
        """
        lost = max(0, self.size - max(self.read.offset, file.size))
        if file.size < self.read.offset:
            valid = min(file.size, self.acknowledged.offset)
            self.marks = [mark for mark in self.marks if mark.offset <= valid] or [START]
            self.acknowledged = self.read
        self.see(file)
        return lost

    def see(self, file: Content) -> None:
        """Remember where the content is, its size, and more of its beginning."""
        self.path, self.device, self.inode, self.size = (
            file.path,
            file.device,
            file.inode,
            file.size,
        )
        if self.head.length < min(HEAD_SIZE, file.size):
            head = Digest.of(file.read(0, HEAD_SIZE))
            self.head = max(self.head, head)  # a file that cannot be read shows nothing

    def begins(self, file: Content) -> bool:
        """Whether a file begins as this content does."""
        return Digest.of(file.read(0, self.head.length)) == self.head


class Kind(StrEnum):
    """What was found out about a file."""

    NEW = "new"
    RENAMED = "renamed"
    REPLACED = "replaced"
    COPIED = "copied"
    COMPRESSED = "compressed"
    LOST = "lost"
    UNREADABLE = "unreadable"


class Finding(NamedTuple):
    kind: Kind
    path: str
    generation: str = ""
    size: int = 0  # bytes lost
    reason: str = ""

    def __str__(self) -> str:
        generation = f"generation {self.generation}"
        return {
            Kind.NEW: f"{self.path}: reading {generation}",
            Kind.RENAMED: f"{self.path}: {generation} was renamed to this",
            Kind.REPLACED: f"{self.path}: {generation} was truncated or replaced",
            Kind.COPIED: f"{self.path}: a copy of {generation}, which continues here",
            Kind.COMPRESSED: f"{self.path}: skipped, because it is compressed",
            Kind.LOST: f"{self.path}: at least {self.size:,} bytes of {generation} were rotated "
            "away or truncated before they were read; they are lost",
            Kind.UNREADABLE: f"{self.path}: cannot read it: {self.reason}",
        }[self.kind]


Siblings = Callable[[Generation], Iterable[Content]]


class Catalog:
    """All generations whose content may still be read, by the files that hold them."""

    def __init__(self, new_id: Callable[[], str], known: Sequence[Generation] = ()) -> None:
        self._new_id = new_id
        self.generations = {generation.id: generation for generation in known}
        # Files that look like a copy of a file that is still there: their size, and since when.
        self.waiting: dict[tuple[int, int], tuple[int, float]] = {}
        self._skipped: set[tuple[int, int]] = set()

    def observe(
        self, files: Sequence[Content], siblings: Siblings, now: float, at_end: bool = False
    ) -> list[Finding]:
        """Compare the files as they are now with what is known.

        ``files`` are all present files, including open ones that were deleted. ``siblings`` finds
        files with similar names beside a generation that is missing: a rotated file need not
        match the user's pattern. ``at_end`` starts new generations at their end.
        """
        findings: list[Finding] = []
        by_key = {each.key: each for each in self.generations.values() if not each.gone}
        displaced: set[str] = set()  # generations whose inode holds other content
        holders: dict[str, Content] = {}  # by generation
        unclaimed = []
        for file in files:
            generation = by_key.get((file.device, file.inode))
            if generation is None:
                unclaimed.append(file)
            elif file.unchanged or generation.is_in(file):
                holders[generation.id] = file
                findings += _seen(generation, file)
            else:
                displaced.add(generation.id)
                findings.append(Finding(Kind.REPLACED, file.path, generation.id))
                unclaimed.append(file)
        for file in unclaimed:
            if file.size:
                findings += self._claim(file, holders, now, at_end)
        present = {(file.device, file.inode) for file in files}
        self.waiting = {key: since for key, since in self.waiting.items() if key in present}
        return findings + self._search(holders, displaced, siblings)

    def forget(self, generation: Generation) -> None:
        """Drop a generation that has nothing left to read or to acknowledge."""
        self.generations.pop(generation.id, None)

    def _claim(
        self, file: Content, holders: dict[str, Content], now: float, at_end: bool
    ) -> list[Finding]:
        """Find out what a file is whose inode holds nothing known."""
        key = (file.device, file.inode)
        if file.unchanged and key in self._skipped:
            return []
        beginning = file.read(0, 6)
        if not beginning:
            return []
        if beginning.startswith(_COMPRESSED):
            new = key not in self._skipped
            self._skipped.add(key)
            return [Finding(Kind.COMPRESSED, file.path)] if new else []
        originals = [
            each for each in self.generations.values() if not each.gone and each.is_copied_in(file)
        ]
        for original in originals:
            if original.id not in holders:
                self.waiting.pop(key, None)
                holders[original.id] = file
                return _continue(original, file)
        if (originals or self._is_growing_copy(file, holders)) and self._must_wait(file, now):
            return []
        self.waiting.pop(key, None)
        made = Generation(self._new_id(), file.path, file.path, *key, START.tail)
        made.see(file)
        if at_end:
            made.advance(_last_line_end(file))
            made.acknowledged = made.read
        self.generations[made.id] = made
        holders[made.id] = file
        return [Finding(Kind.NEW, file.path, made.id)]

    def _is_growing_copy(self, file: Content, holders: dict[str, Content]) -> bool:
        """Whether a short file is the beginning of another, as a copy that is being written."""
        if file.size >= HEAD_SIZE:
            return False
        return any(
            file.size < self.generations[name].head.length
            and _may_be_copy(self.generations[name].file, file.path)
            and file.read(0, file.size) == original.read(0, file.size)
            for name, original in holders.items()
        )

    def _must_wait(self, file: Content, now: float) -> bool:
        """Whether a copy may still be growing, or its original about to be truncated."""
        key = (file.device, file.inode)
        size, since = self.waiting.get(key, (-1, now))
        if size != file.size:
            since = now
        self.waiting[key] = file.size, since
        return now - since < COPY_GRACE_S

    def _search(
        self, holders: dict[str, Content], displaced: set[str], siblings: Siblings
    ) -> list[Finding]:
        """Look for missing generations beside their last path; report what is lost."""
        findings: list[Finding] = []
        for generation in self.generations.values():
            if generation.id in holders or generation.gone:
                continue
            for file in siblings(generation):
                same = (file.device, file.inode) == generation.key
                if same and generation.id not in displaced and generation.is_in(file):
                    findings += _seen(generation, file)
                    break
                if not same and file.size and generation.is_copied_in(file):
                    findings += _continue(generation, file)
                    break
            else:
                generation.gone = True
                findings += _lost(generation, generation.unread)
        return findings


def _seen(generation: Generation, file: Content) -> list[Finding]:
    renamed = generation.path != file.path
    generation.see(file)
    return [Finding(Kind.RENAMED, file.path, generation.id)] if renamed else []


def _continue(generation: Generation, file: Content) -> list[Finding]:
    lost = generation.continue_in(file)
    return [Finding(Kind.COPIED, file.path, generation.id), *_lost(generation, lost)]


def _lost(generation: Generation, size: int) -> list[Finding]:
    return [Finding(Kind.LOST, generation.path, generation.id, size)] if size else []


def _may_be_copy(original: str, path: str) -> bool:
    """Whether rotation may have named a copy of ``original`` so: app.log.1, app-20261117.log."""
    stem = original.rpartition("/")[2].rpartition(".")[0] or original.rpartition("/")[2]
    return path != original and path.rpartition("/")[2].startswith(stem)


def _last_line_end(file: Content) -> Mark:
    start = max(0, file.size - (1 << 16))
    data = file.read(start, file.size - start)
    end = data.rfind(b"\n") + 1
    if start and not end:
        return Mark.after(file.size, data, inside=True)  # within one very long line
    return Mark.after(start + end, data[:end])
