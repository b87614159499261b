"""Topics in the coordination tree: their replicas and states, as our types."""

import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from headrace.coordination import paths, values
from headrace.coordination.tree import (
    Conflict,
    Create,
    Done,
    Node,
    NodeExists,
    Operation,
    Set,
    Tree,
    Watch,
)
from headrace.core.controller import NEW_PARTITION
from headrace.core.topics import is_internal
from headrace.model.cluster_metadata import NO_LEADER, PartitionState, TopicState
from headrace.model.errors import Corrupt, ErrorCode, Rejected
from headrace.model.ids import NO_LEADER_EPOCH, NO_TOPIC_ID, BrokerId, TopicId, TopicPartition

_log = logging.getLogger("headrace.metadata")

Write = Callable[[Sequence[Operation]], Awaitable[list[Done]]]


class LoadedTopics(NamedTuple):
    topics: dict[str, TopicState]
    granted_zxids: dict[TopicPartition, int]  # when each partition's state was last written
    created_zxids: dict[TopicPartition, int]  # when it was first written

    @property
    def new_partitions(self) -> list[TopicPartition]:
        return [
            state.topic_partition
            for topic in self.topics.values()
            for state in topic.partitions
            if state.partition_epoch == NEW_PARTITION
        ]


class TopicStore:
    def __init__(self, tree: Tree) -> None:
        self._tree = tree

    async def load(
        self,
        names: Sequence[str],
        live: Collection[BrokerId],
        watch: Watch | None = None,
        *,
        skips_unreadable: bool = False,
    ) -> LoadedTopics:
        """The topics among ``names`` that exist. ``watch`` fires when their replicas change.

        With ``skips_unreadable``, a topic with a node that is not readable counts as missing.
        Otherwise raises Corrupt.
        """
        assigned: dict[str, values.Assignment] = {}
        for name, node in zip(names, await self._topic_nodes(names, watch), strict=True):
            if node is None:
                continue
            try:
                assigned[name] = values.decode_topic(name, node.value)
            except Corrupt as error:
                if not skips_unreadable:
                    raise
                _log.error("Ignoring topic %s: %s. Correct or delete that node", name, error)
        partitions = [
            TopicPartition(name, partition)
            for name, assignment in assigned.items()
            for partition in range(len(assignment.replicas))
        ]
        found = await self._tree.get_many([paths.state(*each) for each in partitions])
        nodes = dict(zip(partitions, found, strict=True))
        loaded = LoadedTopics({}, {}, {})
        for name, assignment in assigned.items():
            try:
                loaded.topics[name] = _topic(name, assignment, nodes, live)
            except Corrupt as error:
                if not skips_unreadable:
                    raise
                _log.error("Ignoring topic %s: %s. Correct or delete that node", name, error)
        for topic_partition, node in nodes.items():
            if node is not None and topic_partition.topic in loaded.topics:
                loaded.granted_zxids[topic_partition] = node.modified_zxid
                loaded.created_zxids[topic_partition] = node.created_zxid
        return loaded

    async def _topic_nodes(self, names: Sequence[str], watch: Watch | None) -> list[Node | None]:
        nodes = [paths.topic(name) for name in names]
        if watch is None:
            return await self._tree.get_many(nodes)
        return [await self._tree.get(path, watch) for path in nodes]

    async def has_partition(self, topic_partition: TopicPartition) -> bool:
        """Whether a partition exists, also if no controller has told this broker of it yet.

        One that is pending deletion does not count.
        """
        name, partition = topic_partition
        await self._tree.sync()
        node, deletion = await self._tree.get_many([paths.topic(name), paths.delete_topic(name)])
        if node is None or deletion is not None:
            return False
        return partition < len(values.decode_topic(name, node.value).replicas)

    async def is_assigned(
        self, topic_partition: TopicPartition, topic_id: TopicId, broker_id: BrokerId
    ) -> bool:
        """Whether a broker has a replica of a partition of this very topic."""
        name, partition = topic_partition
        await self._tree.sync()
        node = await self._tree.get(paths.topic(name))
        if node is None:
            return False
        found = values.decode_topic(name, node.value)
        return (
            found.topic_id in (None, topic_id)
            and partition < len(found.replicas)
            and broker_id in found.replicas[partition]
        )

    async def create(self, write: Write, topic: TopicState, overrides: Mapping[str, str]) -> None:
        """Assign the replicas of a new topic, which any broker may do.

        The controller then elects leaders. Raises Rejected if the topic exists.
        """
        await create_topic(self._tree, write, topic, overrides)


async def create_topic(
    tree: Tree, write: Write, topic: TopicState, overrides: Mapping[str, str]
) -> None:
    config_path = paths.config("topics", topic.name)
    config = values.encode_config(overrides)
    create = Create(paths.topic(topic.name), values.encode_topic(topic))
    while True:
        left = await tree.get(config_path)  # of an earlier topic, or of a creation that failed
        settings: Operation = (
            Create(config_path, config)
            if left is None
            else Set(config_path, config, left.zk_version)
        )
        try:
            await write([settings, create])
        except NodeExists as taken:
            if taken.path == create.path:
                raise Rejected(
                    ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{topic.name}' already exists."
                ) from taken
        except Conflict:
            pass  # another broker wrote the settings: read them again
        else:
            return


def without_leaders(topic: TopicState) -> TopicState:
    """The topic with replicas only: its partitions have no state yet."""
    return topic._replace(partitions=as_new(topic.partitions))


def as_new(states: Iterable[PartitionState]) -> tuple[PartitionState, ...]:
    """The partitions before their first election."""
    return tuple(
        state._replace(
            leader=NO_LEADER,
            leader_epoch=NO_LEADER_EPOCH,
            isr=state.replicas,
            partition_epoch=NEW_PARTITION,
        )
        for state in states
    )


def _topic(
    name: str,
    assignment: values.Assignment,
    nodes: Mapping[TopicPartition, Node | None],
    live: Collection[BrokerId],
) -> TopicState:
    partitions = (TopicPartition(name, number) for number in range(len(assignment.replicas)))
    return TopicState(
        name,
        assignment.topic_id or NO_TOPIC_ID,
        tuple(_state(each, assignment, nodes[each], live) for each in partitions),
        is_internal(name),
    )


def _state(
    topic_partition: TopicPartition,
    assignment: values.Assignment,
    node: Node | None,
    live: Collection[BrokerId],
) -> PartitionState:
    name, partition = topic_partition
    replicas = assignment.replicas[partition]
    if node is not None:
        leader, leader_epoch, isr = values.decode_state(name, partition, node.value)
    else:
        # Kafka's tools assign replicas and leave the rest to the controller.
        leader, leader_epoch, isr = NO_LEADER, NO_LEADER_EPOCH, replicas
    return PartitionState(
        topic=name,
        partition=partition,
        topic_id=assignment.topic_id or NO_TOPIC_ID,
        leader=leader,
        leader_epoch=leader_epoch,
        isr=isr,
        replicas=replicas,
        partition_epoch=node.zk_version if node is not None else NEW_PARTITION,
        adding=assignment.adding.get(partition, ()),
        removing=assignment.removing.get(partition, ()),
        offline=tuple(broker for broker in replicas if broker not in live),
    )
