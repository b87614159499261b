"""Moving a partition's log from one of ``log.dirs`` to another, while it is written to.

Closed segments do not change, so a thread copies them into ``topic-N.<32 hex digits>-future``
beside the other partitions of the target. Each round closes what has come since and copies
that; when nothing came, the log is switched on the loop, between two requests:

    1. the old folder gets the name of a deleted one
    2. the copy gets the plain name

A start that finds a ``-future`` folder looks for the partition elsewhere: if it is there, the
copy was not finished and goes; if not, the crash came between 1 and 2 and the copy is the log.
"""

import asyncio
import os
from collections.abc import Callable, Iterable
from pathlib import Path

from headrace.model.errors import ErrorCode, Rejected
from headrace.model.ids import Millis, Offset
from headrace.storage import checkpoint
from headrace.storage.disk import LogDirectory
from headrace.storage.files import remove_folder, sync_folder
from headrace.storage.log import Log

FUTURE = "-future"
_KINDS = ("log", "index", "timeindex", "txnindex")
_SMALL_FILES = (checkpoint.LEADER_EPOCHS, checkpoint.PARTITION_METADATA)
_ATTEMPTS = 3


async def copy_closed(log: Log, target: LogDirectory, now: Callable[[], Millis]) -> Path:
    """Copy all of ``log`` that is closed; on return its active segment is empty.

    The caller switches at once: after the next ``await`` the log may have grown.
    """
    import shutil  # late, as in files

    future = target.path / f"{log.topic_partition}.{os.urandom(16).hex()}{FUTURE}"
    for _ in range(_ATTEMPTS):
        try:
            if await _copy_until_still(log, future, now):
                for small in _SMALL_FILES:
                    if (log.folder / small).exists():
                        shutil.copyfile(log.folder / small, future / small)
                for snapshot in log.folder.glob("*.snapshot"):
                    shutil.copyfile(snapshot, future / snapshot.name)
                return future
        except OSError as error:
            # Most often the target is full: what has been copied must not keep it so.
            await asyncio.to_thread(remove_folder, future)
            raise Rejected(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"{log.topic_partition} could not be copied to {target.path}: {error}",
            ) from error
        except Rejected:
            await asyncio.to_thread(remove_folder, future)
            raise
        await asyncio.to_thread(remove_folder, future)
    raise Rejected(
        ErrorCode.KAFKA_STORAGE_ERROR,
        f"{log.topic_partition} changed {_ATTEMPTS} times while it was copied to {target.path}; "
        "ask again",
    )


async def _copy_until_still(log: Log, future: Path, now: Callable[[], Millis]) -> bool:
    """False if what was copied has been deleted, compacted or cut meanwhile."""
    copied: dict[Offset, int] = {}
    cut_count = log.cut_count
    await asyncio.to_thread(future.mkdir, parents=True, exist_ok=True)
    while not log.closed:
        log.roll(now())
        closed = log.closed_sizes()
        if log.cut_count != cut_count or any(closed.get(b) != s for b, s in copied.items()):
            return False
        missing = [base for base in closed if base not in copied]
        if not missing:
            log.begin_flush()  # brings the small files up to date, too
            return True
        try:
            await asyncio.to_thread(_copy_segments, log.folder, future, missing)
        except FileNotFoundError:
            return False  # retention was quicker
        copied.update((base, closed[base]) for base in missing)
    raise Rejected(
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{log.topic_partition} was deleted meanwhile"
    )


def _copy_segments(source: Path, target: Path, bases: Iterable[int]) -> None:
    """Copy and fsync; for a thread."""
    import shutil

    for base in bases:
        for kind in _KINDS:
            name = f"{base:020d}.{kind}"
            if kind != "log" and not (source / name).exists():
                continue
            shutil.copyfile(source / name, target / name)
            fd = os.open(target / name, os.O_RDONLY)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
    sync_folder(str(target))
