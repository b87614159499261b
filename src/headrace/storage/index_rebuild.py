"""Making the indexes of a large segment anew, without holding up the loop.

A child (``python -m headrace.storage.index_rebuild LOG SIZE``) walks the batches and writes both
indexes under names of temporary files; the log takes them over, on the loop, when somebody needs
the segment again and still has it. A start removes what a crash leaves of them. A child that is
killed, or finds no memory or no room, gets a successor after a pause.
"""

import logging
import os
import subprocess
import sys
import time
from pathlib import Path

from headrace.model.errors import Corrupt
from headrace.model.ids import Millis, Offset
from headrace.storage.background import child_environment
from headrace.storage.files import OpenFiles, write_atomically
from headrace.storage.segment import IndexCache, Resources, Segment

log = logging.getLogger(__name__)

_KINDS = ("index", "timeindex")
_RENEWED = ".renewed.tmp"
_DONE, _LOG_IS_DAMAGED = 0, 3  # not 1, which is Python's word for any exception
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 60.0


class IndexRebuild:
    """A child and its outcome; the child is looked at when somebody asks, never waited for."""

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        self._child: subprocess.Popen[bytes] | None = None
        self._retry_at: float | None = None  # set while there is no child because one died
        self._pause_s = _FIRST_PAUSE_S
        self._taken = False

    @property
    def is_running(self) -> bool:
        return self._child is not None and self._child.poll() is None

    def is_under_way(self) -> bool:
        """See that a child is at it; False once one has done what can be done.

        Raises OSError if none can be started.
        """
        if self._child is not None:
            code = self._child.poll()
            if code is None:
                return True
            if code in (_DONE, _LOG_IS_DAMAGED):
                return False
            log.error(
                "the process that makes the indexes of %s anew ended with status %d; another "
                "one is started in %d seconds at the earliest",
                self.segment.path("log"),
                code,
                self._pause_s,
            )
            self._child = None
            self._retry_at = time.monotonic() + self._pause_s
            self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
        if self._retry_at is None or time.monotonic() >= self._retry_at:
            self._start()
        return True

    def _start(self) -> None:
        segment = self.segment
        self._child = subprocess.Popen(
            [sys.executable, "-P", "-m", __name__, segment.path("log"), str(segment.size)],
            stdin=subprocess.DEVNULL,
            env=child_environment(),
        )

    def take_over(self) -> bool:
        """Put the new indexes in their place; False if there is nothing new in them."""
        if self._child is None or self._child.poll() != _DONE or self._taken:
            return False
        self._taken = True
        segment = self.segment
        for kind in _KINDS:
            path = segment.path(kind)
            os.replace(f"{path}{_RENEWED}", path)  # noqa: PTH105
        segment.forget_indexes()
        log.info("the indexes of %s are renewed", segment.path("log"))
        return True

    def give_up(self) -> None:
        if self._child is not None and self._child.poll() is None:
            self._child.kill()
            self._child.wait()


def main(log_path: str, size: int) -> int:
    """In the child: both indexes, from the batches."""
    path = Path(log_path)
    resources = Resources(OpenFiles(1), IndexCache())
    segment = Segment(
        str(path.parent), Offset(int(path.stem)), size, resources, created_at=Millis(0)
    )
    try:
        index, time_index = segment.read_indexes_from_log()
    except Corrupt as damage:
        sys.stderr.write(f"{damage}\n")
        return _LOG_IS_DAMAGED
    for kind, content in zip(_KINDS, (index.encode(), time_index.encode()), strict=True):
        write_atomically(f"{segment.path(kind)}{_RENEWED}", content, sync=False)
    return _DONE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
