"""Rebuilding the indexes of a large segment in a child process.

The child (``python -m headrace.storage.index_rebuild LOG SIZE``) walks the batches and writes
both indexes to temporary files. The log takes them over, on the loop, when a reader needs the
segment again and the segment still exists. A start removes temporary files that a crash left. A
child that is killed, or runs out of memory or disk space, is replaced after a pause.
"""

import logging
import os
import subprocess
import sys
import time
from pathlib import Path

from headrace.model.errors import Corrupt, ErrorCode, Rejected
from headrace.model.ids import Millis, Offset
from headrace.storage.background import child_environment
from headrace.storage.files import OpenFiles, write_atomically
from headrace.storage.segment import Resources, Segment
from headrace.storage.segment_indexes import IndexCache

log = logging.getLogger("headrace.storage")

_KINDS = ("index", "timeindex")
_REBUILT = ".rebuilt.tmp"
_DONE, _LOG_IS_DAMAGED = 0, 3  # not 1, which is Python's status for any exception
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 60.0


class IndexRebuilds:
    """The rebuilds of one log, by base offset."""

    def __init__(self) -> None:
        self.by_base: dict[Offset, IndexRebuild] = {}

    def rebuild(self, segment: Segment, problem: Corrupt) -> None:
        """Install the indexes that a child has rebuilt; start one if there is none.

        Raises Rejected while the child runs, and ``problem`` if new indexes do not help.
        """
        rebuild = self.by_base.get(segment.base_offset)
        if rebuild is None or rebuild.segment is not segment:
            if rebuild is not None:
                rebuild.give_up()  # compaction has replaced that segment
            log.warning("%s; a child process rebuilds the indexes of that segment", problem)
            rebuild = self.by_base[segment.base_offset] = IndexRebuild(segment)
        try:
            in_progress = rebuild.is_in_progress()
        except OSError as error:  # too many processes: not a fault of this disk
            raise Rejected(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"no process to rebuild the indexes of {segment.path('log')}: {error}",
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

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        self.child: subprocess.Popen[bytes] | None = None
        self.retry_at: float | None = None  # set after a child died, until the next one starts
        self._pause_s = _FIRST_PAUSE_S
        self._taken = False

    @property
    def is_running(self) -> bool:
        return self.child is not None and self.child.poll() is None

    def is_in_progress(self) -> bool:
        """Make sure that a child is at work; False once one has finished.

        Raises OSError if none can be started.
        """
        if self.child is not None:
            code = self.child.poll()
            if code is None:
                return True
            if code in (_DONE, _LOG_IS_DAMAGED):
                return False
            log.error(
                "The process that rebuilds the indexes of %s ended with status %d. "
                "Retrying in %d seconds at the earliest",
                self.segment.path("log"),
                code,
                self._pause_s,
            )
            self.child = None
            self.retry_at = time.monotonic() + self._pause_s
            self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
        if self.retry_at is None or time.monotonic() >= self.retry_at:
            self._start()
        return True

    def _start(self) -> None:
        segment = self.segment
        self.child = subprocess.Popen(
            [sys.executable, "-P", "-m", __name__, segment.path("log"), str(segment.size)],
            stdin=subprocess.DEVNULL,
            env=child_environment(),
        )

    def take_over(self) -> bool:
        """Install the new index files; False if that was done before or there are none."""
        if self.child is None or self.child.poll() != _DONE or self._taken:
            return False
        self._taken = True
        segment = self.segment
        for kind in _KINDS:
            path = segment.path(kind)
            os.replace(f"{path}{_REBUILT}", path)  # noqa: PTH105
        segment.indexes.reload()
        log.info("Rebuilt the indexes of %s", segment.path("log"))
        return True

    def give_up(self) -> None:
        if self.child is not None and self.child.poll() is None:
            self.child.kill()
            self.child.wait()


def main(log_path: str, size: int) -> int:
    """In the child: build both indexes from the batches."""
    path = Path(log_path)
    resources = Resources(OpenFiles(1), IndexCache())
    segment = Segment(
        str(path.parent), Offset(int(path.stem)), size, resources, created_at=Millis(0)
    )
    try:
        offsets, times = segment.indexes.read_from_log()
    except Corrupt as damage:
        sys.stderr.write(f"{damage}\n")
        return _LOG_IS_DAMAGED
    for kind, content in zip(_KINDS, (offsets.encode(), times.encode()), strict=True):
        write_atomically(f"{segment.path(kind)}{_REBUILT}", content, sync=False)
    return _DONE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
