"""All logs of a broker, in all its ``log.dirs``.

Each log directory holds one directory per partition (``directory_names``) and Kafka's checkpoint
files. If its disk fails, the log directory goes offline alone: its partitions answer
KAFKA_STORAGE_ERROR, the others continue.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from headrace.model.config import TopicConfig
from headrace.model.errors import ErrorCode, Rejected
from headrace.model.ids import Millis, Offset, TopicId, TopicPartition
from headrace.storage import checkpoint
from headrace.storage.background import Background, Job
from headrace.storage.files import OpenFiles
from headrace.storage.log import Log
from headrace.storage.log_directories import LogDirectories
from headrace.storage.log_directory import LogDirectory
from headrace.storage.log_loader import load_log
from headrace.storage.log_startup import FutureCopy, LogStartup
from headrace.storage.segment import Resources
from headrace.storage.segment_indexes import IndexCache
from headrace.world.files import SystemFiles
from headrace.world.world import World

OPEN_FILES_MAX = 2000
REBUILT_AT_ONCE_MAX = 1 << 20  # bytes of a segment; some milliseconds
# With more changed segments than this, one sync of everything is cheaper than an fsync per file.
FSYNC_EACH_COUNT_MAX = 32


class LogManager:
    def __init__(
        self,
        paths: Sequence[Path | str],
        *,
        world: World,
        node_id: int,
        config_of: Callable[[str], TopicConfig],
        cluster_id: str | None = None,
        later: Callable[[int, Job], None] | None = None,
        open_files_max: int | None = None,
        producer_expiration_ms: int = 86_400_000,
        on_zookeeper: bool = False,
    ) -> None:
        """``config_of`` returns the settings of a topic. ``later`` runs a job in a thread, after a
        delay in milliseconds; without it, the running event loop does (``background``).
        For the others see ``LogDirectories``."""
        self._world = world
        self._files = world.files
        self.config_of = config_of
        self._producer_expiration_ms = producer_expiration_ms
        self._background = None
        self._has_met_bug = False
        self._on_bug: Callable[[Exception], None] = lambda error: None
        self._on_offline: Callable[[LogDirectory], None] = lambda directory: None
        if later is None:
            self._background = Background(self._met_bug)
            later = self._background.later
        self._later = later
        open_files = OpenFiles(open_files_max or _open_files_max(world.files))
        self.resources = Resources(world.files, open_files, IndexCache())
        self.directories = LogDirectories(
            [
                LogDirectory(Path(path), world, self.resources, later, self._went_offline)
                for path in paths
            ],
            world.files,
            node_id=node_id,
            cluster_id=cluster_id,
            on_zookeeper=on_zookeeper,
        )
        self._logs: dict[TopicPartition, Log] = {}
        self._offline: dict[TopicPartition, str] = {}  # partitions that cannot be served, and why
        # Moves that the last shutdown interrupted, and their copies.
        self.unfinished_moves: dict[TopicPartition, FutureCopy] = {}
        self._copies: dict[TopicPartition, list[FutureCopy]] = {}  # of offline partitions
        self._places: dict[TopicPartition, LogDirectory] = {}  # of logs that ``create`` makes next

    def report_to(
        self, on_offline: Callable[[LogDirectory], None], on_bug: Callable[[Exception], None]
    ) -> None:
        """Report log directories that go offline, and bugs of background jobs; also in threads."""
        self._on_offline, self._on_bug = on_offline, on_bug

    # -- opening --------------------------------------------------------------------------

    def open_all(self, now: Millis, deleted_ids: Collection[TopicId] = ()) -> None:
        """Open every partition directory, and lock the log directories if they are not locked.

        Directories of ``deleted_ids`` belong to topics that were deleted while their disk was
        offline: they are deleted now.
        """
        if not self.directories.are_locked:
            self.directories.lock()

        def open_log(directory: LogDirectory, path: Path, topic_partition: TopicPartition) -> Log:
            return load_log(
                directory,
                path,
                topic_partition,
                self.config_of(topic_partition.topic),
                now,
                producer_expiration_ms=self._producer_expiration_ms,
            )

        startup = LogStartup(self.directories, open_log, deleted_ids)
        self._logs, self._offline = startup.logs, startup.offline
        self.unfinished_moves, self._copies = startup.unfinished_moves, startup.copies
        startup.run()
        # From now on the event loop must not be blocked for long.
        self.resources.indexes.rebuildable_size_max = REBUILT_AT_ONCE_MAX
        for directory in self.directories.online():
            try:
                directory.started()
            except OSError as error:
                directory.take_offline(str(error))

    # -- logs -----------------------------------------------------------------------------

    def get(self, topic_partition: TopicPartition) -> Log | None:
        return self._logs.get(topic_partition)

    def __iter__(self) -> Iterator[Log]:
        return iter(list(self._logs.values()))

    def __len__(self) -> int:
        return len(self._logs)

    def high_watermark(self, topic_partition: TopicPartition) -> Offset:
        """The last checkpointed high watermark; the log start if there is none."""
        found = self._logs[topic_partition]
        known = found.directory.offsets.high_watermark(topic_partition)
        if known is None:
            return found.log_start
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
        """Create a log: in its chosen log directory, or in the one with the fewest logs."""
        assert topic_partition not in self._logs, f"{topic_partition} exists"
        if topic_partition in self._offline:
            raise Rejected(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"{topic_partition} could not be opened: {self._offline[topic_partition]}",
            )
        place = self._places.pop(topic_partition, None)
        directory = directory or place or next(self._emptiest())
        if directory.offline is not None:  # it failed after it was chosen
            raise Rejected(
                ErrorCode.KAFKA_STORAGE_ERROR, f"{directory.path} is offline: {directory.offline}"
            )
        path = directory.path / str(topic_partition)
        is_new = False
        try:
            directory.offsets.forget(topic_partition)
            is_new = _make_directory(directory, path)
            created = load_log(
                directory,
                path,
                topic_partition,
                config,
                self._world.now() if now is None else now,
                topic_id=topic_id,
                is_new=is_new,
                producer_expiration_ms=self._producer_expiration_ms,
            )
        except OSError as error:
            if not isinstance(error, NotADirectoryError):  # a file with the directory's name
                directory.failed(error)
            if is_new:  # a partial directory would outlive even the topic
                with suppress(OSError):
                    directory.delete_partition(path, topic_partition)
            raise Rejected(
                ErrorCode.KAFKA_STORAGE_ERROR, f"{path} could not be created: {error.strerror}"
            ) from error
        self._logs[topic_partition] = created
        return created

    def set_producer_expiration(self, expiration_ms: int) -> None:
        """Change producer.id.expiration.ms of all logs, also of those created later."""
        self._producer_expiration_ms = expiration_ms
        for log in self:
            log.producers.expiration_ms = expiration_ms

    def place(self, topic_partitions: Iterable[TopicPartition]) -> dict[TopicPartition, str]:
        """Choose log directories for logs that ``create`` makes next; returns their ids."""
        emptiest = self._emptiest()
        chosen = {each: next(emptiest) for each in topic_partitions}
        self._places |= chosen
        return {each: directory.directory_id for each, directory in chosen.items()}

    def _emptiest(self) -> Iterator[LogDirectory]:
        """Yields where to put one log after the other, so that all directories fill evenly."""
        counts = dict.fromkeys(self.directories.online(), 0)
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
        """Delete a log: rename its directory now, remove its files after file.delete.delay.ms."""
        deleted = self._logs.pop(topic_partition, None)
        self._places.pop(topic_partition, None)
        if self._offline.pop(topic_partition, None) is not None:
            self._delete_offline(topic_partition)
        if deleted is not None:
            # Rename the directory first: writing a checkpoint fails on a full disk, and a log that
            # keeps its name would be back after the next start.
            for step in (
                partial(_mark_for_deletion, deleted),
                partial(deleted.directory.offsets.forget, topic_partition),
            ):
                try:
                    step()
                except OSError as error:
                    deleted.directory.partition_failed(error)

    def set_aside(self, topic_partition: TopicPartition) -> Path | None:
        """Close a log and rename its directory (``-stray``); None if the disk refuses."""
        stray = self._logs.pop(topic_partition)
        try:
            stray.close()
            stray.path = stray.directory.set_aside(stray.path, topic_partition)
            stray.directory.offsets.forget(topic_partition)
        except OSError as error:
            stray.directory.partition_failed(error)
            self._offline[topic_partition] = f"its stray directory could not be renamed: {error}"
            return None
        return stray.path

    def _delete_offline(self, topic_partition: TopicPartition) -> None:
        """A partition that could not be opened must not be opened at the next start either."""
        for directory in self.directories.online():
            with suppress(OSError):
                path = directory.path / str(topic_partition)
                directory.delete_partition(path, topic_partition)
            with suppress(OSError):
                directory.offsets.forget(topic_partition)
        for copy in self._copies.pop(topic_partition, ()):
            with suppress(OSError):
                copy.directory.delete_partition(copy.path, topic_partition)

    # -- health ---------------------------------------------------------------------------

    def mark_offline(self, topic_partition: TopicPartition, reason: str) -> None:
        """This partition cannot be served. A restart or its deletion ends that."""
        self._offline[topic_partition] = reason

    def abandon_offline(self, topic_partition: TopicPartition) -> None:
        """Let ``create`` make this partition again, though an offline directory has its log."""
        self._offline.pop(topic_partition, None)

    def offline_reason(self, topic_partition: TopicPartition) -> str | None:
        """Why a partition has no log here, or None."""
        return self._offline.get(topic_partition)

    def offline_partitions(self) -> list[TopicPartition]:
        return list(self._offline)

    def copy_directory_ids(self, topic_partition: TopicPartition) -> set[str]:
        """Ids of log directories with copies of a log, which a move has not finished.

        They include directories that are not online; a caller that deletes the log must remember
        those.
        """
        found = self._logs.get(topic_partition)
        return set() if found is None else set(found.copies.directory_ids)

    def take_unfinished_move(self, topic_partition: TopicPartition) -> FutureCopy:
        """The copy of a move that the last shutdown interrupted, for the caller to resume."""
        return self.unfinished_moves.pop(topic_partition)

    def _met_bug(self, error: Exception) -> None:
        """Called by the thread of a background job, also while a shutdown waits."""
        self._has_met_bug = True
        self._on_bug(error)

    def _went_offline(self, directory: LogDirectory) -> None:
        self._on_offline(directory)

    # -- checkpoints and the end ----------------------------------------------------------

    def checkpoint(self, high_watermarks: Mapping[TopicPartition, Offset] | None = None) -> None:
        """Write the checkpoint files with the current offsets."""
        for each in self._logs.values():
            self.note_offsets(each, (high_watermarks or {}).get(each.topic_partition))
        for directory in self.directories.online():
            directory.offsets.write_job()()

    def note_offsets(self, log: Log, high_watermark: Offset | None) -> None:
        """Set the offsets of a log for the next checkpoint. An outdated note is harmless."""
        name, offsets = log.topic_partition, log.directory.offsets
        is_raised = log.log_start > log.segments.first_base_offset
        offsets.set_log(name, log.flusher.recovery_point, log.log_start if is_raised else None)
        if high_watermark is not None:
            offsets.set_high_watermark(name, high_watermark)

    def checkpoint_noted(self) -> None:
        """Write the checkpoint files, in the background, with the noted offsets."""
        for directory in self.directories.online():
            self._later(0, directory.offsets.write_job())

    def close_clean(
        self,
        high_watermarks: Mapping[TopicPartition, Offset] | None = None,
        *,
        broker_epoch: int = -1,
    ) -> None:
        """Flush and close every log, write checkpoints and the clean shutdown markers."""
        try:
            self._close_clean(high_watermarks, broker_epoch)
        finally:
            self.directories.unlock()

    def _close_clean(
        self, high_watermarks: Mapping[TopicPartition, Offset] | None, broker_epoch: int
    ) -> None:
        changed_count = sum(
            each.flusher.unflushed_segment_count
            for each in self._logs.values()
            if not each.is_settled
        )
        fsync_each = changed_count <= FSYNC_EACH_COUNT_MAX
        unclean: set[LogDirectory] = set()
        for each in list(self._logs.values()):
            try:
                each.close(sync=fsync_each)
            except OSError as error:
                unclean.add(each.directory)
                each.directory.failed(error)
        if self._background is not None:
            self._background.close()
        if not fsync_each:
            self._files.sync_all()
        self.checkpoint(high_watermarks)
        for directory in self.directories.online():
            # After a clean shutdown the next start would not report the losses to a controller.
            is_unreported = directory.may_have_lost_records
            if directory not in unclean and not is_unreported and not self._has_met_bug:
                marker = directory.path / checkpoint.CLEAN_SHUTDOWN
                try:
                    checkpoint.write_clean_shutdown(self._files, marker, broker_epoch)
                except OSError as error:
                    directory.failed(error)  # without the marker the next start checks more

    def abandon(self) -> None:
        """Release everything as a crash would: no flush, no checkpoint, no marker."""
        for each in list(self._logs.values()):
            each.abandon()
        if self._background is not None:
            self._background.close()
        self.directories.unlock()


def _make_directory(directory: LogDirectory, path: Path) -> bool:
    """Returns whether it is new."""
    try:
        directory.files.make_directory(path)
    except FileExistsError:
        return False
    return True


def _mark_for_deletion(log: Log) -> None:
    """Release a log and rename its directory; the files are removed later."""
    log.abandon()
    # The copies first: a start that finds only a copy takes it for the log.
    for copy in log.copies.paths:
        with suppress(OSError):
            log.directory.delete_partition(copy, log.topic_partition)
    log.path = log.directory.delete_partition(
        log.path, log.topic_partition, log.config.file_delete_delay_ms
    )


def _open_files_max(files: SystemFiles) -> int:
    limit = files.descriptors_max()
    return OPEN_FILES_MAX if limit is None else min(limit // 4, OPEN_FILES_MAX)


__all__ = ["LogDirectory", "LogManager"]
