"""All logs of a broker, over all its ``log.dirs``.

In such a folder lie Kafka's own files, one folder per partition and plain
files of ours:

    topic-0                          a partition
    topic-0.<32 hex digits>-delete   a deleted one whose files have not gone yet
    topic-0.<32 hex digits>-future   a copy on its way from another folder
    topic-0.<32 hex digits>-stray    set aside by Kafka: no longer of this broker

A folder whose disk fails goes offline alone; its partitions answer
KAFKA_STORAGE_ERROR, the others go on.
"""

import logging
import os
import resource
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

from headrace.model.config import TopicConfig
from headrace.model.errors import ConfigError, Corrupt, ErrorCode, Rejected
from headrace.model.ids import Millis, Offset, TopicId, TopicPartition
from headrace.storage import checkpoint
from headrace.storage.background import Background, Job
from headrace.storage.files import (
    ONE_FILE_ERRNOS,
    OpenFiles,
    read_file,
    remove_folder,
    write_atomically,
)
from headrace.storage.log import DELETE, Log, pending_deletion_path
from headrace.storage.log_directory import LogDirectory
from headrace.storage.log_move import FUTURE, was_nearly_whole
from headrace.storage.segment import IndexCache, Resources

log = logging.getLogger("headrace.storage")

OPEN_FILES_MAX = 2000
RENEWED_AT_ONCE_MAX = 1 << 20  # bytes of a segment; some milliseconds
# From so many changed segments on, one sync of everything is cheaper than an fsync of each file.
FSYNC_EACH_COUNT_MAX = 32
_STRAY = "-stray"
_HEX_DIGITS = frozenset("0123456789abcdef")
_METADATA_LOG = "__cluster_metadata"  # KRaft's; not a topic
_NOTE = ".location"


class _Copy(NamedTuple):
    """What a start found of a move between folders."""

    directory: LogDirectory
    folder: Path
    modified_at: int  # in nanoseconds, as the file system says: a file came or went last then
    is_nearly_whole: bool


