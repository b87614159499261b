"""The embedded tree behaves like a dictionary with ZooKeeper's rules, also after restarts."""

import asyncio
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.coordination.embedded import EmbeddedTree
from headrace.coordination.tree import (
    ANY_VERSION,
    BadVersion,
    Check,
    Create,
    Delete,
    EphemeralParent,
    NodeExists,
    NoNode,
    NotEmpty,
    Operation,
    Set,
    TreeError,
)
from headrace.model.ids import ZkVersion

PATHS = ["/a", "/b", "/a/x", "/a/y", "/a/x/deep"]
paths = st.sampled_from(PATHS)
zk_versions = st.sampled_from([ANY_VERSION, ZkVersion(0), ZkVersion(1), ZkVersion(2)])
values = st.binary(max_size=3)
operations = st.one_of(
    st.builds(Create, paths, values, ephemeral=st.booleans(), sequential=st.booleans()),
    st.builds(Set, paths, values, zk_versions),
    st.builds(Delete, paths, zk_versions),
    st.builds(Check, paths, zk_versions),
)
RESTART = "restart"
steps = st.lists(st.one_of(st.lists(operations, min_size=1, max_size=4), st.just(RESTART)))


class DumbTree:
    """Nodes as [value, version, ephemeral, next sequence]; a multi works on a copy."""

    def __init__(self) -> None:
        self.nodes: dict[str, list] = {"/": [b"", 0, False, 0]}

    def multi(self, wanted: list[Operation]) -> list[tuple[str, int]]:
        nodes = {path: list(node) for path, node in self.nodes.items()}
        done = [self.apply(nodes, operation) for operation in wanted]
        self.nodes = nodes
        return done

    def apply(self, nodes: dict[str, list], operation: Operation) -> tuple[str, int]:
        path = operation.path
        if isinstance(operation, Create):
            parent = path.rpartition("/")[0] or "/"
            if parent not in nodes:
                raise NoNode(parent)
            if nodes[parent][2]:
                raise EphemeralParent(parent)
            if operation.sequential:
                path += f"{nodes[parent][3]:010d}"
                nodes[parent][3] += 1
            if path in nodes:
                raise NodeExists(path)
            nodes[path] = [operation.value, 0, operation.ephemeral, 0]
            return path, 0
        if path not in nodes:
            raise NoNode(path)
        node = nodes[path]
        if operation.expected not in (ANY_VERSION, node[1]):
            raise BadVersion(path)
        if isinstance(operation, Set):
            node[0], node[1] = operation.value, node[1] + 1
        elif isinstance(operation, Delete):
            if any(other.startswith(path + "/") for other in nodes):
                raise NotEmpty(path)
            del nodes[path]
        return path, node[1]

    def restart(self) -> None:
        self.nodes = {path: node for path, node in self.nodes.items() if not node[2]}


@settings(max_examples=60)
@given(steps)
def test_a_tree_on_disk_agrees_with_a_dictionary(story):
    async def compare(directory: Path) -> None:
        dumb = DumbTree()
        tree = await EmbeddedTree.open(directory)
        zxid = 0
        try:
            for step in story:
                if step == RESTART:
                    dumb.restart()
                    await tree.close()
                    tree = await EmbeddedTree.open(directory)
                else:
                    expected = outcome_of(lambda step=step: dumb.multi(step))
                    try:
                        done = await tree.multi(step)
                    except TreeError as error:
                        assert (type(error), error.path) == expected
                    else:
                        assert [(d.path, d.zk_version) for d in done] == expected
                        assert {d.zxid for d in done} == {zxid + 1}
                        zxid += 1
                known = sorted(dumb.nodes)
                nodes = await tree.get_many(known)
                assert [(n.value, n.zk_version) for n in nodes if n is not None] == [
                    (dumb.nodes[path][0], dumb.nodes[path][1]) for path in known
                ]
                for path in known:
                    prefix = "/" if path == "/" else path + "/"
                    names = [p[len(prefix) :] for p in known if p.startswith(prefix) and p != "/"]
                    assert await tree.children(path) == [n for n in names if "/" not in n]
        finally:
            await tree.close()

    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(compare(Path(directory)))


def outcome_of(multi):
    try:
        return multi()
    except TreeError as error:
        return type(error), error.path
