"""The state of a shipper on disk: positions that were acknowledged, and totals."""

import fcntl
import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from headrace.ship.generations import Digest, Generation, Mark

_FILE = "positions.json"
_LOCK = "lock"
_VERSION = 1


class StateUnusable(Exception):
    """The state directory cannot be used; the message says why and what to do."""


@dataclass
class Totals:
    """What was shipped since the state directory was created."""

    events: int = 0
    bytes: int = 0
    lost_bytes: int = 0  # rotated away or truncated unread
    cut: int = 0  # events above the size limit
    unparsed: int = 0  # events that do not have the format


@dataclass
class Saved:
    """The content of the state file."""

    generations: list[Generation] = field(default_factory=list)
    totals: Totals = field(default_factory=Totals)


class StateDirectory:
    """A directory that belongs to one running shipper."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._lock: int | None = None
        self._saved = b""

    def lock(self) -> None:
        """Take the directory, or raise StateUnusable."""
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self._directory / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as failure:
            raise StateUnusable(f"cannot use {self._directory}: {failure.strerror}") from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            owner = os.pread(descriptor, 20, 0).decode() or "unknown"
            os.close(descriptor)
            raise StateUnusable(
                f"another shipper (pid {owner}) uses {self._directory}. Stop it, or choose another "
                "directory with --state"
            ) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        self._lock = descriptor

    def owner(self) -> int | None:
        """The process ID of the shipper that uses the directory."""
        try:
            descriptor = os.open(self._directory / _LOCK, os.O_RDWR)
        except OSError:
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            text = os.pread(descriptor, 20, 0)
            return int(text) if text.isdigit() else None
        else:
            return None
        finally:
            os.close(descriptor)

    def load(self) -> Saved:
        """What was saved last; empty at first."""
        path = self._directory / _FILE
        try:
            document = json.loads(path.read_bytes())
            return Saved(
                [_generation(entry) for entry in document["generations"]],
                Totals(**document["totals"]),
            )
        except FileNotFoundError:
            return Saved()
        except OSError as failure:
            raise StateUnusable(f"cannot read {path}: {failure.strerror}") from None
        except (ValueError, KeyError, TypeError) as failure:
            raise StateUnusable(
                f"cannot parse {path}: {failure}. Restore the file, or delete it to ship all files "
                "from their beginning"
            ) from None

    def save(self, generations: Iterable[Generation], totals: Totals) -> None:
        """Replace the file atomically; it is on disk when this returns."""
        self.write(encoded(generations, totals))

    def write(self, encoded: bytes) -> None:
        """As ``save``, with what ``encoded`` made earlier."""
        if encoded == self._saved:
            return
        path = self._directory / _FILE
        temporary = path.with_suffix(".tmp")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(encoded)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        directory = os.open(self._directory, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
        self._saved = encoded

    def unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def encoded(generations: Iterable[Generation], totals: Totals) -> bytes:
    """The content of the state file."""
    document = {
        "version": _VERSION,
        "totals": asdict(totals),
        "generations": [_entry(generation) for generation in generations],
    }
    return json.dumps(document, indent=1).encode()


# Whether a generation is gone is found out again: its events in flight may have been lost.
_PLAIN = [
    each.name
    for each in fields(Generation)
    if each.name not in ("head", "acknowledged", "marks", "gone")
]


def _entry(generation: Generation) -> dict[str, Any]:
    """A generation as JSON: only marks that were acknowledged are worth returning to."""
    acknowledged = generation.acknowledged
    marks = [mark for mark in generation.marks if mark.offset < acknowledged.offset]
    return {
        **{name: getattr(generation, name) for name in _PLAIN},
        "head": list(generation.head),
        "marks": [[mark.offset, *mark.tail, mark.inside] for mark in (*marks, acknowledged)],
    }


def _generation(entry: dict[str, Any]) -> Generation:
    marks = [
        Mark(offset, Digest(length, value), inside)
        for offset, length, value, inside in entry["marks"]
    ]
    return Generation(
        **{name: entry[name] for name in _PLAIN},
        head=Digest(*entry["head"]),
        marks=marks,
        acknowledged=marks[-1],
    )
