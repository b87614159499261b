"""The writes of one term as controller: guarded by its epoch, refused once the term has ended.

Every write is a ``multi`` that begins with a check of ``/controller_epoch``. If that check fails,
there is a newer controller, and the term is Fenced. Other conflicts mean that a single node is not
as the controller knows it: they are reported to the caller, who reads that node again.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple, TypeVar

from headrace.coordination import controller_writes, paths, values
from headrace.coordination.topic_store import create_topic
from headrace.coordination.tree import (
    ANY_VERSION,
    BadVersion,
    Check,
    Conflict,
    Create,
    Delete,
    Done,
    NodeExists,
    NoNode,
    Operation,
    Set,
    Tree,
)
from headrace.coordination.writer import Writer
from headrace.core.controller import NEW_PARTITION, ChangePartition
from headrace.model.cluster_metadata import TopicState
from headrace.model.errors import ErrorCode, Fenced, Rejected
from headrace.model.ids import BrokerId, ControllerEpoch, TopicPartition, ZkVersion

# Behind one check of the controller epoch. ZooKeeper limits a request to 1 MiB.
OPERATIONS_PER_WRITE_MAX = 200


_Each = TypeVar("_Each")


class WrittenStates(NamedTuple):
    written: list[ChangePartition]
    zxids: dict[TopicPartition, int]  # of the written changes
    stale: list[TopicPartition]  # these states are not as the controller knew them


class TermStore:
    def __init__(
        self, tree: Tree, writer: Writer, controller_epoch: ControllerEpoch, guard: Check
    ) -> None:
        """``guard`` checks the version that ``/controller_epoch`` got with the election."""
        self.controller_epoch = controller_epoch
        self._tree = tree
        self._writer = writer
        self._guard = guard
        self._ended = False

    def end(self) -> None:
        """Refuse all further writes; writes that were sent may still happen."""
        self._ended = True

    async def write(self, operations: Sequence[Operation]) -> list[Done]:
        """Raises Fenced if there is a newer controller, and Conflict for any other node."""
        if self._ended:
            raise Fenced("the term as controller has ended")
        try:
            return (await self._writer.write([self._guard, *operations]))[1:]
        except Conflict as conflict:
            if conflict.index == 0:
                raise Fenced("another broker has become controller") from conflict
            raise

    async def delete(self, path: str) -> None:
        """Delete a node that has no children; it may be gone already."""
        with suppress(NoNode):
            await self.write([Delete(path, ANY_VERSION)])

    # --- partition states

    async def write_states(self, changes: Sequence[ChangePartition]) -> WrittenStates:
        """Write many states behind few checks. One stale state does not stop the others."""
        await self.create_parents(
            [change.state.topic_partition for change in changes if change.expected == NEW_PARTITION]
        )
        result = WrittenStates([], {}, [])
        for batch in batches(changes):
            try:
                await self._write_batch(batch, result)
            except Conflict:
                for change in batch:
                    try:
                        await self._write_batch([change], result)
                    except Conflict:
                        result.stale.append(change.state.topic_partition)
        return result

    async def _write_batch(self, changes: Sequence[ChangePartition], result: WrittenStates) -> None:
        done = await self.write(controller_writes.operations(changes, self.controller_epoch))
        result.written.extend(changes)
        for change, each in zip(changes, done, strict=True):
            result.zxids[change.state.topic_partition] = each.zxid

    async def create_parents(self, partitions: Iterable[TopicPartition]) -> None:
        """Create the parents of states that will be created."""
        parents = list(
            dict.fromkeys(
                path
                for topic_partition in partitions
                for path in (
                    paths.partitions(topic_partition.topic),
                    paths.partition(*topic_partition),
                )
            )
        )
        for batch in batches(parents):
            present = await self._tree.get_many(batch)
            missing = [
                Create(path) for path, node in zip(batch, present, strict=True) if node is None
            ]
            if missing:
                await self.write(missing)

    # --- brokers

    async def note_shutdown(self, broker_id: BrokerId, broker_epoch: int) -> None:
        """Let the next controllers know that this registration shuts down."""
        path, value = f"{paths.SHUTTING_DOWN}/{broker_id}", str(broker_epoch).encode()
        node = await self._tree.get(path)
        note: Operation = Create(path, value) if node is None else Set(path, value, node.zk_version)
        await self.write([note])

    # --- topics

    async def create_topic(self, topic: TopicState, overrides: Mapping[str, str]) -> None:
        """Assign replicas; the states follow. Raises Rejected if another broker was first."""
        await create_topic(self._tree, self.write, topic, overrides)

    async def assign(
        self, topic: TopicState, before: TopicState, changes: Sequence[ChangePartition] = ()
    ) -> None:
        """Replace the replicas and the id of a topic, and with them the states of ``changes``.

        Raises Rejected if the tree has other replicas than ``before``, or if a state has changed.
        """
        path = paths.topic(topic.name)
        node = await self._tree.get(path)
        try:
            if node is None or list(values.decode_topic(topic.name, node.value).replicas) != [
                state.replicas for state in before.partitions
            ]:
                raise BadVersion(path)
            await self.write(
                [
                    Set(path, values.encode_topic(topic), node.zk_version),
                    *controller_writes.operations(changes, self.controller_epoch),
                ]
            )
        except Conflict as conflict:
            raise Rejected(
                ErrorCode.REQUEST_TIMED_OUT,
                f"The topic {topic.name} was changed at the same time. Retry the request.",
            ) from conflict

    async def replace_reassignment_request(
        self, targets: Mapping[TopicPartition, Sequence[BrokerId]], expected: ZkVersion
    ) -> None:
        """What is left of another program's request; delete it if nothing is."""
        path = paths.REASSIGN_PARTITIONS
        value = values.encode_reassignment(targets)
        await self.write([Set(path, value, expected) if targets else Delete(path, expected)])

    async def request_deletion(self, name: str) -> None:
        with suppress(NodeExists):  # a tool was first
            await self.write([Create(paths.delete_topic(name))])

    async def delete_topic(self, name: str) -> bool:
        """Delete nodes of a topic, children first and the request last; True if all are gone.

        One call deletes a part, so that other changes of the controller need not wait. A term
        that ends meanwhile leaves the request, and the next term continues.
        """
        await self._tree.sync()
        # As stored: a tool may have added partitions meanwhile.
        stored = await self._tree.children(paths.partitions(name)) or []
        every = controller_writes.nodes_of_topic(name, map(int, stored))
        # Of the nodes of stored partitions at least every second one exists.
        nodes = every[: 2 * OPERATIONS_PER_WRITE_MAX] if stored else every
        present = await self._tree.get_many(nodes)
        left = [path for path, node in zip(nodes, present, strict=True) if node is not None]
        now = left[:OPERATIONS_PER_WRITE_MAX]
        if now:
            await self.write([Delete(path, ANY_VERSION) for path in now])
        return len(now) == len(left) and len(nodes) == len(every)


def batches(items: Sequence[_Each]) -> Iterator[Sequence[_Each]]:
    """Items for one write each."""
    for start in range(0, len(items), OPERATIONS_PER_WRITE_MAX):
        yield items[start : start + OPERATIONS_PER_WRITE_MAX]
