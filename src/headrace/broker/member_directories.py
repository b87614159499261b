"""The partition directories of a member of a cluster: strays, missing ones, places of new ones.

In a cluster the tree is the truth. A directory whose topic the tree does not know, or whose
partition is not assigned to this broker, is set aside at the start and reported. While the broker
runs, files are deleted by the controller's StopReplica, or if its metadata and the tree say that
the partition was reassigned. The log directory of every partition is recorded
(``core.directory_assignment``), so that a missing disk is noticed at the next start.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from headrace.coordination.registry import Registry
from headrace.coordination.tree import SessionLost
from headrace.core.directory_assignment import (
    AssignmentChange,
    DirectoryAssignment,
    LoadedAssignment,
)
from headrace.core.topics import is_internal
from headrace.model.cluster_metadata import NO_LEADER, PartitionState, TopicState
from headrace.model.errors import Corrupt, Fenced, Rejected
from headrace.model.ids import (
    NO_LEADER_EPOCH,
    NO_TOPIC_ID,
    BrokerId,
    TopicId,
    TopicPartition,
)

if TYPE_CHECKING:
    from headrace.broker.tasks import BackgroundTasks
    from headrace.coordination.values import Assignment
    from headrace.storage.log_directory import LogDirectory
    from headrace.storage.log_manager import LogManager

_log = logging.getLogger("headrace.controller")

_NAMED_MAX = 5  # partitions in one log line
_ASK_AGAIN_S = 1.0


class MemberDirectories:
    """``settle`` it at the start, once the logs are open."""

    def __init__(
        self,
        registry: Registry,
        logs: "LogManager",
        broker_id: BrokerId,
        tasks: "BackgroundTasks",
    ) -> None:
        self._registry = registry
        self._logs = logs
        self._broker_id = broker_id
        self._tasks = tasks
        self._recording = asyncio.Lock()
        self._assignment = DirectoryAssignment.empty(self._online_ids)
        self.are_logs_missing = False  # log directories that are online have lost partitions
        self._has_known_directories = False  # those of this broker's last process, and no others

    async def load_pending_deletions(self) -> dict[TopicId, set[str]]:
        """Topics that were deleted while a log directory with some of their files was offline."""
        return await self._registry.directories.load_pending_deletions()

    async def settle(
        self, assignments: Mapping[str, "Assignment"], pending: Mapping[TopicId, set[str]]
    ) -> None:
        """Set stray directories aside, and find the partitions whose log directory is missing."""
        self._set_aside_strays(assignments)
        loaded = await self._registry.directories.load_assignment()
        in_use = {d for topic in loaded.topics.values() for d in topic.directories.values()}
        paths = {each.directory_id: str(each.path) for each in self._online()}
        self._has_known_directories = loaded.paths.keys() == paths.keys()
        is_replaced = self._is_replaced(loaded, paths)
        if is_replaced:
            loaded = LoadedAssignment({}, {})
        known = {i: path for i, path in loaded.paths.items() if i in in_use} | paths
        if known != loaded.paths:
            await self._registry.directories.store_paths(known)
        self._assignment = DirectoryAssignment(
            loaded._replace(paths=known), pending, self._online_ids
        )
        topics = {
            name: self._own_part(name, assignment) for name, assignment in assignments.items()
        }
        self._find_missing(topics)
        self.are_logs_missing = self.are_logs_missing or is_replaced
        found = {log.topic_partition: log.directory.directory_id for log in self._logs}
        await self._store(self._assignment.decide_settled(topics, found))

    def _is_replaced(self, loaded: LoadedAssignment, online: Mapping[str, str]) -> bool:
        """Whether this broker replaces a lost one with its id: a new machine, or all disks are new.

        Then it does not wait for old disks: it fetches its replicas again from their leaders.
        """
        has_logs = any(True for _ in self._logs)
        is_known = not online.keys().isdisjoint(loaded.paths)
        if has_logs or is_known or not loaded.topics or not self.are_all_online:
            return False
        _log.warning(
            "Broker %d starts with empty logs and fetches its partitions again: none of its log "
            "directories (%s) is known from before (%s). If disks are only not mounted, stop the "
            "broker and mount them",
            self._broker_id,
            ", ".join(online.values()),
            ", ".join(loaded.paths.values()),
        )
        return True

    def _set_aside_strays(self, assignments: Mapping[str, "Assignment"]) -> None:
        for log in self._logs:
            topic, partition = log.topic_partition
            assignment = assignments.get(topic)
            if assignment is None:
                reason = "the cluster has no topic of that name"
            elif log.topic_id not in (NO_TOPIC_ID, assignment.topic_id or NO_TOPIC_ID):
                reason = "it belongs to an earlier topic of that name"
            elif (
                partition >= len(assignment.replicas)
                or self._broker_id not in assignment.replicas[partition]
            ):
                reason = f"it is not assigned to broker {self._broker_id}"
            else:
                continue
            aside = self._logs.set_aside(log.topic_partition)
            if aside is not None:
                _log.warning(
                    "Set the directory of %s aside as %s, because %s. Delete the directory if its "
                    "records are not needed",
                    log.topic_partition,
                    aside,
                    reason,
                )

    def _own_part(self, name: str, assignment: "Assignment") -> TopicState:
        """A topic with the partitions that are assigned to this broker."""
        topic_id = assignment.topic_id or NO_TOPIC_ID
        states = [
            PartitionState(
                topic=name,
                partition=partition,
                topic_id=topic_id,
                leader=NO_LEADER,
                leader_epoch=NO_LEADER_EPOCH,
                isr=(),
                replicas=replicas,
                partition_epoch=-1,
            )
            for partition, replicas in enumerate(assignment.replicas)
            if self._broker_id in replicas
        ]
        return _topic(name, topic_id, states)

    def _find_missing(self, topics: Mapping[str, TopicState]) -> None:
        """Partitions in log directories that are not online must not be created elsewhere.

        Where the log directory is online, the logs are lost.
        """
        missing = [
            state
            for topic in topics.values()
            for state in topic.partitions
            if self._logs.get(state.topic_partition) is None
            and self._logs.offline_reason(state.topic_partition) is None
        ]
        failed = ", ".join(str(e.path) for e in self._logs.directories if e.offline is not None)
        places = self._assignment.find_offline(topics.values(), missing, failed)
        self.are_logs_missing = self._assignment.has_lost(topics.values(), missing)
        by_place: dict[str, list[TopicPartition]] = {}
        for topic_partition, place in places.items():
            self._logs.mark_offline(topic_partition, f"it is in {place}, which is not online")
            by_place.setdefault(place, []).append(topic_partition)
        for place, partitions in by_place.items():
            _log.error(
                "Log directory %s is offline; partitions offline: %d (%s%s). Other replicas take "
                "over. Mount the disk, or add its directory to log.dirs again, and restart the "
                "broker",
                place,
                len(partitions),
                ", ".join(map(str, partitions[:_NAMED_MAX])),
                ", …" if len(partitions) > _NAMED_MAX else "",
            )

    # --- changes while the broker runs

    def was_never_created(self, state: PartitionState) -> bool:
        """Whether a partition that this broker should lead has no records, although it is not new.

        This broker was its first leader and alone in the ISR, and ended before it created the
        log. No other broker may lead, so this one must create the log now. A broker that has lost
        the log must not: a leader with an empty log makes the followers drop their records. So
        there must be no sign of a log: the ISR never changed, no log directory is recorded, and
        the log directories are those of the last process.
        """
        return (
            state.leader == self._broker_id
            and state.isr == (self._broker_id,)
            and state.partition_epoch == state.leader_epoch
            and self._assignment.directory_of(state.topic_id, state.topic_partition) is None
            and self._has_known_directories
            and self.are_all_online
        )

    @property
    def are_all_online(self) -> bool:
        return len(self._online()) == len(list(self._logs.directories))

    def place(self, new: Sequence[PartitionState]) -> None:
        """Choose the log directories of partitions that are created next, and record them.

        The partitions do not wait for the record: a broker without its session must still obey
        the controller, and a partition that is not new is never created empty.
        """
        if new:
            placed = self._logs.place(state.topic_partition for state in new)
            topics = {state.topic: state.topic_id for state in new}
            self._record(
                lambda: self._assignment.decide_placed(
                    [_topic(name, topic_id, ()) for name, topic_id in topics.items()], placed
                )
            )

    def record_again(self) -> None:
        """Record what an earlier session has not recorded before it ended."""
        missing = {
            log.topic_partition: log.directory.directory_id
            for log in self._logs
            if self._assignment.directory_of(log.topic_id, log.topic_partition)
            != log.directory.directory_id
        }
        if missing:
            ids = {log.topic_partition.topic: log.topic_id for log in self._logs}
            topics = [
                _topic(name, ids[name], ()) for name in {each.topic: None for each in missing}
            ]
            self._record(lambda: self._assignment.decide_placed(topics, missing))

    async def moved(self, topic_partition: TopicPartition, directory_id: str) -> None:
        """Record that a partition is now in another log directory."""
        log = self._logs.get(topic_partition)
        if log is not None:
            topic = _topic(topic_partition.topic, log.topic_id, ())
            placed = {topic_partition: directory_id}
            self._record(lambda: self._assignment.decide_placed([topic], placed))

    def forget(self, topics: Mapping[str, TopicId]) -> None:
        """Topics of which this broker has deleted its last partition."""
        if topics:
            gone = [_topic(name, topic_id, ()) for name, topic_id in topics.items()]
            nothing: dict[TopicId, set[str]] = {topic.topic_id: set() for topic in gone}
            self._record(lambda: self._assignment.decide_forgotten(gone, nothing))

    def left(self, topic: str, topic_id: TopicId, partitions: Collection[int]) -> None:
        """This broker has deleted these partitions, and still has others of the topic."""
        state = _topic(topic, topic_id, ())
        self._record(lambda: self._assignment.decide_left(state, partitions))

    def delete_if_unassigned(
        self, topic_partition: TopicPartition, topic_id: TopicId, delete: Callable[[], None]
    ) -> None:
        """Call ``delete`` if the tree confirms that a partition is not assigned to this broker."""
        self._tasks.spawn(self._delete_if_unassigned(topic_partition, topic_id, delete))

    async def _delete_if_unassigned(
        self, topic_partition: TopicPartition, topic_id: TopicId, delete: Callable[[], None]
    ) -> None:
        store = self._registry.topics
        while True:
            try:
                if not await store.is_assigned(topic_partition, topic_id, self._broker_id):
                    delete()
                return
            except SessionLost:
                await asyncio.sleep(_ASK_AGAIN_S)
            except Corrupt as error:
                _log.error("%s. Keeping the files of %s", error, topic_partition)
                return

    def _record(self, decide: Callable[[], AssignmentChange]) -> None:
        self._tasks.spawn(self._record_in_turn(decide))

    async def _record_in_turn(self, decide: Callable[[], AssignmentChange]) -> None:
        async with self._recording:
            try:
                await self._store(decide())
            except (SessionLost, Fenced, Rejected) as problem:
                _log.warning(
                    "Could not record the log directories of partitions: %s. The next session "
                    "records them",
                    problem,
                )

    async def _store(self, change: AssignmentChange) -> None:
        await self._registry.directories.store(change)
        self._assignment.replay(change)

    def _online(self) -> list["LogDirectory"]:
        return [each for each in self._logs.directories if each.offline is None]

    def _online_ids(self) -> set[str]:
        return {each.directory_id for each in self._online()}


def _topic(name: str, topic_id: TopicId, states: Sequence[PartitionState]) -> TopicState:
    return TopicState(name, topic_id, tuple(states), is_internal(name))
