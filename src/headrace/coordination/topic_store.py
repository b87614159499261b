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
from headrace.core.controller import UNBORN
from headrace.core.topics import is_internal
from headrace.model.cluster_metadata import NO_LEADER, PartitionState, TopicState
from headrace.model.errors import Corrupt, ErrorCode, Rejected
from headrace.model.ids import NO_LEADER_EPOCH, NO_TOPIC_ID, BrokerId, TopicPartition

log = logging.getLogger("headrace.metadata")

Write = Callable[[Sequence[Operation]], Awaitable[list[Done]]]


class LoadedTopics(NamedTuple):
    topics: dict[str, TopicState]
    granted_zxids: dict[TopicPartition, int]  # when each partition's state was last written
    born_zxids: dict[TopicPartition, int]  # when it was first written

    @property
    def unborn(self) -> list[TopicPartition]:
        return [
            state.topic_partition
            for topic in self.topics.values()
            for state in topic.partitions
            if state.partition_epoch == UNBORN
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
        """The topics among ``names`` that exist. ``watch`` fires when their replicas change."""
        assigned: dict[str, values.Assignment] = {}
        for name, node in zip(names, await self._topic_nodes(names, watch), strict=True):
            if node is None:
                continue
            try:
                assigned[name] = values.decode_topic(name, node.value)
            except Corrupt as error:
                if not skips_unreadable:
                    raise
                log.error("Ignoring topic %s: %s. Correct or delete that node", name, error)
        partitions = [
            TopicPartition(name, partition)
            for name, assignment in assigned.items()
            for partition in range(len(assignment.replicas))
        ]
        nodes = await self._tree.get_many([paths.state(*each) for each in partitions])
        states: dict[str, list[PartitionState]] = {name: [] for name in assigned}
        loaded = LoadedTopics({}, {}, {})
        for topic_partition, node in zip(partitions, nodes, strict=True):
            name = topic_partition.topic
            states[name].append(_state(topic_partition, assigned[name], node, live))
            if node is not None:
                loaded.granted_zxids[topic_partition] = node.modified_zxid
                loaded.born_zxids[topic_partition] = node.created_zxid
        for name, assignment in assigned.items():
            loaded.topics[name] = TopicState(
                name, assignment.topic_id or NO_TOPIC_ID, tuple(states[name]), is_internal(name)
            )
        return loaded

    async def _topic_nodes(self, names: Sequence[str], watch: Watch | None) -> list[Node | None]:
        nodes = [paths.topic(name) for name in names]
        if watch is None:
            return await self._tree.get_many(nodes)
        return [await self._tree.get(path, watch) for path in nodes]

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


def unborn(topic: TopicState) -> TopicState:
    """The topic with replicas only: its partitions have no state yet."""
    return topic._replace(partitions=unborn_states(topic.partitions))


def unborn_states(states: Iterable[PartitionState]) -> tuple[PartitionState, ...]:
    return tuple(
        state._replace(
            leader=NO_LEADER,
            leader_epoch=NO_LEADER_EPOCH,
            isr=state.replicas,
            partition_epoch=UNBORN,
        )
        for state in states
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
        partition_epoch=node.zk_version if node is not None else UNBORN,
        adding=assignment.adding.get(partition, ()),
        removing=assignment.removing.get(partition, ()),
        offline=tuple(broker for broker in replicas if broker not in live),
    )