class LogManager:
    def __init__(
        self,
        paths: Sequence[Path | str],
        *,
        node_id: int,
        config_of: Callable[[str], TopicConfig],
        cluster_id: str | None = None,
        later: Callable[[int, Job], None] | None = None,
        open_files_max: int | None = None,
        producer_expiration_ms: int = 86_400_000,
    ) -> None:
        """``config_of`` gives a topic's settings; ``later`` runs a job in a thread, after a delay
        in milliseconds (left out: in a thread of our own)."""
        self.node_id = node_id
        self.cluster_id = cluster_id
        self.config_of = config_of
        self.producer_expiration_ms = producer_expiration_ms
        self._background = None
        self._has_met_bug = False
        self.on_bug: Callable[[Exception], None] = lambda error: None
        if later is None:
            self._background = Background(self._met_bug)
            later = self._background.later
        self._later = later
        self._resources = Resources(OpenFiles(open_files_max or _open_files_max()), IndexCache())
        self.directories = [
            LogDirectory(Path(path), self._resources, self._later) for path in paths
        ]
        self.on_offline: Callable[[LogDirectory], None] = lambda directory: None
        self._logs: dict[TopicPartition, Log] = {}
        self.failed: dict[TopicPartition, str] = {}  # cannot be served, and why
        # Moves that the last stop interrupted, and where to: they begin anew.
        self.unfinished_moves: dict[TopicPartition, LogDirectory] = {}
        # Met by a start, until it is settled what they are; those of partitions that have failed.
        self._copies: dict[TopicPartition, list[_Copy]] = {}
        self._deleted_ids: Collection[TopicId] = ()
        self._places: dict[TopicPartition, LogDirectory] = {}  # of those to be made next

    # -- opening --------------------------------------------------------------------------

    def lock(self) -> None:
        """Take all folders and read their checkpoints.

        Raises ConfigError if one belongs to somebody else, or if none can be
        used; a folder whose disk fails goes offline instead.
        """
        if self.cluster_id is None:
            self.cluster_id = self._told_cluster_id()
        try:
            for directory in self.directories:
                directory.on_offline = self._went_offline
                try:
                    directory.open(self.cluster_id, self.node_id)
                except OSError as error:
                    if len(self.directories) == 1:
                        raise ConfigError(
                            f"{directory.path} cannot be used: {error.strerror or error}; make it "
                            "a folder that can be written, or name another (log.dirs, --data)"
                        ) from error
                    directory.take_offline(str(error))
                    continue
                self.cluster_id = directory.cluster_id
        except ConfigError:
            self._unlock()
            raise
        if all(directory.offline is not None for directory in self.directories):
            reasons = "; ".join(f"{each.path}: {each.offline}" for each in self.directories)
            self._unlock()
            raise ConfigError(f"none of log.dirs can be used: {reasons}")

    def _told_cluster_id(self) -> str | None:
        """What the folders say; an empty one, of a new disk, may come before the others."""
        for directory in self.directories:
            with suppress(OSError):
                values = checkpoint.read_properties(directory.path / checkpoint.META_PROPERTIES)
                if values and values.get("cluster.id"):
                    return values["cluster.id"]
        return None

    @property
    def cluster_is_new(self) -> bool:
        """Whether no folder told the cluster's id; then it is not known outside of them."""
        return any(directory.cluster_is_new for directory in self._online())

    def adopt_cluster(self, cluster_id: str) -> None:
        """Belong to this cluster, if the id was only made up."""
        for directory in self._online():
            if directory.cluster_id != cluster_id:
                directory.adopt_cluster(cluster_id)
        self.cluster_id = cluster_id

    def place_of(self, file_name: str) -> Path:
        """The folder for a file that one of ``log.dirs`` holds for all: where it is, if it is.

        The other folders note where that is (``directory.id``). Raises ConfigError if they
        do and the file is not there: its disk is away, and a new file would contradict it.
        """
        online = self._online()
        note = f"{file_name}{_NOTE}"
        for directory in online:
            if (directory.path / file_name).exists():
                holder = directory
                break
        else:
            for directory in online:
                if (directory.path / note).exists():
                    raise ConfigError(
                        f"{file_name} is in none of log.dirs, and {directory.path / note} says "
                        "that there is one: mount the disk that holds it. If it is lost, remove "
                        f"every {note} and start again: topics are then read back from the "
                        "partition folders that are here, without their settings"
                    )
            holder = online[0]
        for directory in online:
            text = f"{holder.directory_id}\n".encode()
            with suppress(OSError):
                if directory is holder:
                    (directory.path / note).unlink(missing_ok=True)
                elif not (directory.path / note).exists() or text != read_file(
                    str(directory.path / note)
                ):
                    write_atomically(directory.path / note, text)
        return holder.path

    def open_all(self, now: Millis, deleted_ids: Collection[TopicId] = ()) -> None:
        """Open every partition folder; ``lock`` first, if it was not called yet.

        Folders of ``deleted_ids`` belong to topics that were deleted while their disk was
        away: they go.
        """
        self._deleted_ids = deleted_ids
        if not any(directory.is_locked for directory in self.directories):
            self.lock()
        for directory in self._online():
            try:
                self._open_directory(directory, now)
            except OSError as error:
                directory.take_offline(str(error))
        # From now on somebody waits for the loop.
        self._resources.indexes.renewable_size_max = RENEWED_AT_ONCE_MAX
        for topic_partition in list(self._copies):
            self._settle_copies(topic_partition, now)
        for directory in self._online():
            try:
                directory.started()
            except OSError as error:
                directory.take_offline(str(error))

    def _settle_copies(self, topic_partition: TopicPartition, now: Millis) -> None:
        """Finish or forget the moves of a partition (``relocation`` says which).

        Several copies are there if a process was killed after somebody had changed his mind,
        or asked for the next move before the last had ended: the youngest is the last request.
        """
        request = max(self._copies[topic_partition], key=lambda copy: copy.modified_at).directory
        if topic_partition not in self._logs and topic_partition not in self.failed:
            self._finish_move(topic_partition, now)
        if topic_partition in self.failed:
            return  # its own folder is there, and may yet be read; or a copy is all there is
        if self._logs[topic_partition].directory is not request:
            self.unfinished_moves[topic_partition] = request
        for copy in self._copies.pop(topic_partition):
            log.info("%s: the copy was not finished; its files go now", copy.folder)
            try:
                self._mark_for_deletion(copy.folder, topic_partition)
            except OSError as error:
                copy.directory.take_offline(str(error))

    def _finish_move(self, topic_partition: TopicPartition, now: Millis) -> None:
        """Open the copy that is the log by now; if none can be, the partition has ``failed``."""
        copies = self._copies[topic_partition]
        whole = [copy for copy in copies if copy.is_nearly_whole]
        if len(whole) != 1 or any(
            each.offline is not None or each.is_new for each in self.directories
        ):
            # The log itself may lie on a disk that is away; the copy may be half of it.
            folders = ", ".join(str(copy.folder) for copy in copies)
            log.error(
                "%s: %s, and the log itself is in none of the directories. The partition stays "
                "offline until a start with the directories that there were%s",
                folders,
                "an unfinished copy" if len(copies) == 1 else "unfinished copies",
                ", or with one copy alone" if len(whole) > 1 else "",
            )
            self.failed[topic_partition] = f"only an unfinished copy of it is here, {folders}"
            return
        (copy,) = whole
        try:
            plain = copy.folder.rename(copy.directory.path / str(topic_partition))
            log.info("%s: a move that a stop interrupted is finished", plain)
            self._open(copy.directory, plain, topic_partition, now)
        except OSError as error:
            copy.directory.take_offline(str(error))
            self.failed[topic_partition] = str(error)
        copies.remove(copy)

    def _mark_for_deletion(self, folder: Path, topic_partition: TopicPartition) -> None:
        """Give it the name of a deleted one; its files go in the background."""
        self._later(0, _removal(folder.rename(pending_deletion_path(folder, topic_partition))))

    def _open_directory(self, directory: LogDirectory, now: Millis) -> None:
        with os.scandir(directory.path) as entries:
            names = sorted(entry.name for entry in entries if entry.is_dir())
        for name in names:
            folder = directory.path / name
            if _set_aside(name, DELETE) or _set_aside(name, _STRAY):
                log.info("%s: its deletion was not finished; its files go now", folder)
                self._later(0, _removal(folder))
                continue
            copied = _set_aside(name, FUTURE)
            topic_partition = copied or _parse(name)
            if topic_partition is None:
                log.warning("%s is no partition and is left alone; move it elsewhere", folder)
                continue
            if topic_partition.topic == _METADATA_LOG:
                continue
            if self._deleted_ids and self._is_deleted(folder):
                log.info("%s: its topic was deleted while this disk was away; it goes now", folder)
                self._mark_for_deletion(folder, topic_partition)
                continue
            if copied:  # settled once it is known what lies in all folders
                copy = _Copy(directory, folder, folder.stat().st_mtime_ns, was_nearly_whole(folder))
                self._copies.setdefault(copied, []).append(copy)
                continue
            self._open(directory, folder, topic_partition, now)

    def _open(
        self, directory: LogDirectory, folder: Path, topic_partition: TopicPartition, now: Millis
    ) -> None:
        if topic_partition in self._logs:
            raise ConfigError(
                f"{topic_partition} lies in both {self._logs[topic_partition].folder} and "
                f"{folder}: remove the one that is out of date"
            )
        try:
            self._logs[topic_partition] = Log.open(
                directory,
                folder,
                topic_partition,
                self.config_of(topic_partition.topic),
                now,
                producer_expiration_ms=self.producer_expiration_ms,
            )
        except (Corrupt, OSError) as problem:
            if isinstance(problem, OSError) and problem.errno not in ONE_FILE_ERRNOS:
                raise
            log.error(
                "%s stays offline: %s. Put that right and restart the broker",
                topic_partition,
                problem,
            )
            self.failed[topic_partition] = str(problem)

    def _is_deleted(self, folder: Path) -> bool:
        with suppress(Corrupt, OSError):
            topic_id = checkpoint.read_topic_id(f"{folder}/{checkpoint.PARTITION_METADATA}")
            return topic_id in self._deleted_ids
        return False

    # -- logs -----------------------------------------------------------------------------

    def get(self, topic_partition: TopicPartition) -> Log | None:
        return self._logs.get(topic_partition)

    def __iter__(self) -> Iterator[Log]:
        return iter(list(self._logs.values()))

    def __len__(self) -> int:
        return len(self._logs)

    def high_watermark(self, topic_partition: TopicPartition) -> Offset:
        """As checkpointed by the last process; the log's start if it is not known."""
        found = self._logs[topic_partition]
        known = found.directory.high_watermarks.get(topic_partition, found.log_start)
        return min(max(known, found.log_start), found.log_end)

    def create(
        self,
        topic_partition: TopicPartition,
        topic_id: TopicId,
        config: TopicConfig,
        *,
        now: Millis | None = None,
        directory: LogDirectory | None = None,
    ) -> Log:
        """Make a new log: where it is placed, or in the folder with the fewest logs."""
        assert topic_partition not in self._logs, f"{topic_partition} exists"
        if topic_partition in self.failed:
            raise Rejected(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"{topic_partition} could not be opened: {self.failed[topic_partition]}",
            )
        place = self._places.pop(topic_partition, None)
        directory = directory or place or next(self._emptiest())
        if directory.offline is not None:  # it failed after it was chosen
            raise Rejected(
                ErrorCode.KAFKA_STORAGE_ERROR, f"{directory.path} is offline: {directory.offline}"
            )
        folder = directory.path / str(topic_partition)
        try:
            directory.forget(topic_partition)
            made = Log.open(
                directory,
                folder,
                topic_partition,
                config,
                Millis(time.time_ns() // 1_000_000) if now is None else now,
                topic_id=topic_id,
                producer_expiration_ms=self.producer_expiration_ms,
            )
        except OSError as error:
            if not isinstance(error, NotADirectoryError):  # a file where the folder should be
                directory.failed(error)
            raise Rejected(
                ErrorCode.KAFKA_STORAGE_ERROR, f"{folder} could not be made: {error.strerror}"
            ) from error
        self._logs[topic_partition] = made
        return made

    def place(self, topic_partitions: Iterable[TopicPartition]) -> dict[TopicPartition, str]:
        """Choose the folders of logs that ``create`` makes next; their directory ids."""
        emptiest = self._emptiest()
        chosen = {each: next(emptiest) for each in topic_partitions}
        self._places |= chosen
        return {each: directory.directory_id for each, directory in chosen.items()}

    def _emptiest(self) -> Iterator[LogDirectory]:
        """Where to put one log after the other, so that all folders get alike many."""
        counts = dict.fromkeys(self._online(), 0)
        if not counts:
            raise Rejected(ErrorCode.KAFKA_STORAGE_ERROR, "all log.dirs are offline")
        if len(counts) > 1:
            for existing in self._logs.values():
                if existing.directory in counts:
                    counts[existing.directory] += 1
        while True:
            emptiest = min(counts, key=counts.__getitem__)
            counts[emptiest] += 1
            yield emptiest

    def delete(self, topic_partition: TopicPartition) -> None:
        """Delete a log: its folder is renamed now, its files go after file.delete.delay.ms."""
        deleted = self._logs.pop(topic_partition, None)
        self._places.pop(topic_partition, None)
        if self.failed.pop(topic_partition, None) is not None:
            self._delete_failed(topic_partition)
        if deleted is not None:
            # The folder first, and whatever the disk says next: one that is full cannot take
            # a checkpoint, and without another name the log would be back after the next start.
            for step in (deleted.delete, partial(deleted.directory.forget, topic_partition)):
                try:
                    step()
                except OSError as error:
                    deleted.directory.partition_failed(error)

    def _delete_failed(self, topic_partition: TopicPartition) -> None:
        """What could not be opened must not be taken in at the next start."""
        for directory in self._online():
            with suppress(OSError):
                self._mark_for_deletion(directory.path / str(topic_partition), topic_partition)
            with suppress(OSError):
                directory.forget(topic_partition)
        for copy in self._copies.pop(topic_partition, ()):
            with suppress(OSError):
                self._mark_for_deletion(copy.folder, topic_partition)

    # -- health ---------------------------------------------------------------------------

    def _online(self) -> list[LogDirectory]:
        return [each for each in self.directories if each.offline is None]

    def unreadable(self, path: str, error: OSError) -> None:
        """Judge an error met in a partition's file by somebody who knows no more than its path."""
        for directory in self.directories:
            if directory.path == Path(path).parent.parent:
                directory.partition_failed(error)

    def _met_bug(self, error: Exception) -> None:
        """Called by the worker thread, also for what is left to do while a stop waits for it."""
        self._has_met_bug = True
        self.on_bug(error)

    def _went_offline(self, directory: LogDirectory) -> None:
        self.on_offline(directory)

    # -- checkpoints and the end ----------------------------------------------------------

    def checkpoint(self, high_watermarks: Mapping[TopicPartition, Offset] | None = None) -> None:
        """Write the checkpoint files as they should be now."""
        for each in self._logs.values():
            self.note_offsets(each, (high_watermarks or {}).get(each.topic_partition))
        for directory in self._online():
            directory.checkpoint_job()()

    def note_offsets(self, log: Log, high_watermark: Offset | None) -> None:
        """Have the next checkpoint say how far a log is. An older note of it does no harm."""
        name, directory = log.topic_partition, log.directory
        directory.recovery_points[name] = log.recovery_point
        if log.log_start > log.first_base_offset:
            directory.log_starts[name] = log.log_start
        else:
            directory.log_starts.pop(name, None)
        if high_watermark is not None:
            directory.high_watermarks[name] = high_watermark

    def checkpoint_noted(self) -> None:
        """Write the checkpoint files, in the background, with what was noted for them."""
        for directory in self._online():
            self._later(0, directory.checkpoint_job())

    def close_clean(
        self,
        high_watermarks: Mapping[TopicPartition, Offset] | None = None,
        *,
        broker_epoch: int = -1,
    ) -> None:
        """Flush and close every log, write the checkpoints, leave the mark of a clean stop."""
        try:
            self._close_clean(high_watermarks, broker_epoch)
        finally:
            self._unlock()

    def _close_clean(
        self, high_watermarks: Mapping[TopicPartition, Offset] | None, broker_epoch: int
    ) -> None:
        changed_count = sum(
            each.unflushed_segment_count for each in self._logs.values() if not each.is_settled
        )
        fsync_each = changed_count <= FSYNC_EACH_COUNT_MAX
        torn: set[LogDirectory] = set()
        for each in list(self._logs.values()):
            try:
                each.close(sync=fsync_each)
            except OSError as error:
                torn.add(each.directory)
                each.directory.failed(error)
        if self._background is not None:
            self._background.close()
        if not fsync_each:
            os.sync()
        self.checkpoint(high_watermarks)
        for directory in self._online():
            if directory not in torn and not self._has_met_bug:
                mark = directory.path / checkpoint.CLEAN_SHUTDOWN
                try:
                    checkpoint.write_clean_shutdown(mark, broker_epoch)
                except OSError as error:
                    directory.failed(error)  # without the mark the next start checks more

    def abandon(self) -> None:
        """Let go of everything as a crash would: no flush, no checkpoint, no mark."""
        for each in list(self._logs.values()):
            each.abandon()
        if self._background is not None:
            self._background.close()
        self._unlock()

    def _unlock(self) -> None:
        for directory in self.directories:
            directory.close()


def _parse(name: str) -> TopicPartition | None:
    topic, dash, partition = name.rpartition("-")
    if not topic or not dash or not partition.isdecimal():
        return None
    return TopicPartition(topic, int(partition))


def _set_aside(name: str, kind: str) -> TopicPartition | None:
    """The partition of ``topic-0.<32 hex digits>`` with ``kind`` behind; None for other names."""
    plain, _, mark = name.removesuffix(kind).rpartition(".")
    if not name.endswith(kind) or len(mark) != 32 or not set(mark) <= _HEX_DIGITS:
        return None
    return _parse(plain)


def _removal(folder: Path) -> Job:
    return lambda: remove_folder(folder)


def _open_files_max() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return OPEN_FILES_MAX if soft == resource.RLIM_INFINITY else min(soft // 4, OPEN_FILES_MAX)


__all__ = ["LogDirectory", "LogManager"]
