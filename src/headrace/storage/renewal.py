"""Making the indexes of a large closed segment anew, without holding up the loop.

A child (``python -m headrace.storage.renewal LOG SIZE``) walks the batches and writes both
indexes under names of temporary files; the log takes them over, on the loop, when somebody needs
the segment again and still has it. A start removes what a crash leaves of them.
"""

import logging
import os
import subprocess
import sys
from pathlib import Path

from headrace.model.errors import Corrupt
from headrace.model.ids import Millis, Offset
from headrace.storage.background import child_environment
from headrace.storage.files import OpenFiles, write_atomically
from headrace.storage.segment import IndexCache, Resources, Segment

log = logging.getLogger(__name__)

_KINDS = ("index", "timeindex")
_RENEWED = ".renewed.tmp"


class Renewal:
    """One child and its outcome; the child is looked at when somebody asks, never waited for."""

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        self._child = subprocess.Popen(
            [sys.executable, "-P", "-m", __name__, segment.path("log"), str(segment.size)],
            stdin=subprocess.DEVNULL,
            env=child_environment(),
        )
        self._taken = False

    @property
    def is_running(self) -> bool:
        return self._child.poll() is None

    def take_over(self) -> bool:
        """Put the new indexes in their place; False if there is nothing new in them."""
        if self._child.poll() != 0 or self._taken:
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
        if self.is_running:
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
        return 1
    for kind, content in zip(_KINDS, (index.encode(), time_index.encode()), strict=True):
        write_atomically(f"{segment.path(kind)}{_RENEWED}", content, sync=False)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
