"""Replacing segments by their compacted successor, safe against a crash at any point.

The steps and suffixes are Kafka's, so that either broker can finish what the other began:

    1  NNN.log.cleaned and its indexes are written and fsynced, by the child process
    2  .cleaned -> .swap           the log first
    3  the old segments -> .deleted
    4  .swap -> the plain name     the log first
    5  .deleted files are unlinked, after file.delete.delay.ms

What a start may find, and what it does (``settle_leftovers``):

    .cleaned    step 1 or 2 was interrupted: delete it, and every .swap whose base offset is not
                below it, since that .swap may be incomplete. The old segments are complete.
    .swap       step 3 or 4 was interrupted: delete the segments that it covers, and give it its
                plain name. An index may be left alone as .swap if its log was already renamed.
    .deleted    step 5 did not run: delete it.

A .swap file shows where it begins and where its last batch ends, not which segments it replaces. A
replaced segment whose records are all gone may therefore survive a crash in step 3. That is
harmless: later records supersede its records, and the checkpoint has not moved, so it is cleaned
again.
"""

import logging
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from headrace.model.errors import ErrorCode, Rejected
from headrace.model.ids import Millis, Offset, Position
from headrace.storage.files import OpenFile, unlink_if_exists
from headrace.storage.scan import Scan
from headrace.storage.segment import Segment
from headrace.storage.segment_files import SUFFIXES
from headrace.world.files import O_RDONLY, SystemFiles

if TYPE_CHECKING:
    from headrace.storage.log import Log

_log = logging.getLogger("headrace.compaction")

CLEANED, SWAP, DELETED = ".cleaned", ".swap", ".deleted"
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
    directory, files = str(owner.path), owner.directory.files
    try:
        deleted = swap_in(files, directory, replaced, base_offset)
    except OSError as error:
        # Some files have their new names and others not; the next start sorts that out.
        owner.directory.take_offline(f"could not install a compacted segment: {error}")
        raise
    found = files.stat(f"{directory}/{base_offset:020d}.log")
    new = Segment(
        directory,
        base_offset,
        found.size,
        owner.directory.resources,
        created_at=Millis(found.modified_at_ns // 1_000_000),
    )
    owner.segments.replace(run, new)
    # Snapshots at bases that no longer exist would be strays at the next start.
    owner.snapshots.drop(
        [known for known in owner.snapshots.offsets if known in replaced and known != base_offset]
    )
    owner.directory.unlink_later(deleted, owner.config.file_delete_delay_ms)


def swap_in(
    files: SystemFiles, directory: str, replaced_bases: Sequence[int], base_offset: int
) -> list[str]:
    """Steps 2 to 4; returns the ``.deleted`` files, for step 5 to unlink.

    These are a few renames: nothing here waits for a disk.
    """
    _rename_all(files, directory, base_offset, CLEANED, SWAP)
    deleted = []
    for base in replaced_bases:
        deleted += _rename_all(files, directory, base, "", DELETED)
    _rename_all(files, directory, base_offset, SWAP, "")
    return deleted


def discard_cleaned(files: SystemFiles, directory: str) -> None:
    """Delete the output of a cleaning that was given up."""
    with suppress(FileNotFoundError):
        for name in files.names_in(directory):
            if name.endswith(CLEANED):
                unlink_if_exists(files, f"{directory}/{name}")


def settle_leftovers(files: SystemFiles, directory: str) -> bool:
    """Undo or finish what a crash interrupted; returns whether there was anything.

    Must run before anything else reads the directory. It can be interrupted at any point and run
    again.
    """
    present = set(files.names_in(directory))
    leftovers = {
        name
        for name in present
        if name.endswith((CLEANED, SWAP, DELETED)) and name[:_BASE_DIGITS].isdigit()
    }
    if not leftovers:
        return False
    cleaned = {name for name in leftovers if name.endswith(CLEANED)}
    incomplete_from = min((_base(name) for name in cleaned), default=None)
    swaps = {name for name in leftovers if name.endswith(SWAP)}
    if incomplete_from is not None:
        # Before the .cleaned files, which show that these are incomplete.
        for name in [name for name in sorted(swaps) if _base(name) >= incomplete_from]:
            unlink_if_exists(files, f"{directory}/{name}")
            swaps.remove(name)
    for name in sorted(leftovers - swaps):
        unlink_if_exists(files, f"{directory}/{name}")
    for name in sorted(swaps):
        if name.endswith(f".log{SWAP}"):
            _remove_covered(files, directory, name, present)
    for kind in SUFFIXES:
        for name in sorted(swaps):
            if name.endswith(f".{kind}{SWAP}"):
                files.rename(f"{directory}/{name}", f"{directory}/{name.removesuffix(SWAP)}")
    if swaps:
        _log.info("%s: finished a compaction that a crash had interrupted", directory)
    files.sync_directory(directory)
    return True


def _remove_covered(files: SystemFiles, directory: str, swap_log: str, present: set[str]) -> None:
    base_offset = _base(swap_log)
    file = OpenFile(files, f"{directory}/{swap_log}", O_RDONLY)
    end = Position(files.size_of(file.fd))
    end_offset = base_offset + 1
    for _, header in Scan(file, Position(0), end, Offset(base_offset), check_crc=False):
        end_offset = header.next_offset
    for name in sorted(present):
        stem, _, kind = name.partition(".")
        if kind in SUFFIXES and stem.isdigit() and base_offset <= int(stem) < end_offset:
            unlink_if_exists(files, f"{directory}/{name}")


def _rename_all(
    files: SystemFiles, directory: str, base_offset: int, old_suffix: str, new_suffix: str
) -> list[str]:
    renamed = []
    for kind in SUFFIXES:
        stem = f"{directory}/{base_offset:020d}.{kind}"
        with suppress(FileNotFoundError):  # not every segment has a transaction index
            files.rename(stem + old_suffix, stem + new_suffix)
            renamed.append(stem + new_suffix)
    return renamed


def _base(name: str) -> int:
    return int(name[:_BASE_DIGITS])
