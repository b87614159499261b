"""The contract of the coordination tree: versioned nodes, ZooKeeper's rules, one interface.

``embedded`` keeps the tree in a SQLite file beside the logs, for a cluster of one. ``memory``
shares one among the brokers of a process. ``zookeeper`` is a session at ZooKeeper. The same rules
hold for every implementation:

1.  Guard every write. ``set`` and ``delete`` name the version that they replace, and a
    controller adds a ``Check`` of its epoch's node to every ``multi``. Use ``ANY_VERSION``
    only for nodes with one writer, or next to such a check.
2.  Read back an unknown outcome. ``OutcomeUnknown`` (the connection was lost before the answer
    came) says neither yes nor no: ``sync``, read the nodes and compare. Never repeat blindly.
3.  A watch fires once. A read sets it, so it misses nothing that happens after that read. Its
    callback reads again and sets the next watch. Several changes may fire it once, and it says
    only where something changed, not what. A callback that is set again before it fired is
    still called once.
4.  A watch on a missing node fires when the node is created. A watch of ``children`` fires when
    children come or go, not when their values change.
5.  An ephemeral node lives as long as the session that created it, and has no children.
    ``Node.ephemeral_owner`` is the ``session_id`` of that session.
6.  ``multi`` does all or nothing. The error names the operation that failed by its index.
7.  Callbacks run on the event loop of the session's owner, after the write that caused them can
    be read.
8.  Paths begin with ``/``, have no empty part and no ``/`` at the end. The root exists.
9.  Reads may be stale. A session sees its own answered writes and never goes back in time, but
    may miss recent writes of others. After ``sync`` it sees every write answered before.
10. A tree object is one session. While the connection is lost (``SUSPENDED``), calls wait. On
    ``RECONNECTED`` the session goes on: ephemeral nodes exist, and watches fire for what changed
    meanwhile.
11. A session that ends cannot be resumed. On ``LOST`` its ephemeral nodes and watches are gone,
    and every call raises ``SessionLost``, pending ones included; their writes may have happened.
    The owner opens another tree. ``SUSPENDED`` may come first: ZooKeeper closes the connection and
    tells the next one. ``close`` ends the session without an event.
12. The version of a node is 0 when it is created and grows by one with every ``set``. A
    sequential node's name ends with ten digits that grow within its parent and never come back.
13. Zxids grow with every write and are unique, so the ``created_zxid`` of a broker's
    registration is its broker epoch. All operations of a ``multi`` share one.
"""

from collections.abc import Callable, Sequence
from enum import Enum
from typing import NamedTuple, Protocol

from headrace.model.ids import Millis, ZkVersion

ANY_VERSION = ZkVersion(-1)
NO_SESSION = 0  # the owner of nodes that are not ephemeral

Watch = Callable[[str], None]


class SessionEvent(Enum):
    SUSPENDED = "suspended"
    RECONNECTED = "reconnected"
    LOST = "lost"


class Node(NamedTuple):
    value: bytes
    zk_version: ZkVersion
    created_zxid: int
    modified_zxid: int
    created_at: Millis  # by the clock of the tree
    ephemeral_owner: int = NO_SESSION


class Create(NamedTuple):
    path: str
    value: bytes = b""
    ephemeral: bool = False
    sequential: bool = False  # the tree appends ten digits to the name


class Set(NamedTuple):
    path: str
    value: bytes
    expected: ZkVersion


class Delete(NamedTuple):
    path: str
    expected: ZkVersion


class Check(NamedTuple):
    """Changes nothing; the ``multi`` fails unless the node has this version."""

    path: str
    expected: ZkVersion


Operation = Create | Set | Delete | Check


class Done(NamedTuple):
    """The result of one operation: the node's path, its version, and the zxid of the write."""

    path: str
    zk_version: ZkVersion
    zxid: int


class TreeError(Exception):
    """The tree refused. ``path`` is the operation's, ``index`` its place in a ``multi``."""

    def __init__(self, path: str, index: int = 0) -> None:
        super().__init__(f"{type(self).__name__} at {path}")
        self.path = path
        self.index = index


class Conflict(TreeError):
    """The nodes are not as the operation requires: another writer was first."""


class NoNode(Conflict):
    """The node, or the parent of a node to create, does not exist."""


class NodeExists(Conflict):
    """The node to create exists already."""


class BadVersion(Conflict):
    """The node has another version than expected."""


class NotEmpty(Conflict):
    """A node with children cannot be deleted."""


class EphemeralParent(Conflict):
    """An ephemeral node cannot have children."""


class Unwritable(TreeError):
    """The tree cannot store anything now (a full disk); the write did not happen."""


class OutcomeUnknown(TreeError):
    """The write may or may not have happened. Read it back."""


class SessionLost(TreeError):
    """The session has ended: its ephemeral nodes and watches are gone."""


class Tree(Protocol):
    """One session's access to the tree. All methods are called on the owner's event loop."""

    on_session_event: Callable[[SessionEvent], None] | None

    @property
    def session_id(self) -> int: ...

    async def get(self, path: str, watch: Watch | None = None) -> Node | None: ...

    async def get_many(self, paths: Sequence[str]) -> list[Node | None]:
        """Several nodes, in the order given. They may be of different moments."""
        ...

    async def children(self, path: str, watch: Watch | None = None) -> list[str] | None:
        """The names of the children, sorted, or None if there is no such node."""
        ...

    async def create(
        self, path: str, value: bytes = b"", *, ephemeral: bool = False, sequential: bool = False
    ) -> Done:
        return (await self.multi([Create(path, value, ephemeral, sequential)]))[0]

    async def set(self, path: str, value: bytes, expected: ZkVersion) -> Done:
        return (await self.multi([Set(path, value, expected)]))[0]

    async def delete(self, path: str, expected: ZkVersion) -> None:
        await self.multi([Delete(path, expected)])

    async def multi(self, operations: Sequence[Operation]) -> list[Done]:
        """All operations, or none."""
        ...

    async def sync(self) -> None:
        """Let the reads that follow see every write that was answered before, to any session."""
        ...

    async def close(self) -> None:
        """End the session and delete its ephemeral nodes."""
        ...


def parent_of(path: str) -> str:
    """The parent of a node that is not the root. Raises ValueError if ``path`` is malformed."""
    if not path.startswith("/") or path.endswith("/") or "//" in path:
        raise ValueError(f"{path!r} is not the path of a node")
    return path.rpartition("/")[0] or "/"
