"""In which of ``log.dirs`` each partition of this broker lies, as the tree remembers it.

A partition without a folder may lie on a disk that is away. Created again elsewhere it would be
empty, and there would be two of it when the disk is back. So its directory is written down
before its folder is made; as in Kafka it is known by the ``directory.id`` of its
``meta.properties``, not by its path. At a start:

    it has a folder                          it lies there, whatever the tree says
    no folder, its directory is online       created again: a crash came first, or it was removed
    no folder, its directory is not online   offline, until a start with that directory
    no folder, never written down            created, unless a directory is offline

An empty folder where partitions lay (a mount point without its disk, or a new disk) is not used
until they are accounted for: brought back, deleted, or given up by an unclean election. Kafka
refuses to start with such a folder until it is formatted, and then creates them again.

A topic that is deleted while one of its directories is not online leaves a note of its id until
that directory is back and its partition directories are deleted: without it they would be adopted
as a topic that the tree has lost. This includes directories that fail at run time, and those that
hold only the unfinished copy of a move.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from headrace.coordination.directories import AssignmentChange, LoadedAssignment
from headrace.model.cluster_metadata import PartitionState, TopicDirectories, TopicState
from headrace.model.ids import TopicId, TopicPartition

log = logging.getLogger("headrace.controller")

_NAMED_MAX = 5  # partitions in one log line


class DirectoryAssignment:
    """What was written. ``replay`` a change once the tree has taken it."""

    def __init__(
        self,
        loaded: LoadedAssignment,
        deleted: Mapping[TopicId, set[str]],
        online: Callable[[], Collection[str]],
    ) -> None:
        """``online`` returns the ids of the directories that are online at the moment."""
        self._paths = loaded.paths
        self._directory_assignment = loaded.topics
        self._deleted = dict(deleted)
        self._online = online
        self.offline: set[TopicPartition] = set()  # their directory was not online at the start

    def _of(self, topic: TopicState) -> Mapping[int, str]:
        known = self._directory_assignment.get(topic.name)
        return known.directories if known and known.topic_id == topic.topic_id else {}

    def decide_settled(
        self, topics: Mapping[str, TopicState], found: Mapping[TopicPartition, str]
    ) -> AssignmentChange:
        """A start: partitions lie where they were ``found``; what is no more is forgotten."""
        assigned: dict[str, TopicDirectories | None] = {
            name: None for name in self._directory_assignment if name not in topics
        }
        for topic in topics.values():
            seen = {
                state.partition: found[state.topic_partition]
                for state in topic.partitions
                if state.topic_partition in found
            }
            before = self._of(topic)
            if (now := {**before, **seen}) != before:
                assigned[topic.name] = TopicDirectories(topic.topic_id, now)
        online = set(self._online())
        left = {topic_id: away - online for topic_id, away in self._deleted.items()}
        return AssignmentChange(
            assigned, {i: away for i, away in left.items() if away != self._deleted[i]}
        )

    def decide_placed(
        self, topics: Iterable[TopicState], placed: Mapping[TopicPartition, str]
    ) -> AssignmentChange:
        """Partitions of ``topics`` are about to be made in these directories, or moved there."""
        new: dict[str, dict[int, str]] = {}
        for (name, partition), directory_id in placed.items():
            new.setdefault(name, {})[partition] = directory_id
        return AssignmentChange(
            {
                topic.name: TopicDirectories(topic.topic_id, {**self._of(topic), **new[topic.name]})
                for topic in topics
                if topic.name in new
            }
        )

    def decide_forgotten(
        self, topics: Iterable[TopicState], copies: Mapping[TopicId, Collection[str]]
    ) -> AssignmentChange:
        """``topics`` are deleted; directories that are not online must delete them later.

        ``copies`` are the directories with unfinished copies of their partitions. Ask after the
        logs were deleted: a directory may fail at that.
        """
        online = set(self._online())
        return AssignmentChange(
            {topic.name: None for topic in topics},
            {
                topic.topic_id: away
                for topic in topics
                if (away := {*self._of(topic).values(), *copies[topic.topic_id]} - online)
            },
        )

    def replay(self, change: AssignmentChange) -> None:
        for name, directories in change.topics.items():
            if directories is None:
                self._directory_assignment.pop(name, None)
            else:
                self._directory_assignment[name] = directories
        for topic_id, away in change.pending_deletions.items():
            self._deleted[topic_id] = set(away)

    def find_offline(
        self, topics: Iterable[TopicState], without_directory: Sequence[PartitionState], failed: str
    ) -> dict[TopicPartition, str]:
        """Those of ``without_directory`` that must not be created again, and where they are instead.

        ``failed`` names the log directories that are offline, if any.
        """
        online = self._online()
        by_topic = {topic.name: self._of(topic) for topic in topics}
        away: dict[TopicPartition, str] = {}
        by_place: dict[str, list[TopicPartition]] = {}
        for state in without_directory:
            directory_id = by_topic[state.topic].get(state.partition)
            if directory_id in online or (directory_id is None and not failed):
                continue
            place = failed if directory_id is None else self._name(directory_id)
            away[state.topic_partition] = f"it lies in {place}, which is away"
            by_place.setdefault(place, []).append(state.topic_partition)
        for place, partitions in by_place.items():
            log.error(
                "%s is away, and with it %d partitions (%s%s). They answer KAFKA_STORAGE_ERROR, "
                "the others are served. Mount the disk or put its folder back into log.dirs, and "
                "restart the broker. If it is lost for good, delete these topics, or let the "
                "partitions start empty with an unclean leader election",
                place,
                len(partitions),
                ", ".join(map(str, partitions[:_NAMED_MAX])),
                ", …" if len(partitions) > _NAMED_MAX else "",
            )
        self.offline |= away.keys()
        return away

    def _name(self, directory_id: str) -> str:
        path = self._paths.get(directory_id)
        return f"{path} (directory.id {directory_id})" if path else f"directory.id {directory_id}"
