"""The contract of the coordination tree: versioned nodes, ZooKeeper's rules, one interface.

``embedded`` keeps such a tree in a SQLite file beside the logs, for a cluster of one;
a ZooKeeper ensemble is another. What a caller owes the tree, whichever it is:

1.  A write is guarded. ``set`` and ``delete`` name the version they replace, and a
    controller adds a ``Check`` of its own epoch's node to every ``multi``. ``ANY_VERSION``
    is for nodes that have one writer by construction.
2.  An unknown outcome is read back. ``OutcomeUnknown`` (a connection lost with the write
    under way) says neither yes nor no: read the node and compare, never repeat blindly.
3.  A watch fires once. It is set by a read, and so misses nothing that happens after that
    read; whoever is woken reads again and sets the next. Several changes may come as one
    wake-up, and a wake-up says only where something changed, not what.
4.  A watch on a missing node fires when it appears. A watch of ``children`` fires for
    children that come and go, not for what is in them.
5.  An ephemeral node lives as long as the session that made it, and has no children.
6.  ``multi`` is all or nothing, and the error that ends it names the operation by index.
7.  Callbacks run on the event loop, after the write that caused them can be read.
8.  Paths begin with ``/``, have no empty part and no ``/`` at the end; the root exists.

Creation numbers its nodes: ``created_zxid`` grows with every write to the tree and is never
given twice, which makes that of a broker's registration its broker epoch.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from headrace.model.ids import ZkVersion

ANY_VERSION = ZkVersion(-1)

Watch = Callable[[str], None]


class Node(NamedTuple):
    value: bytes
    zk_version: ZkVersion
    created_zxid: int
    modified_zxid: int


class Create(NamedTuple):
    path: str
    value: bytes = b""
    ephemeral: bool = False
    sequential: bool = False  # ten digits, growing within the parent, end the name


class Set(NamedTuple):
    path: str
    value: bytes
    expected: ZkVersion


class Delete(NamedTuple):
    path: str
    expected: ZkVersion


class Check(NamedTuple):
    """Nothing changes; the ``multi`` fails unless the node has this version."""

    path: str
    expected: ZkVersion


Operation = Create | Set | Delete | Check


class Done(NamedTuple):
    """What became of one operation: where it was, and the node's version and number since."""

    path: str
    zk_version: ZkVersion
    zxid: int


class TreeError(Exception):
    """The tree refused; ``path`` says where and, in a ``multi``, ``index`` which one."""

    def __init__(self, path: str, index: int = 0) -> None:
        super().__init__(f"{type(self).__name__} at {path}")
        self.path = path
        self.index = index


class NoNode(TreeError):
    """The node, or the parent of one to be made, is not there."""


class NodeExists(TreeError):
    """The node to be made is there already."""


class BadVersion(TreeError):
    """Somebody wrote since; the guard held."""


class NotEmpty(TreeError):
    """A node with children cannot be deleted."""


class EphemeralParent(TreeError):
    """An ephemeral node cannot have children."""


class Unwritable(TreeError):
    """The tree cannot keep anything now (a full disk); the write did not happen."""


class OutcomeUnknown(TreeError):
    """The write may or may not have happened. Read it back."""


class SessionLost(TreeError):
    """The session is over: its ephemeral nodes and watches are gone."""


class Tree(Protocol):
    """A tree of small nodes. All methods are called on the event loop."""

    async def get(self, path: str, watch: Watch | None = None) -> Node | None: ...

    async def get_many(self, paths: Sequence[str]) -> list[Node | None]:
        """Several nodes in one go, in the order asked. Not one moment's metadata."""
        ...

    async def children(self, path: str, watch: Watch | None = None) -> list[str] | None:
        """The names below ``path``, sorted, or None when there is no such node."""
        ...

    async def create(
        self, path: str, value: bytes = b"", *, ephemeral: bool = False, sequential: bool = False
    ) -> Done: ...

    async def set(self, path: str, value: bytes, expected: ZkVersion) -> Done: ...

    async def delete(self, path: str, expected: ZkVersion) -> None: ...

    async def multi(self, operations: Sequence[Operation]) -> list[Done]: ...

    async def close(self) -> None:
        """End the session. Ephemeral nodes go with it."""
        ...
