"""Rebuilding the indexes of a large segment in a child process (``world.jobs``).

The child (``handle``) walks the batches and writes both indexes to temporary files. The log takes
them over, on the loop, when a reader needs the segment again and the segment still exists. A start
removes temporary files that a crash left. A child that is killed, or runs out of memory or disk
space, is replaced after a pause.
"""

import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.model.errors import Corrupt, ErrorCode, Rejected
from headrace.model.ids import Millis, Offset
from headrace.storage.files import OpenFiles, write_atomically
from headrace.storage.segment import Resources, Segment
from headrace.storage.segment_indexes import IndexCache

if TYPE_CHECKING:  # the child needs none of them, and starts faster
    from headrace.world.job_host import Host
    from headrace.world.jobs import PolledJob
    from headrace.world.world import World

_log = logging.getLogger("headrace.storage")

_KINDS = ("index", "timeindex")
_REBUILT = ".rebuilt.tmp"
_DONE = b""  # any other response describes the damage of the log
_FIRST_PAUSE_MS, _LONGEST_PAUSE_MS = 1_000, 60_000


class IndexRebuilds:
    """The rebuilds of one log, by base offset."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self.by_base: dict[Offset, IndexRebuild] = {}

    def rebuild(self, segment: Segment, problem: Corrupt) -> None:
        """Install the indexes that a child has rebuilt; start one if there is none.

        Raises Rejected while the child runs, and ``problem`` if new indexes do not help.
        """
        rebuild = self.by_base.get(segment.base_offset)
        if rebuild is None or rebuild.segment is not segment:
            if rebuild is not None:
                rebuild.give_up()  # compaction has replaced that segment
            _log.warning("%s; a child process rebuilds the indexes of that segment", problem)
            rebuild = self.by_base[segment.base_offset] = IndexRebuild(segment, self._world)
        try:
            in_progress = rebuild.is_in_progress()
        except OSError as error:  # too many processes: not a fault of this disk
            raise Rejected(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"cannot start a process to rebuild the indexes of {segment.path('log')}: {error}",
            ) from error
        if in_progress:
            raise Rejected(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"the indexes of {segment.path('log')} are being rebuilt; retry",
            )
        if not rebuild.take_over():
            raise problem

    @property
    def is_running(self) -> bool:
        return any(rebuild.is_running for rebuild in self.by_base.values())

    def give_up(self) -> None:
        for rebuild in self.by_base.values():
            rebuild.give_up()
        self.by_base.clear()


class IndexRebuild:
    """A child and its outcome; the child is polled when a reader asks, never waited for."""

    def __init__(self, segment: Segment, world: "World") -> None:
        self.segment = segment
        self.child: PolledJob | None = None
        self._world = world
        self._outcome: bytes | None = None  # the response of the child
        self._died_at: Millis | None = None  # until the next child starts
        self._pause_ms = _FIRST_PAUSE_MS
        self._taken = False

    @property
    def is_running(self) -> bool:
        if self.child is not None:
            self._poll(self.child)
        return self.child is not None

    def is_in_progress(self) -> bool:
        """Make sure that a child is at work; False once one has finished.

        Raises OSError if none can be started.
        """
        if self.is_running:
            return True
        if self._outcome is not None:
            return False
        if not self._pauses():
            self._start()
        return True

    def _poll(self, child: "PolledJob") -> None:
        try:
            self._outcome = child.poll()
        except EOFError as death:
            _log.error(
                "The process that rebuilds the indexes of %s died: %s. "
                "Retrying in %d seconds at the earliest",
                self.segment.path("log"),
                death,
                self._pause_ms // 1000,
            )
            self.child = None
            self._died_at = self._world.now()
        else:
            if self._outcome is not None:
                self.child = None
            if self._outcome:
                _log.error("The indexes cannot be rebuilt: %s", self._outcome.decode())

    def _pauses(self) -> bool:
        if self._died_at is None:
            return False
        if 0 <= self._world.now() - self._died_at < self._pause_ms:  # the clock may be set back
            return True
        self._died_at = None
        self._pause_ms = min(2 * self._pause_ms, _LONGEST_PAUSE_MS)
        return False

    def _start(self) -> None:
        request = json.dumps([self.segment.path("log"), self.segment.size])
        self.child = self._world.jobs.request(__name__, request.encode())

    def take_over(self) -> bool:
        """Install the new index files; False if that was done before or there are none."""
        if self._outcome != _DONE or self._taken:
            return False
        self._taken = True
        segment = self.segment
        for kind in _KINDS:
            path = segment.path(kind)
            self._world.files.rename(f"{path}{_REBUILT}", path)
        segment.indexes.reload()
        _log.info("Rebuilt the indexes of %s", segment.path("log"))
        return True

    def give_up(self) -> None:
        if self.child is not None:
            self.child.kill()
            self.child = None


def handle(request: bytes, host: "Host") -> None:
    """In the child: build both indexes from the batches."""
    log_path, size = json.loads(request)
    path = Path(log_path)
    resources = Resources(host.files, OpenFiles(1), IndexCache())
    segment = Segment(
        str(path.parent), Offset(int(path.stem)), size, resources, created_at=Millis(0)
    )
    try:
        offsets, times = segment.indexes.read_from_log()
    except Corrupt as damage:
        host.respond(str(damage).encode())
        return
    for kind, content in zip(_KINDS, (offsets.encode(), times.encode()), strict=True):
        write_atomically(host.files, f"{segment.path(kind)}{_REBUILT}", content, sync=False)
    host.respond(_DONE)
