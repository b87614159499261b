"""The offsets that a log directory keeps in Kafka's checkpoint files.

For each partition: recovery point, high watermark, log start, and the end of the cleaned part. An
outdated offset is harmless, except a log start beyond the end of a new log (``remove_log_start``).
"""

import logging
from collections.abc import Callable
from pathlib import Path

from headrace.model.errors import Corrupt
from headrace.model.ids import Offset, TopicPartition
from headrace.storage import checkpoint
from headrace.storage.background import Job
from headrace.world.files import SystemFiles
from headrace.world.locks import Lock

_log = logging.getLogger("headrace.storage")


class CheckpointedOffsets:
    """``set_`` and ``drop`` change what the next ``write_job`` writes."""

    def __init__(
        self, files: SystemFiles, directory: Path, on_failure: Callable[[OSError], object]
    ) -> None:
        self._files = files
        self._directory = directory
        self._on_failure = on_failure
        self._recovery_points: dict[TopicPartition, Offset] = {}
        self._high_watermarks: dict[TopicPartition, Offset] = {}
        self._log_starts: dict[TopicPartition, Offset] = {}
        self._cleaned_ends: dict[TopicPartition, Offset] = {}
        self.knows_recovery_points = True  # False if their file was damaged
        self._written: dict[str, dict[TopicPartition, Offset]] = {}  # file name -> its content
        self._writing = Lock()
        self._job_count = 0
        self._newest_written = 0  # job that wrote last: an older job must not overwrite its files

    def load(self) -> None:
        """Read the files. Raises OSError."""
        self._recovery_points = self._read(checkpoint.RECOVERY_POINTS)
        self._high_watermarks = self._read(checkpoint.HIGH_WATERMARKS)
        self._log_starts = self._read(checkpoint.LOG_STARTS)
        self._cleaned_ends = self._read(checkpoint.CLEANER_OFFSETS)
        if self._log_starts:
            self._written[checkpoint.LOG_STARTS] = dict(self._log_starts)
        if self._recovery_points:
            self._written[checkpoint.RECOVERY_POINTS] = dict(self._recovery_points)

    def _read(self, name: str) -> dict[TopicPartition, Offset]:
        try:
            return checkpoint.read_offsets(self._files, self._directory / name)
        except Corrupt as problem:
            # Every entry has a safe default: the start checks more, but nothing is lost.
            _log.warning("%s. Ignoring the file; it will be rewritten", problem)
            self.knows_recovery_points &= name != checkpoint.RECOVERY_POINTS
            return {}

    # --- queries

    def recovery_point(self, topic_partition: TopicPartition) -> Offset:
        return self._recovery_points.get(topic_partition, Offset(0))

    def is_recovery_point_written(self, topic_partition: TopicPartition, least: Offset) -> bool:
        """Whether a recovery point of ``least`` or more was written to the file."""
        written = self._written.get(checkpoint.RECOVERY_POINTS, {})
        return written.get(topic_partition, Offset(0)) >= least

    def high_watermark(self, topic_partition: TopicPartition) -> Offset | None:
        return self._high_watermarks.get(topic_partition)

    def log_start(self, topic_partition: TopicPartition) -> Offset | None:
        return self._log_starts.get(topic_partition)

    def cleaned_end(self, topic_partition: TopicPartition) -> Offset | None:
        return self._cleaned_ends.get(topic_partition)

    # --- changes

    def set_log(
        self, topic_partition: TopicPartition, recovery_point: Offset, log_start: Offset | None
    ) -> None:
        """``log_start`` is None if it is the base offset of the first segment."""
        self._recovery_points[topic_partition] = recovery_point
        if log_start is not None:
            self._log_starts[topic_partition] = log_start
        else:
            self._log_starts.pop(topic_partition, None)

    def set_recovery_point(self, topic_partition: TopicPartition, offset: Offset) -> None:
        self._recovery_points[topic_partition] = offset

    def set_high_watermark(self, topic_partition: TopicPartition, offset: Offset) -> None:
        self._high_watermarks[topic_partition] = offset

    def set_cleaned_end(self, topic_partition: TopicPartition, offset: Offset) -> None:
        self._cleaned_ends[topic_partition] = offset

    def drop(self, topic_partition: TopicPartition) -> None:
        """Forget the offsets in memory; the next job removes them from disk."""
        for known in (
            self._recovery_points,
            self._high_watermarks,
            self._log_starts,
            self._cleaned_ends,
        ):
            known.pop(topic_partition, None)

    def forget(self, topic_partition: TopicPartition) -> None:
        """A new topic with an old name must not inherit its offsets, not even after a crash."""
        self.drop(topic_partition)
        self.remove_log_start(topic_partition)

    # --- files

    def write_job(self) -> Job:
        """A job that writes the files with the current offsets; for any thread."""
        files = (
            (checkpoint.RECOVERY_POINTS, dict(self._recovery_points)),
            (checkpoint.HIGH_WATERMARKS, dict(self._high_watermarks)),
            (checkpoint.LOG_STARTS, dict(self._log_starts)),
            (checkpoint.CLEANER_OFFSETS, dict(self._cleaned_ends)),
        )
        self._job_count += 1
        number = self._job_count

        def write() -> None:
            try:
                with self._writing:
                    if number < self._newest_written:
                        return
                    self._newest_written = number
                    for name, offsets in files:
                        if offsets != self._written.get(name):
                            checkpoint.write_offsets(self._files, self._directory / name, offsets)
                            self._written[name] = offsets
            except OSError as error:
                self._on_failure(error)

        return write

    def lower_recovery_point(self, topic_partition: TopicPartition, end_offset: Offset) -> None:
        """The log was truncated: write that now, not with the next job, if it makes a difference.

        After a power failure, recovery would not check what is written there next.
        """
        written = self._written.get(checkpoint.RECOVERY_POINTS, {}).get(topic_partition, 0)
        if max(written, self.recovery_point(topic_partition)) > end_offset:
            self._recovery_points[topic_partition] = end_offset
            self.write_job()()  # a job with older offsets that comes later does nothing

    def remove_log_start(self, topic_partition: TopicPartition) -> None:
        """Remove a partition from the log start file now, not with the next job.

        A log start beyond the end of a new log would cost all its records; the other offsets only
        cost time. Waits for a job that is writing.
        """
        with self._writing:
            on_disk = self._written.get(checkpoint.LOG_STARTS, {})
            if topic_partition not in on_disk:
                return
            self._job_count += 1
            self._newest_written = self._job_count
            left = {name: offset for name, offset in on_disk.items() if name != topic_partition}
            # Without fsync: a power failure takes the new records as well.
            path = self._directory / checkpoint.LOG_STARTS
            checkpoint.write_offsets(self._files, path, left, sync=False)
            self._written[checkpoint.LOG_STARTS] = left
