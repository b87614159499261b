"""In which log directories one broker has its partitions, as stored in the coordination tree.

Only that broker writes these nodes. Each write names the version that the broker wrote or read
last, so a second process with the same broker id is noticed: it is Fenced.
"""

from collections.abc import Mapping, Sequence

from headrace.coordination import paths, values
from headrace.coordination.tree import (
    Conflict,
    Create,
    Delete,
    Done,
    Node,
    Operation,
    Set,
    Tree,
)
from headrace.coordination.writer import Writer
from headrace.core.directory_assignment import AssignmentChange, LoadedAssignment
from headrace.model.errors import Fenced
from headrace.model.ids import BrokerId, TopicId, ZkVersion, id_from_text


class DirectoryStore:
    """The nodes of one broker. Load both kinds before writing either."""

    def __init__(self, tree: Tree, writer: Writer, broker_id: BrokerId) -> None:
        self._tree = tree
        self._writer = writer
        self._broker_id = broker_id
        self._zk_versions: dict[str, ZkVersion] = {}  # of the nodes that exist

    async def load_assignment(self) -> LoadedAssignment:
        path = paths.directory_assignment(self._broker_id)
        node, children = await self._load(path)
        topics = {
            name: values.decode_topic_directories(f"{path}/{name}", child.value)
            for name, child in children.items()
        }
        return LoadedAssignment(values.decode_directories(path, node.value), topics)

    async def load_pending_deletions(self) -> dict[TopicId, set[str]]:
        """Deleted topics with files in offline directories, and the ids of these directories."""
        path = paths.pending_deletions(self._broker_id)
        _, children = await self._load(path)
        return {
            TopicId(id_from_text(name)): set(
                values.decode_directories(f"{path}/{name}", child.value)
            )
            for name, child in children.items()
        }

    async def store_paths(self, known: Mapping[str, str]) -> None:
        """Remember the path of each log directory, by directory.id."""
        path = paths.directory_assignment(self._broker_id)
        await self._write([Set(path, values.encode_directories(known), self._zk_versions[path])])

    async def store(self, change: AssignmentChange) -> None:
        operations = self.operations(change)
        if operations:
            await self._write(operations)

    def operations(self, change: AssignmentChange) -> list[Operation]:
        """The operations of ``change``. Pass their results to ``written``."""
        contents: dict[str, bytes | None] = {}
        for topic, directories in change.topics.items():
            path = paths.topic_directories(self._broker_id, topic)
            contents[path] = (
                values.encode_topic_directories(directories) if directories is not None else None
            )
        for topic_id, offline in change.pending_deletions.items():
            path = paths.pending_deletion(self._broker_id, topic_id)
            contents[path] = (
                values.encode_directories(dict.fromkeys(sorted(offline), "")) if offline else None
            )
        operations: list[Operation] = []
        for path, value in contents.items():
            zk_version = self._zk_versions.get(path)
            if zk_version is None:
                operations += [Create(path, value)] if value is not None else []
            elif value is not None:
                operations.append(Set(path, value, zk_version))
            else:
                operations.append(Delete(path, zk_version))
        return operations

    def written(self, operations: Sequence[Operation], results: Sequence[Done]) -> None:
        for operation, done in zip(operations, results, strict=True):
            if isinstance(operation, Delete):
                del self._zk_versions[operation.path]
            else:
                self._zk_versions[operation.path] = done.zk_version

    async def _write(self, operations: Sequence[Operation]) -> None:
        try:
            results = await self._writer.write(operations)
        except Conflict as conflict:
            raise Fenced(
                f"another process wrote {conflict.path} as broker {self._broker_id}"
            ) from conflict
        self.written(operations, results)

    async def _load(self, path: str) -> tuple[Node, dict[str, Node]]:
        """A node, created if missing, and its children."""
        node = await self._writer.get_or_create(path)
        names = await self._tree.children(path) or []
        found = await self._tree.get_many([f"{path}/{name}" for name in names])
        children = {n: child for n, child in zip(names, found, strict=True) if child is not None}
        self._zk_versions[path] = node.zk_version
        for name, child in children.items():
            self._zk_versions[f"{path}/{name}"] = child.zk_version
        return node, children
