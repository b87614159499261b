"""How a compacted segment takes the place of those it was made from, whatever crashes when.

The files go through Kafka's steps and suffixes, so that either can finish what
the other began:

    1  NNN.log.cleaned and its indexes are written and fsynced, by the child process
    2  .cleaned -> .swap           the log first
    3  the old segments -> .deleted
    4  .swap -> the plain name     the log first
    5  .deleted files are unlinked, after file.delete.delay.ms

What a start may find, and does (``settle_leftovers``):

    .cleaned    step 1 or 2 did not end: away with it, and with every .swap whose base offset is
                not below it, since that .swap may lack its other half. The old segments are whole.
    .swap       step 3 or 4 did not end: the segments that it covers go, it gets its plain name.
                A .swap of an index may stand alone, if its log was renamed last before the crash.
    .deleted    step 5 did not run: away with it.

A .swap tells where it begins and where its last batch ends, not which segments
it was made from. One of them whose records are all gone may therefore survive a
crash in step 3. That is harmless: its records were superseded by later ones,
which are still there, and the checkpoint has not moved, so it is cleaned again.
"""

import logging
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from headrace.model.errors import ErrorCode, Rejected
from headrace.model.ids import Millis, Offset, Position
from headrace.storage.files import OpenFile, sync_directory
from headrace.storage.scan import Scan
from headrace.storage.segment import Segment
from headrace.storage.segment_files import SUFFIXES

if TYPE_CHECKING:
    from headrace.storage.log import Log

log = logging.getLogger(__name__)

CLEANED, SWAP, PENDING_DELETIONS = ".cleaned", ".swap", ".deleted"
_BASE_DIGITS = 20


def replace_segments(owner: "Log", replaced: Sequence[Offset], base_offset: Offset) -> None:
    """Install the compacted segment ``base_offset`` (``.cleaned`` files) in place of others.

    ``replaced`` are the base offsets of neighbors, none of them active; ``base_offset`` is the
    first. Raises Rejected if retention or truncation removed one of them since the cleaner read
    it: its work is then void.
    """
    run = owner.segments.find_run(list(replaced))
    if run is None:
        raise Rejected(
            ErrorCode.KAFKA_STORAGE_ERROR,
            f"{owner.topic_partition}: the segments {list(replaced)} have changed meanwhile",
        )
    for segment in owner.segments.items[run]:
        segment.release()
    directory = str(owner.path)
    try:
        deleted = swap_in(directory, replaced, base_offset)
    except OSError as error:
        # Some files have their new names and others not; the next start sorts that out.
        owner.directory.take_offline(f"could not install a compacted segment: {error}")
        raise
    facts = os.stat(f"{directory}/{base_offset:020d}.log")  # noqa: PTH116
    new = Segment(
        directory,
        base_offset,
        facts.st_size,
        owner.directory.resources,
        created_at=Millis(facts.st_mtime_ns // 1_000_000),
    )
    owner.segments.replace(run, new)
    # Snapshots at bases that no longer exist would be strays at the next start.
    owner.snapshots.drop(
        [known for known in owner.snapshots.offsets if known in replaced and known != base_offset]
    )
    owner.directory.unlink_later(deleted, owner.config.file_delete_delay_ms)


def swap_in(folder: str, replaced_bases: Sequence[int], base_offset: int) -> list[str]:
    """Steps 2 to 4; returns the ``.deleted`` files, which step 5 has to unlink.

    A handful of renames: nothing here waits for a disk.
    """
    _rename_all(folder, base_offset, CLEANED, SWAP)
    deleted = []
    for base in replaced_bases:
        deleted += _rename_all(folder, base, "", PENDING_DELETIONS)
    _rename_all(folder, base_offset, SWAP, "")
    return deleted


def discard_cleaned(folder: str) -> None:
    """Take away what a cleaning that was given up has left."""
    with suppress(FileNotFoundError):
        for name in os.listdir(folder):  # noqa: PTH208
            if name.endswith(CLEANED):
                _unlink(f"{folder}/{name}")


def settle_leftovers(folder: str, names: Iterable[str] | None = None) -> bool:
    """Undo or finish what a crash interrupted; whether there was anything.

    Must run before anything else looks at the folder. ``names``, if at hand,
    saves listing it. Can itself be interrupted at any point and run again.
    """
    present = set(os.listdir(folder) if names is None else names)  # noqa: PTH208
    leftovers = {
        name
        for name in present
        if name.endswith((CLEANED, SWAP, PENDING_DELETIONS)) and name[:_BASE_DIGITS].isdigit()
    }
    if not leftovers:
        return False
    cleaned = {name for name in leftovers if name.endswith(CLEANED)}
    incomplete_from = min((_base(name) for name in cleaned), default=None)
    swaps = {name for name in leftovers if name.endswith(SWAP)}
    if incomplete_from is not None:
        # Before the .cleaned ones: those tell that these are incomplete.
        for name in [name for name in swaps if _base(name) >= incomplete_from]:
            _unlink(f"{folder}/{name}")
            swaps.remove(name)
    for name in leftovers - swaps:
        _unlink(f"{folder}/{name}")
    for name in sorted(swaps):
        if name.endswith(f".log{SWAP}"):
            _remove_covered(folder, name, present)
    for kind in SUFFIXES:
        for name in swaps:
            if name.endswith(f".{kind}{SWAP}"):
                _rename(f"{folder}/{name}", f"{folder}/{name.removesuffix(SWAP)}")
    if swaps:
        log.info("%s: finished a compaction that a crash had interrupted", folder)
    sync_directory(folder)
    return True


def _remove_covered(folder: str, swap_log: str, present: set[str]) -> None:
    base_offset = _base(swap_log)
    file = OpenFile(f"{folder}/{swap_log}", os.O_RDONLY | os.O_CLOEXEC)
    end = Position(os.fstat(file.fd).st_size)
    end_offset = base_offset + 1
    for _, header in Scan(file, Position(0), end, Offset(base_offset), check_crc=False):
        end_offset = header.next_offset
    for name in present:
        stem, _, kind = name.partition(".")
        if kind in SUFFIXES and stem.isdigit() and base_offset <= int(stem) < end_offset:
            _unlink(f"{folder}/{name}")


def _rename_all(folder: str, base_offset: int, old_suffix: str, new_suffix: str) -> list[str]:
    renamed = []
    for kind in SUFFIXES:
        stem = f"{folder}/{base_offset:020d}.{kind}"
        with suppress(FileNotFoundError):  # not every segment has a transaction index
            _rename(stem + old_suffix, stem + new_suffix)
            renamed.append(stem + new_suffix)
    return renamed


def _base(name: str) -> int:
    return int(name[:_BASE_DIGITS])


def _rename(source: str, target: str) -> None:
    os.rename(source, target)  # noqa: PTH104


def _unlink(path: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(path)  # noqa: PTH108
