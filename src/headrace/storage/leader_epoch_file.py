"""The ``leader-epoch-checkpoint`` of one log, written only when its content changes."""

from collections.abc import Iterable
from pathlib import Path

from headrace.core.leader_epochs import EpochEntry, LeaderEpochs
from headrace.storage import checkpoint
from headrace.world.files import SystemFiles


class LeaderEpochFile:
    __slots__ = ("_files", "_saved", "path")

    def __init__(self, files: SystemFiles, directory: Path) -> None:
        self._files = files
        self.relocate(directory)
        self._saved: tuple[EpochEntry, ...] | None = None  # None: not written yet

    def relocate(self, directory: Path) -> None:
        """The partition directory was copied or renamed."""
        self.path = f"{directory}/{checkpoint.LEADER_EPOCHS}"

    def save(self, epochs: LeaderEpochs, staged: Iterable[EpochEntry] = ()) -> None:
        """Write ``epochs`` and the entries that begin with ``staged`` batches; without fsync.

        Entries must be saved before their first batch is written. After a crash only batches
        above the recovery point are read again, and the recovery point moves independently of the
        entries: an entry missing from the file by then would be lost.
        """
        if staged:
            epochs = LeaderEpochs(epochs.entries)
            for leader_epoch, start_offset in staged:
                epochs.assign(leader_epoch, start_offset)
        entries = tuple(epochs.entries)
        if entries != self._saved:
            checkpoint.write_leader_epochs(self._files, self.path, entries, sync=False)
            self._saved = entries
