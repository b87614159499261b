"""One entry of ``log.dirs``: whose folder it is, its lock, its checkpoints, its health."""

import errno
import fcntl
import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

from headrace.model.errors import ConfigError, Corrupt
from headrace.model.ids import Offset, TopicPartition, id_to_text
from headrace.storage import checkpoint
from headrace.storage.background import Job
from headrace.storage.files import ONE_FILE_ERRNOS, TRANSIENT_ERRNOS, sync_folder
from headrace.storage.segment import Resources

log = logging.getLogger("headrace.storage")

LOCK_FILE = ".lock"
_COMPLAINT_INTERVAL_S = 10


class LogDirectory:
    def __init__(self, path: Path, resources: Resources, later: Callable[[int, Job], None]) -> None:
        self.path = path
        self.resources = resources
        self.later = later
        self.directory_id = ""
        self.cluster_id = ""
        self.is_new = False  # it had no meta.properties: a new disk, or the mount point of one
        self.cluster_is_new = False  # nobody told the cluster's id, so it was made up
        self.clean_start = False  # whether the last stop was clean
        self.last_broker_epoch = -1  # of the process that stopped cleanly
        self.offline: str | None = None  # why, once the disk has failed
        self.on_offline: Callable[[LogDirectory], None] = lambda directory: None
        self.recovery_points: dict[TopicPartition, Offset] = {}
        self.high_watermarks: dict[TopicPartition, Offset] = {}
        self.log_starts: dict[TopicPartition, Offset] = {}
        self.cleaner_offsets: dict[TopicPartition, Offset] = {}
        self._lock_fd = -1
        self._quiet_until = 0.0
        self._written: dict[str, dict[TopicPartition, Offset]] = {}  # file name -> its content
        self._writing = threading.Lock()
        self._checkpoint_count = 0
        self._newest_written = 0  # of the checkpoints, so that an older one never replaces it

    def open(self, cluster_id: str | None, node_id: int) -> None:
        """Take the folder: lock it, see that it is ours, read the checkpoints.

        Raises ConfigError if it belongs to another process, node or cluster,
        OSError if the disk cannot be read or written.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        self._lock()
        self._check_owner(cluster_id, node_id)
        mark = self.path / checkpoint.CLEAN_SHUTDOWN
        broker_epoch = checkpoint.read_clean_shutdown(mark)
        if broker_epoch is not None:
            self.clean_start = True
            self.last_broker_epoch = broker_epoch
        self.recovery_points = self._read(checkpoint.RECOVERY_POINTS)
        self.high_watermarks = self._read(checkpoint.HIGH_WATERMARKS)
        self.log_starts = self._read(checkpoint.LOG_STARTS)
        self.cleaner_offsets = self._read(checkpoint.CLEANER_OFFSETS)
        if self.log_starts:
            self._written[checkpoint.LOG_STARTS] = dict(self.log_starts)

    def started(self) -> None:
        """All logs are open: from now on only another clean stop may leave the mark."""
        if self.clean_start:
            (self.path / checkpoint.CLEAN_SHUTDOWN).unlink(missing_ok=True)
            sync_folder(str(self.path))

    def _lock(self) -> None:
        resolved = self.path.resolve()
        # fcntl locks belong to the process: it would get the lock twice, and lose
        # it with the first descriptor of the file that it closes. So look here first.
        if resolved not in _LOCKED:
            fd = os.open(self.path / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                # The POSIX lock that Java's FileChannel.tryLock takes: each sees the other's.
                fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                os.close(fd)
                if error.errno not in (errno.EACCES, errno.EAGAIN):
                    raise
            else:
                self._lock_fd = fd
                _LOCKED.add(resolved)
                return
        raise ConfigError(
            f"{self.path} is in use by another broker: it holds the lock on "
            f"{self.path / LOCK_FILE}. Stop that one, or give this one another log.dirs."
        )

    def _check_owner(self, cluster_id: str | None, node_id: int) -> None:
        path = self.path / checkpoint.META_PROPERTIES
        values = checkpoint.read_properties(path)
        self.cluster_is_new = cluster_id is None and (values or {}).get("cluster.id") is None
        self.is_new = values is None
        if values is None:
            self.cluster_id = cluster_id or id_to_text(os.urandom(16))
            self.directory_id = id_to_text(os.urandom(16))
            checkpoint.write_properties(
                path,
                {
                    "version": "1",
                    "cluster.id": self.cluster_id,
                    "node.id": str(node_id),
                    "directory.id": self.directory_id,
                },
            )
            return
        # Version 0 was written by ZooKeeper-era brokers, which say broker.id.
        meta_version = values.get("version", "0")
        if meta_version not in ("0", "1"):
            raise ConfigError(f"{path} has version {meta_version}; 0 and 1 are known")
        owner = values.get("node.id", values.get("broker.id"))
        if owner is not None and owner != str(node_id):
            raise ConfigError(
                f"{self.path} belongs to node {owner}, and this is node {node_id}: "
                f"set node.id={owner}, or give another log.dirs"
            )
        known = values.get("cluster.id")
        if cluster_id is not None and known is not None and known != cluster_id:
            raise ConfigError(
                f"{self.path} belongs to cluster {known}, and this broker to {cluster_id}: "
                "give another log.dirs"
            )
        self.cluster_id = known or cluster_id or id_to_text(os.urandom(16))
        self.directory_id = values.get("directory.id", "")
        if not self.directory_id or known is None:
            self.directory_id = self.directory_id or id_to_text(os.urandom(16))
            values["cluster.id"] = self.cluster_id
            values["directory.id"] = self.directory_id
            checkpoint.write_properties(path, values)

    def adopt_cluster(self, cluster_id: str) -> None:
        """Belong to a cluster that is older than our knowledge of it."""
        path = self.path / checkpoint.META_PROPERTIES
        values = checkpoint.read_properties(path) or {}
        checkpoint.write_properties(path, values | {"cluster.id": cluster_id})
        self.cluster_id = cluster_id
        self.cluster_is_new = False

    def _read(self, name: str) -> dict[TopicPartition, Offset]:
        try:
            return checkpoint.read_offsets(self.path / name)
        except Corrupt as problem:
            # Every entry has a safe default: more is checked at the start, no more is lost.
            log.warning("%s; the file is ignored and written anew", problem)
            return {}

    @property
    def is_locked(self) -> bool:
        return self._lock_fd >= 0

    def checkpoint_job(self) -> Job:
        """What writes the checkpoint files as they should be now; may run in another thread."""
        files = (
            (checkpoint.RECOVERY_POINTS, dict(self.recovery_points)),
            (checkpoint.HIGH_WATERMARKS, dict(self.high_watermarks)),
            (checkpoint.LOG_STARTS, dict(self.log_starts)),
            (checkpoint.CLEANER_OFFSETS, dict(self.cleaner_offsets)),
        )

        self._checkpoint_count += 1
        number = self._checkpoint_count

        def write() -> None:
            try:
                with self._writing:
                    if number < self._newest_written:
                        return
                    self._newest_written = number
                    for name, offsets in files:
                        if offsets != self._written.get(name):
                            checkpoint.write_offsets(self.path / name, offsets)
                            self._written[name] = offsets
            except OSError as error:
                self.failed(error)

        return write

    def forget(self, topic_partition: TopicPartition) -> None:
        """A topic made anew under an old name must not inherit its offsets, nor after a crash."""
        self.drop_offsets(topic_partition)
        self.mend_log_starts(topic_partition)

    def drop_offsets(self, topic_partition: TopicPartition) -> None:
        """Forget the offsets in memory; those on disk change with the next checkpoint."""
        for known in (
            self.recovery_points,
            self.high_watermarks,
            self.log_starts,
            self.cleaner_offsets,
        ):
            known.pop(topic_partition, None)

    def mend_log_starts(self, topic_partition: TopicPartition) -> None:
        """Take a partition out of the one file whose offsets could do harm, and not later.

        A log start that is beyond the end of a new log would cost all its records; the other
        offsets only cost time. Waits for a checkpoint that is being written.
        """
        with self._writing:
            on_disk = self._written.get(checkpoint.LOG_STARTS, {})
            if topic_partition not in on_disk:
                return
            self._checkpoint_count += 1
            self._newest_written = self._checkpoint_count
            left = {name: offset for name, offset in on_disk.items() if name != topic_partition}
            # A killed process is what matters: a power cut takes the new records as well.
            checkpoint.write_offsets(self.path / checkpoint.LOG_STARTS, left, sync=False)
            self._written[checkpoint.LOG_STARTS] = left

    def failed(self, error: OSError) -> bool:
        """Judge an error of this disk; tells whether it took the folder offline."""
        if error.errno in TRANSIENT_ERRNOS:
            if time.monotonic() < self._quiet_until:
                return False  # every produce request would say the same
            self._quiet_until = time.monotonic() + _COMPLAINT_INTERVAL_S
            log.error(
                "%s: %s. Nothing was written; make room (or raise the limit) and it goes on",
                self.path,
                error.strerror,
            )
            return False
        self.take_offline(str(error))
        return True

    def partition_failed(self, error: OSError) -> None:
        """Judge an error met inside the folder of one partition."""
        if error.errno not in ONE_FILE_ERRNOS:
            self.failed(error)
        elif time.monotonic() >= self._quiet_until:
            self._quiet_until = time.monotonic() + _COMPLAINT_INTERVAL_S
            log.error(
                "%s: that partition cannot be served, the others are. Put the file right, "
                "and it goes on",
                error,
            )

    def take_offline(self, reason: str) -> None:
        if self.offline is None:
            self.offline = reason
            log.error(
                "%s goes offline with all its partitions: %s. The others stay. "
                "Repair the disk and restart the broker",
                self.path,
                reason,
            )
            self.on_offline(self)

    def disown(self, reason: str) -> None:
        """Leave a new folder as it was found, and unused."""
        (self.path / checkpoint.META_PROPERTIES).unlink(missing_ok=True)
        self.take_offline(reason)

    def close(self) -> None:
        if self._lock_fd >= 0:
            os.close(self._lock_fd)  # the lock goes with the descriptor
            self._lock_fd = -1
            _LOCKED.discard(self.path.resolve())


_LOCKED: set[Path] = set()  # the folders that brokers of this process hold
