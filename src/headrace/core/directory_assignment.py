"""Which log directory of this broker holds each partition, as the coordination tree records it.

A partition without a directory may be on a disk that is offline. If it were created again
elsewhere, it would be empty, and there would be two copies when the disk is back. So its log
directory is recorded before the partition is created. As in Kafka, a log directory is known by the
``directory.id`` of its ``meta.properties``, not by its path. At a start:

    the partition has a directory            it is served from there, whatever the tree says
    none, and its log directory is online    created again: a crash came first, or it was removed
    none, its log directory is not online    offline, until a start with that log directory
    none, and never recorded                 created again, unless a log directory is offline

An empty log directory that held partitions before (a mount point without its disk, or a new disk)
is not used until these are accounted for: brought back, deleted, or given up by an unclean
election. Kafka refuses to start with such a directory until it is formatted, and then creates the
partitions again. A member of a cluster whose log directories are all new is another machine: it
forgets the assignment, and fetches its partitions from their leaders
(``broker.member_directories``).

A topic that is deleted while one of its log directories is not online leaves a note of its id until
that directory is back and its partition directories are deleted. Without the note they would be
adopted as a topic that the tree has lost. This includes log directories that fail at run time, and
directories that hold only the unfinished copy of a move.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, Self

from headrace.model.cluster_metadata import PartitionState, TopicDirectories, TopicState
from headrace.model.ids import TopicId, TopicPartition


class LoadedAssignment(NamedTuple):
    paths: dict[str, str]  # where each log directory was last seen, by directory.id
    topics: dict[str, TopicDirectories]


class AssignmentChange(NamedTuple):
    """What to remember from now on. None, or no directory, deletes an entry."""

    topics: Mapping[str, TopicDirectories | None]
    pending_deletions: Mapping[TopicId, Collection[str]] = {}


class DirectoryAssignment:
    """The assignment in the tree. ``replay`` a change once the tree has accepted it."""

    def __init__(
        self,
        loaded: LoadedAssignment,
        deleted: Mapping[TopicId, set[str]],
        online: Callable[[], Collection[str]],
    ) -> None:
        """``online`` returns the ids of the directories that are online at the moment."""
        self._paths = loaded.paths
        self._topics = loaded.topics
        self._deleted = dict(deleted)
        self._online = online
        self._offline: set[TopicPartition] = set()  # their directory was not online at the start

    @classmethod
    def empty(cls, online: Callable[[], Collection[str]]) -> Self:
        """Before anything is loaded."""
        return cls(LoadedAssignment({}, {}), {}, online)

    def _of(self, topic: TopicState) -> Mapping[int, str]:
        known = self._topics.get(topic.name)
        return known.directories if known and known.topic_id == topic.topic_id else {}

    def directory_of(self, topic_id: TopicId, topic_partition: TopicPartition) -> str | None:
        """Where a partition is recorded to be; None if it never was."""
        known = self._topics.get(topic_partition.topic)
        if known is None or known.topic_id != topic_id:
            return None
        return known.directories.get(topic_partition.partition)

    def decide_settled(
        self, topics: Mapping[str, TopicState], found: Mapping[TopicPartition, str]
    ) -> AssignmentChange:
        """At a start: partitions are where they were ``found``; deleted topics are forgotten."""
        assigned: dict[str, TopicDirectories | None] = {
            name: None for name in self._topics if name not in topics
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
        """Partitions of ``topics`` are about to be created in, or moved to, these directories."""
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

    def decide_left(self, topic: TopicState, partitions: Collection[int]) -> AssignmentChange:
        """These partitions were reassigned to other brokers, and their logs are deleted."""
        left = {p: place for p, place in self._of(topic).items() if p not in partitions}
        return AssignmentChange({topic.name: TopicDirectories(topic.topic_id, left)})

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
                self._topics.pop(name, None)
            else:
                self._topics[name] = directories
        for topic_id, away in change.pending_deletions.items():
            self._deleted[topic_id] = set(away)

    def find_offline(
        self, topics: Iterable[TopicState], without_directory: Sequence[PartitionState], failed: str
    ) -> dict[TopicPartition, str]:
        """The partitions that must not be created again, and where they are instead.

        ``without_directory`` are the partitions without a directory; ``failed`` names the log
        directories that are offline, if any.
        """
        by_topic = {topic.name: self._of(topic) for topic in topics}
        online = self._online()
        places: dict[TopicPartition, str] = {}
        for state in without_directory:
            directory_id = by_topic[state.topic].get(state.partition)
            if directory_id in online or (directory_id is None and not failed):
                continue
            places[state.topic_partition] = (
                failed if directory_id is None else self._name(directory_id)
            )
        self._offline |= places.keys()
        return places

    def is_offline(self, topic_partition: TopicPartition) -> bool:
        """Whether the partition's directory was not online at the start."""
        return topic_partition in self._offline

    def abandon(self, topic_partition: TopicPartition) -> None:
        """Give up the offline directory of a partition, which gets another one."""
        self._offline.discard(topic_partition)

    def has_lost(
        self, topics: Iterable[TopicState], without_directory: Iterable[PartitionState]
    ) -> bool:
        """Whether a partition without a directory was in a log directory that is online."""
        by_topic = {topic.name: self._of(topic) for topic in topics}
        online = self._online()
        return any(by_topic[s.topic].get(s.partition) in online for s in without_directory)

    def _name(self, directory_id: str) -> str:
        path = self._paths.get(directory_id)
        return f"{path} (directory.id {directory_id})" if path else f"directory.id {directory_id}"
