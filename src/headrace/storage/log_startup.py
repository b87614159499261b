"""Opening all partition directories at a start, and settling moves that a shutdown interrupted.

A ``-future`` directory is the copy of a move between log directories (``log_move``). If the
partition has its own directory too, the copy was not finished: the move resumes. If not, the
shutdown came after the switch, and the copy is the log.
"""

import logging
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

from headrace.model.errors import ConfigError, Corrupt
from headrace.model.ids import TopicId, TopicPartition
from headrace.storage import checkpoint
from headrace.storage.directory_names import DELETE, FUTURE, STRAY, parse, parse_marked
from headrace.storage.files import ONE_FILE_ERRNOS
from headrace.storage.log import Log
from headrace.storage.log_copy import mark_incomplete, was_nearly_complete
from headrace.storage.log_directory import LogDirectory

_log = logging.getLogger("headrace.storage")

_METADATA_LOG = "__cluster_metadata"  # KRaft's log, which is not a topic

OpenLog = Callable[[LogDirectory, Path, TopicPartition], Log]


class FutureCopy(NamedTuple):
    """The copy of a move, found at a start."""

    directory: LogDirectory
    path: Path
    modified_at: int  # nanoseconds; when a file was last added or removed
    is_nearly_complete: bool


class LogStartup:
    """Opens the partitions of all log directories; ``run`` it once."""

    def __init__(
        self,
        directories: Iterable[LogDirectory],
        open_log: OpenLog,
        deleted_ids: Collection[TopicId],
    ) -> None:
        """``deleted_ids`` are topics deleted while a disk was offline: delete what is left."""
        self._directories = directories
        self._open_log = open_log
        self._deleted_ids = deleted_ids
        self.logs: dict[TopicPartition, Log] = {}
        self.offline: dict[TopicPartition, str] = {}  # partitions that cannot be served, and why
        self.unfinished_moves: dict[TopicPartition, FutureCopy] = {}
        self.copies: dict[TopicPartition, list[FutureCopy]] = {}  # in the end: of offline ones

    def run(self) -> None:
        for directory in self._directories:
            if directory.offline is None:
                try:
                    self._open_directory(directory)
                except OSError as error:
                    directory.take_offline(str(error))
        for topic_partition in list(self.copies):
            self._settle_copies(topic_partition)
        online = {each.directory_id for each in self._directories if each.offline is None}
        for opened in self.logs.values():
            opened.copies.not_found_in(online)
        for topic_partition, copy in self.unfinished_moves.items():
            self.logs[topic_partition].copies.add(copy.path, copy.directory.directory_id)

    def _open_directory(self, directory: LogDirectory) -> None:
        files = directory.files
        for name in files.directories_in(directory.path):
            path = directory.path / name
            if parse_marked(name, STRAY):
                _log.warning(
                    "%s was set aside: the cluster did not know its topic. Delete the directory "
                    "if its records are not needed",
                    path,
                )
                continue
            if parse_marked(name, DELETE):
                _log.info("Deleting %s, which was pending deletion at shutdown", path)
                directory.later(0, partial(files.remove_tree, path))
                continue
            copied = parse_marked(name, FUTURE)
            topic_partition = copied or parse(name)
            if topic_partition is None:
                _log.warning(
                    "Ignoring %s: not a partition directory. Remove it from the log directory", path
                )
                continue
            if topic_partition.topic == _METADATA_LOG:
                continue
            if self._deleted_ids and self._is_deleted(directory, path):
                _log.info("Deleting %s: its topic was deleted while this disk was offline", path)
                directory.delete_partition(path, topic_partition)
                continue
            if copied:  # settled when the content of all directories is known
                modified_at = files.stat(path).modified_at_ns
                copy = FutureCopy(directory, path, modified_at, was_nearly_complete(files, path))
                self.copies.setdefault(copied, []).append(copy)
                continue
            self._open(directory, path, topic_partition)

    def _open(self, directory: LogDirectory, path: Path, topic_partition: TopicPartition) -> None:
        if topic_partition in self.logs:
            raise ConfigError(
                f"{topic_partition} is in both {self.logs[topic_partition].path} and "
                f"{path}: remove the one that is out of date"
            )
        try:
            self.logs[topic_partition] = self._open_log(directory, path, topic_partition)
        except (Corrupt, OSError) as problem:
            if isinstance(problem, OSError) and problem.errno not in ONE_FILE_ERRNOS:
                raise
            _log.error(
                "%s stays offline: %s. Repair it and restart the broker", topic_partition, problem
            )
            self.offline[topic_partition] = str(problem)

    def _is_deleted(self, directory: LogDirectory, path: Path) -> bool:
        with suppress(Corrupt, OSError):
            topic_id = checkpoint.read_topic_id(
                directory.files, f"{path}/{checkpoint.PARTITION_METADATA}"
            )
            return topic_id in self._deleted_ids
        return False

    # -- moves ----------------------------------------------------------------------------

    def _settle_copies(self, topic_partition: TopicPartition) -> None:
        """Finish the move of a partition, or keep its copy for resuming.

        There are several copies if the process was killed after the operator had changed the
        target, or had requested another move before the last one ended: the youngest copy shows
        the last request, the others are deleted.
        """
        youngest = max(self.copies[topic_partition], key=lambda copy: copy.modified_at)
        if topic_partition not in self.logs and topic_partition not in self.offline:
            self._finish_move(topic_partition)
        if topic_partition in self.offline:
            return  # keep the copies: the log cannot be read now, and they may be needed
        opened = self.logs[topic_partition]
        for copy in self.copies.pop(topic_partition):
            try:
                if copy is youngest and copy.directory is not opened.directory:
                    mark_incomplete(copy.directory.files, copy.path)
                    self.unfinished_moves[topic_partition] = copy
                else:
                    _log.info("%s: deleting an unfinished copy", copy.path)
                    copy.directory.delete_partition(copy.path, topic_partition)
            except OSError as error:
                copy.directory.take_offline(str(error))

    def _finish_move(self, topic_partition: TopicPartition) -> None:
        """Open the copy that has become the log; if there is none, the partition is offline."""
        copies = self.copies[topic_partition]
        complete = [copy for copy in copies if copy.is_nearly_complete]
        if len(complete) != 1 or any(
            each.offline is not None or each.is_new for each in self._directories
        ):
            # The log itself may be on a disk that is not mounted; the copy may be half of it.
            paths = ", ".join(str(copy.path) for copy in copies)
            _log.error(
                "%s: %s, and the log itself is in none of the directories. The partition stays "
                "offline until a start with the previous directories%s",
                paths,
                "an unfinished copy" if len(copies) == 1 else "unfinished copies",
                ", or with one copy alone" if len(complete) > 1 else "",
            )
            self.offline[topic_partition] = f"only an unfinished copy of it is here, {paths}"
            return
        (copy,) = complete
        try:
            plain = copy.directory.path / str(topic_partition)
            copy.directory.files.rename(copy.path, plain)
            _log.info("%s: finished a move that a shutdown interrupted", plain)
            self._open(copy.directory, plain, topic_partition)
        except OSError as error:
            copy.directory.take_offline(str(error))
            self.offline[topic_partition] = str(error)
        copies.remove(copy)
