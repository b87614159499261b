"""The log directories of a broker together: locking, their cluster, losses and failures."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from headrace.model.errors import ConfigError
from headrace.storage import checkpoint, directory_names, shared_file
from headrace.storage.log_directory import LogDirectory, unusable
from headrace.world.files import SystemFiles


class LogDirectories:
    def __init__(
        self,
        directories: Sequence[LogDirectory],
        files: SystemFiles,
        *,
        node_id: int,
        cluster_id: str | None,
        on_zookeeper: bool,
    ) -> None:
        """``on_zookeeper`` is for members of a cluster on ZooKeeper (``LogDirectory.open``)."""
        self._directories = directories
        self._files = files
        self.node_id = node_id
        self.cluster_id = cluster_id
        self._on_zookeeper = on_zookeeper

    def __iter__(self) -> Iterator[LogDirectory]:
        return iter(self._directories)

    def __getitem__(self, index: int) -> LogDirectory:
        return self._directories[index]

    def online(self) -> list[LogDirectory]:
        return [each for each in self._directories if each.offline is None]

    # --- locks

    def lock(self, node_id: int | None = None) -> None:
        """Lock all log directories, for the broker ``node_id`` if given, and read checkpoints.

        Raises ConfigError if one belongs to another broker, or if none is usable; a directory
        whose disk fails goes offline instead.
        """
        if node_id is not None:
            self.node_id = node_id
        if self.cluster_id is None:
            self.cluster_id = self._stored_cluster_id()
        try:
            for directory in self._directories:
                try:
                    directory.open(self.cluster_id, self.node_id, on_zookeeper=self._on_zookeeper)
                except OSError as error:
                    if len(self._directories) == 1:
                        raise unusable(directory.path, error) from error
                    directory.take_offline(str(error))
                    continue
                self.cluster_id = directory.cluster_id
        except ConfigError:
            self.unlock()
            raise
        if not self.online():
            reasons = "; ".join(f"{each.path}: {each.offline}" for each in self._directories)
            self.unlock()
            raise ConfigError(f"Cannot use any of log.dirs: {reasons}")

    @property
    def are_locked(self) -> bool:
        return any(directory.is_locked for directory in self._directories)

    def unlock(self) -> None:
        for directory in self._directories:
            directory.close()

    # --- the cluster

    def _stored_cluster_id(self) -> str | None:
        """The cluster id in the log directories; a new, empty one may come before the others."""
        for directory in self._directories:
            with suppress(OSError):
                path = directory.path / checkpoint.META_PROPERTIES
                values = checkpoint.read_properties(self._files, path)
                if values and values.get("cluster.id"):
                    return values["cluster.id"]
        return None

    @property
    def cluster_is_new(self) -> bool:
        """Whether the cluster id was generated now, because no log directory had one."""
        return any(directory.cluster_is_new for directory in self.online())

    def adopt_cluster(self, cluster_id: str) -> None:
        """Belong to this cluster, in place of a generated id."""
        for directory in self.online():
            if directory.cluster_id != cluster_id:
                directory.adopt_cluster(cluster_id)
        self.cluster_id = cluster_id

    # --- content

    def has_partitions(self) -> bool:
        """Whether a log directory that is online has partition directories, opened or not."""
        return any(
            directory_names.parse(name) is not None
            for directory in self.online()
            for name in self._files.directories_in(directory.path)
        )

    def place_of(self, file_name: str) -> Path:
        """The log directory that holds a file for all of them (``shared_file.locate``)."""
        return shared_file.locate(self.online(), file_name)

    def traces_of(self, file_name: str) -> list[Path]:
        """Paths of the file, and of the notes about it, from an earlier start."""
        return shared_file.traces(self.online(), file_name)

    # --- losses and failures

    @property
    def may_have_lost_records(self) -> bool:
        """Whether a log directory was in use when its machine went down."""
        return any(directory.may_have_lost_records for directory in self.online())

    def losses_reported(self) -> None:
        """The controller knows that records may be lost. Blocks for an fsync."""
        for directory in self.online():
            try:
                directory.losses_reported()
            except OSError as error:
                directory.failed(error)

    def unreadable(self, path: str, error: OSError) -> None:
        """Handle an error met in a partition's file by a caller that knows only its path."""
        for directory in self._directories:
            if directory.path == Path(path).parent.parent:
                directory.partition_failed(error)
