"""One entry of ``log.dirs``: its owner, its lock, its checkpoints, its health."""

import logging
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from headrace.model.errors import ConfigError
from headrace.model.ids import Millis, TopicPartition, id_to_text
from headrace.storage import checkpoint
from headrace.storage.background import Job
from headrace.storage.checkpointed_offsets import CheckpointedOffsets
from headrace.storage.directory_names import MARK_SIZE, pending_deletion_path, stray_path
from headrace.storage.files import ONE_FILE_ERRNOS, TRANSIENT_ERRNOS, unlink_if_exists
from headrace.storage.segment import Resources, Segment
from headrace.world.world import World

_log = logging.getLogger("headrace.storage")

LOCK_FILE = ".lock"
_REPORT_INTERVAL_MS = 10_000


class LogDirectory:
    def __init__(
        self,
        path: Path,
        world: World,
        resources: Resources,
        later: Callable[[int, Job], None],
        on_offline: "Callable[[LogDirectory], None]",
    ) -> None:
        self.path = path
        self.world = world
        self.files = resources.files
        self.resources = resources
        self.later = later
        self.directory_id = ""
        self.cluster_id = ""
        # It had no meta.properties: a new disk, or the mount point of one that is not mounted.
        self.is_new = False
        self.cluster_is_new = False  # the cluster id was generated, because none was known
        self.clean_start = False  # whether the last shutdown was clean
        self.last_broker_epoch = -1  # of the process that shut down cleanly
        # The machine went down while the last process ran: unsynced records are lost.
        self.machine_went_down = False
        # The same, or it is unknown: the controller must hear of it.
        self.may_have_lost_records = False
        self.offline: str | None = None  # why, once the disk has failed
        self._on_offline = on_offline
        self.offsets = CheckpointedOffsets(self.files, path, self.failed)
        self._lock_fd = -1
        self._reported_at = Millis(0)

    def open(self, cluster_id: str | None, node_id: int, *, on_zookeeper: bool = False) -> None:
        """Lock the directory, check that it is ours, read the checkpoints.

        With ``on_zookeeper``, a new directory gets the meta.properties of Kafka on ZooKeeper.

        Raises ConfigError if it belongs to another process, node or cluster, OSError if the disk
        cannot be read or written.
        """
        self._create()
        self._lock()
        self._check_owner(cluster_id, node_id, on_zookeeper)
        marker = self.path / checkpoint.CLEAN_SHUTDOWN
        broker_epoch = checkpoint.read_clean_shutdown(self.files, marker)
        if broker_epoch is not None:
            self.clean_start = True
            self.last_broker_epoch = broker_epoch
        known = checkpoint.read_boot_id(self.files, self.path / checkpoint.BOOT_ID)
        current = self.world.boot_id()
        if not self.clean_start and not self.is_new:
            self.may_have_lost_records = known is None or known != current
            is_known = known is not None and current is not None
            self.machine_went_down = is_known and known != current
        self.offsets.load()

    def started(self) -> None:
        """All logs are open: remove the clean shutdown marker, until the next clean shutdown."""
        if not self.may_have_lost_records:
            self._note_boot()
        if self.clean_start:
            unlink_if_exists(self.files, self.path / checkpoint.CLEAN_SHUTDOWN)
            self.files.sync_directory(self.path)

    def losses_reported(self) -> None:
        """The controller knows that records may be lost here.

        Call it only then: a process that is killed earlier must report the losses again.
        """
        if self.may_have_lost_records:
            self._note_boot()
            self.may_have_lost_records = False

    def _note_boot(self) -> None:
        path, boot_id = self.path / checkpoint.BOOT_ID, self.world.boot_id()
        if boot_id is not None and boot_id != checkpoint.read_boot_id(self.files, path):
            checkpoint.write_boot_id(self.files, path, boot_id)

    def _create(self) -> None:
        missing = [each for each in (self.path, *self.path.parents) if not self.files.exists(each)]
        self.files.make_directories(self.path)
        for each in missing:
            self.files.sync_directory(each.parent)

    def _lock(self) -> None:
        try:
            self._lock_fd = self.files.lock(self.path / LOCK_FILE)
        except BlockingIOError:
            raise ConfigError(
                f"{self.path} is in use by another broker, which holds the lock on "
                f"{self.path / LOCK_FILE}. Stop that broker, or choose another log.dirs."
            ) from None

    def _check_owner(self, cluster_id: str | None, node_id: int, on_zookeeper: bool) -> None:
        path = self.path / checkpoint.META_PROPERTIES
        values = checkpoint.read_properties(self.files, path)
        self.cluster_is_new = cluster_id is None and (values or {}).get("cluster.id") is None
        self.is_new = values is None
        if values is None:
            self.cluster_id = cluster_id or self._draw_id()
            self.directory_id = self._draw_id()
            checkpoint.write_properties(
                self.files,
                path,
                {
                    "version": "0" if on_zookeeper else "1",
                    "cluster.id": self.cluster_id,
                    "broker.id" if on_zookeeper else "node.id": str(node_id),
                    "directory.id": self.directory_id,
                },
            )
            return
        # Version 0 was written by ZooKeeper-era brokers, which say broker.id.
        meta_version = values.get("version", "0")
        if meta_version not in ("0", "1"):
            raise ConfigError(f"{path} has version {meta_version}; supported are 0 and 1")
        owner = values.get("node.id", values.get("broker.id"))
        if owner is not None and owner != str(node_id):
            raise ConfigError(
                f"{self.path} belongs to node {owner}, but this is node {node_id}. "
                f"Set node.id={owner}, or choose another log.dirs"
            )
        known = values.get("cluster.id")
        if cluster_id is not None and known is not None and known != cluster_id:
            raise ConfigError(
                f"{self.path} belongs to cluster {known}, but this broker to {cluster_id}. "
                "Choose another log.dirs"
            )
        self.cluster_id = known or cluster_id or self._draw_id()
        self.directory_id = values.get("directory.id", "")
        if not self.directory_id or known is None:
            self.directory_id = self.directory_id or self._draw_id()
            values["cluster.id"] = self.cluster_id
            values["directory.id"] = self.directory_id
            checkpoint.write_properties(self.files, path, values)

    def _draw_id(self) -> str:
        return id_to_text(self.world.random.randbytes(16))

    def adopt_cluster(self, cluster_id: str) -> None:
        """Replace the cluster id, which was only generated, by the real one."""
        path = self.path / checkpoint.META_PROPERTIES
        values = checkpoint.read_properties(self.files, path) or {}
        checkpoint.write_properties(self.files, path, values | {"cluster.id": cluster_id})
        self.cluster_id = cluster_id
        self.cluster_is_new = False

    @property
    def is_locked(self) -> bool:
        return self._lock_fd >= 0

    # -- deletion -------------------------------------------------------------------------

    def draw_mark(self) -> str:
        """The random part of the name of a directory that is a copy, or marked for deletion."""
        return self.world.random.randbytes(MARK_SIZE // 2).hex()

    def delete_partition(
        self, path: Path, topic_partition: TopicPartition, delay_ms: int = 0
    ) -> Path:
        """Mark a partition directory for deletion now, and remove its files later."""
        deleted = pending_deletion_path(path, topic_partition, self.draw_mark())
        self.files.rename(path, deleted)
        self.later(delay_ms, partial(self.files.remove_tree, deleted))
        return deleted

    def set_aside(self, path: Path, topic_partition: TopicPartition) -> Path:
        """Rename a partition directory so that no start opens it; its files stay."""
        aside = stray_path(path, topic_partition, self.draw_mark())
        self.files.rename(path, aside)
        return aside

    def delete_segments(self, segments: Iterable[Segment], delay_ms: int) -> None:
        """Rename the files to ``.deleted`` now, so that a crash leaves no half segment."""
        paths = []
        for segment in segments:
            segment.release()
            paths += segment.files.mark_deleted()
        if paths:
            self.unlink_later(paths, delay_ms)

    def unlink_later(self, paths: Iterable[str], delay_ms: int) -> None:
        """Unlink in a thread: freeing a gigabyte may take the file system a while."""

        def unlink() -> None:
            for path in paths:
                unlink_if_exists(self.files, path)  # not if the partition was deleted meanwhile

        self.later(delay_ms, unlink)

    # -- health ---------------------------------------------------------------------------

    def failed(self, error: OSError) -> bool:
        """Handle an error of this disk; returns whether the directory went offline."""
        if error.errno in TRANSIENT_ERRNOS:
            if self._may_report():
                _log.error(
                    "%s: %s. Writes fail until there is room again (or the limit is raised)",
                    self.path,
                    error.strerror,
                )
            return False
        self.take_offline(str(error))
        return True

    def partition_failed(self, error: OSError) -> None:
        """Handle an error met inside the directory of one partition."""
        if error.errno not in ONE_FILE_ERRNOS:
            self.failed(error)
        elif self._may_report():
            _log.error(
                "%s. The partition is unavailable until the file is repaired; other partitions are "
                "not affected",
                error,
            )

    def _may_report(self) -> bool:
        """False shortly after a report, because every produce request would report the same."""
        now = self.world.now()
        if 0 <= now - self._reported_at < _REPORT_INTERVAL_MS:  # the clock may be set back
            return False
        self._reported_at = now
        return True

    def take_offline(self, reason: str) -> None:
        if self.offline is None:
            self.offline = reason
            _log.error(
                "Log directory %s is offline with all its partitions: %s. Other log directories "
                "are not affected. Mount or repair the disk and restart the broker",
                self.path,
                reason,
            )
            self._on_offline(self)

    def disown(self, reason: str) -> None:
        """Leave a new directory as it was found, and do not use it."""
        unlink_if_exists(self.files, self.path / checkpoint.META_PROPERTIES)
        self.take_offline(reason)

    def close(self) -> None:
        if self._lock_fd >= 0:
            self.files.unlock(self._lock_fd)
            self._lock_fd = -1


def unusable(path: Path, error: OSError) -> ConfigError:
    """The error of a broker whose only data directory cannot be opened."""
    reason = error.strerror or str(error)
    if isinstance(error, FileExistsError | NotADirectoryError):
        reason = "it is not a directory"
    return ConfigError(
        f"Cannot use data directory {path}: {reason}. Choose another one with --data or log.dirs"
    )
