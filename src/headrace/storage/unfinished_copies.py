"""The copies of one log that moves between log directories have not finished."""

from collections.abc import Collection, Iterable
from pathlib import Path


class UnfinishedCopies:
    """Where the copies are: their paths, and the log directories with such a copy.

    A log directory that is offline is known by its ID only.
    """

    def __init__(self) -> None:
        self._paths: set[Path] = set()
        self._directory_ids: set[str] = set()

    @property
    def paths(self) -> list[Path]:
        return sorted(self._paths)

    @property
    def directory_ids(self) -> list[str]:
        return sorted(self._directory_ids)

    def noted(self, directory_ids: Iterable[str]) -> None:
        """The note in the log's directory names these log directories."""
        self._directory_ids.update(directory_ids)

    def not_found_in(self, directory_ids: Collection[str]) -> None:
        """These log directories are online, and a start kept no copy in them."""
        self._directory_ids.difference_update(directory_ids)

    def add(self, path: Path, directory_id: str) -> None:
        self._paths.add(path)
        self._directory_ids.add(directory_id)

    def remove(self, path: Path, directory_id: str) -> None:
        self._paths.discard(path)
        if all(other.parent != path.parent for other in self._paths):
            self._directory_ids.discard(directory_id)
