"""A coordination tree in memory, shared by the brokers of one process: a session for each.

The brokers may run on several threads, each with its own event loop: a lock guards the nodes, and
a session posts its events and watches to its owner's loop. On one loop everything is
deterministic: a write takes effect when it is called, watches fire in the order in which they
were set, and nothing iterates in the order of hashes or addresses.

A session reads the shared nodes directly. While it lags behind them (its connection is lost, or
its ``Faults`` say so), it keeps the former entry of every node that changed since, and reads
that. When it catches up it drops them and fires the watches that were due, so it never reads a
new value before the watch on the old one has fired, as in ZooKeeper.
"""

import asyncio
import json
import logging
import threading
from bisect import bisect_left
from collections.abc import Callable, Sequence
from enum import Enum
from typing import NamedTuple

from headrace.coordination import watches
from headrace.coordination.tree import (
    ANY_VERSION,
    NO_SESSION,
    BadVersion,
    Check,
    Create,
    Delete,
    Done,
    EphemeralParent,
    Node,
    NodeExists,
    NoNode,
    NotEmpty,
    Operation,
    OutcomeUnknown,
    SessionEvent,
    SessionLost,
    Set,
    Tree,
    TreeError,
    Watch,
    parent_of,
)
from headrace.coordination.watches import Aspect, Touch, Watches
from headrace.model.ids import Millis, ZkVersion

_log = logging.getLogger("headrace.metadata")


class Delivery(Enum):
    """What happens to a write."""

    ANSWERED = "answered"
    ANSWER_LOST = "answer lost"  # it happened; the session lags until it syncs or writes again
    REQUEST_LOST = "request lost"  # it did not happen


class Faults:
    """The faults of one session. This class has none; override what a test needs.

    Called with the tree locked, ``lag`` and ``watch_delay`` on the thread of the writer.
    """

    def write(self, operations: Sequence[Operation]) -> Delivery:
        """Called for every write of the session. A lost one raises ``OutcomeUnknown``."""
        return Delivery.ANSWERED

    def lag(self) -> float:
        """Seconds until the session sees a write of another session, unless it syncs."""
        return 0.0

    def watch_delay(self) -> float:
        """Seconds that a watch fires late, after the session can see what changed."""
        return 0.0


class _Entry(NamedTuple):
    node: Node
    children: tuple[str, ...] = ()  # sorted
    next_number: int = 0  # of sequential children


_ROOT = _Entry(Node(b"", ZkVersion(0), 0, 0, Millis(0)))

# What a write replaced, by path; None where there was no node.
_Before = dict[str, _Entry | None]


class MemoryTree:
    """The nodes that all sessions share. ``now`` stamps them with their time of creation."""

    def __init__(self, now: Callable[[], Millis], snapshot: bytes | None = None) -> None:
        """A tree with the nodes of a ``snapshot``; without one it has only a root."""
        self._now = now
        self._lock = threading.RLock()
        self._zxid, self._entries = (0, {"/": _ROOT}) if snapshot is None else _restored(snapshot)
        self._sessions: dict[int, MemorySession] = {}
        self._last_session_id = NO_SESSION

    def open_session(self, faults: Faults | None = None) -> "MemorySession":
        """A session that belongs to the running event loop."""
        with self._lock:
            self._last_session_id += 1
            session = MemorySession(self, self._last_session_id, faults or Faults())
            self._sessions[session.session_id] = session
        return session

    def expire(self, session_id: int) -> None:
        """End a session, as ZooKeeper does if it gets no heartbeats. From any thread."""
        with self._lock:
            session = self._end(session_id)
            if session is not None:
                session._expire()

    def read(self, path: str) -> bytes | None:
        """The newest value of a node; None if there is no such node. From any thread."""
        with self._lock:
            entry = self._entries.get(path)
        return None if entry is None else entry.node.value

    def snapshot(self) -> bytes:
        """All nodes that are not ephemeral, as JSON. From any thread."""
        with self._lock:
            nodes = [
                (path, value.decode(), *numbers, next_number)
                for path, ((value, *numbers, owner), _, next_number) in sorted(
                    self._entries.items()
                )
                if owner == NO_SESSION
            ]
            return json.dumps({"zxid": self._zxid, "nodes": nodes}).encode()

    # --- called by sessions, with the lock held

    def _end(self, session_id: int) -> "MemorySession | None":
        session = self._sessions.pop(session_id, None)
        if session is not None:
            owned = [
                Delete(path, ANY_VERSION)
                for path in sorted(self._entries)
                if self._entries[path].node.ephemeral_owner == session_id
            ]
            self._write(owned, session, Delivery.ANSWERED)
        return session

    def _write(
        self, operations: Sequence[Operation], writer: "MemorySession", delivery: Delivery
    ) -> list[Done]:
        zxid = self._zxid + 1
        before: _Before = {}
        touched: list[Touch] = []
        results = []
        for index, operation in enumerate(operations):
            try:
                results.append(self._apply(operation, writer.session_id, zxid, before, touched))
            except Exception as error:
                self._restore(before)
                if isinstance(error, TreeError):
                    error.index = index
                raise
        self._zxid = zxid
        for session in self._sessions.values():
            session._changed(before, touched, own=delivery if session is writer else None)
        return results

    def _restore(self, before: _Before) -> None:
        for path, entry in before.items():
            if entry is None:
                self._entries.pop(path, None)
            else:
                self._entries[path] = entry

    def _apply(
        self,
        operation: Operation,
        session_id: int,
        zxid: int,
        before: _Before,
        touched: list[Touch],
    ) -> Done:
        match operation:
            case Create():
                path = self._create(operation, session_id, zxid, before)
                touched += watches.created(path)
                return Done(path, ZkVersion(0), zxid)
            case Set(path, value, expected):
                entry = self._checked(path, expected)
                zk_version = ZkVersion(entry.node.zk_version + 1)
                node = entry.node._replace(value=value, zk_version=zk_version, modified_zxid=zxid)
                self._put(path, entry._replace(node=node), before)
                touched += watches.changed(path)
                return Done(path, zk_version, zxid)
            case Delete(path, expected):
                entry = self._checked(path, expected)
                if entry.children:
                    raise NotEmpty(path)
                self._delete(path, before)
                touched += watches.deleted(path)
                return Done(path, entry.node.zk_version, zxid)
            case Check(path, expected):
                return Done(path, self._checked(path, expected).node.zk_version, zxid)

    def _create(self, operation: Create, session_id: int, zxid: int, before: _Before) -> str:
        path, value, ephemeral, sequential = operation
        parent_path = parent_of(path)
        parent = self._entries.get(parent_path)
        if parent is None:
            raise NoNode(path)
        if parent.node.ephemeral_owner != NO_SESSION:
            raise EphemeralParent(path)
        if sequential:
            path = f"{path}{parent.next_number:010d}"
        if path in self._entries:
            raise NodeExists(path)
        owner = session_id if ephemeral else NO_SESSION
        self._put(path, _Entry(Node(value, ZkVersion(0), zxid, zxid, self._now(), owner)), before)
        name = path.rpartition("/")[2]
        place = bisect_left(parent.children, name)
        children = (*parent.children[:place], name, *parent.children[place:])
        next_number = parent.next_number + sequential
        self._put(parent_path, parent._replace(children=children, next_number=next_number), before)
        return path

    def _delete(self, path: str, before: _Before) -> None:
        before.setdefault(path, self._entries.pop(path))
        parent_path = parent_of(path)
        parent = self._entries[parent_path]
        name = path.rpartition("/")[2]
        place = bisect_left(parent.children, name)
        children = parent.children[:place] + parent.children[place + 1 :]
        self._put(parent_path, parent._replace(children=children), before)

    def _put(self, path: str, entry: _Entry, before: _Before) -> None:
        before.setdefault(path, self._entries.get(path))
        self._entries[path] = entry

    def _checked(self, path: str, expected: ZkVersion) -> _Entry:
        entry = self._entries.get(path)
        if entry is None:
            raise NoNode(path)
        if expected not in (ANY_VERSION, entry.node.zk_version):
            raise BadVersion(path)
        return entry


def _restored(snapshot: bytes) -> tuple[int, dict[str, _Entry]]:
    """The last zxid, and the nodes."""
    saved = json.loads(snapshot)
    entries: dict[str, _Entry] = {}
    for path, value, zk_version, created, modified, created_at, next_number in saved["nodes"]:
        node = Node(value.encode(), ZkVersion(zk_version), created, modified, Millis(created_at))
        entries[path] = _Entry(node, (), next_number)
    for path in sorted(entries):
        if path != "/":  # the nodes are sorted, and so are the children of each
            parent = entries[parent_of(path)]
            children = (*parent.children, path.rpartition("/")[2])
            entries[parent_of(path)] = parent._replace(children=children)
    return saved["zxid"], entries


class _View:
    """One session's view of the shared nodes; its methods return the changes it can see."""

    def __init__(self, entries: dict[str, _Entry]) -> None:
        self._entries = entries
        # While the session lags: the former entries of changed nodes, and the changes.
        self._stale: _Before | None = None
        self._unseen: list[Touch] = []

    @property
    def lags(self) -> bool:
        return self._stale is not None

    def entry(self, path: str) -> _Entry | None:
        if self._stale is not None and path in self._stale:
            return self._stale[path]
        return self._entries.get(path)

    def lag(self) -> None:
        if self._stale is None:
            self._stale = {}

    def changed(self, before: _Before, touched: Sequence[Touch]) -> Sequence[Touch]:
        if self._stale is None:
            return touched
        for path, entry in before.items():
            self._stale.setdefault(path, entry)
        self._unseen += touched
        return ()

    def catch_up(self) -> Sequence[Touch]:
        self._stale = None
        unseen, self._unseen = self._unseen, []
        return unseen


class MemorySession(Tree):
    """One broker's ``Tree``. Make it with ``MemoryTree.open_session``."""

    def __init__(self, tree: MemoryTree, session_id: int, faults: Faults) -> None:
        self.on_session_event: Callable[[SessionEvent], None] | None = None
        self._tree = tree
        self._session_id = session_id
        self._faults = faults
        self._loop = asyncio.get_running_loop()
        self._view = _View(tree._entries)
        self._watches = Watches()
        self._waiting: list[asyncio.Future[None]] = []  # calls, while the connection is lost
        self._connected = True
        self._ended = False  # in the tree; the owner does not know while it is not connected
        self._closed = False

    @property
    def session_id(self) -> int:
        return self._session_id

    # --- the contract

    async def get(self, path: str, watch: Watch | None = None) -> Node | None:
        await self._until_connected()
        with self._tree._lock:
            self._check_alive(path)
            if watch is not None:
                self._watches.add(Aspect.NODE, path, watch)
            node = self._node(path)
        await asyncio.sleep(0)
        return node

    async def get_many(self, paths: Sequence[str]) -> list[Node | None]:
        await self._until_connected()
        with self._tree._lock:
            self._check_alive("/")
            nodes = [self._node(path) for path in paths]
        await asyncio.sleep(0)
        return nodes

    async def children(self, path: str, watch: Watch | None = None) -> list[str] | None:
        await self._until_connected()
        with self._tree._lock:
            self._check_alive(path)
            entry = self._view.entry(path)
            if watch is not None:
                aspect = Aspect.NODE if entry is None else Aspect.CHILDREN
                self._watches.add(aspect, path, watch)
        await asyncio.sleep(0)
        return list(entry.children) if entry is not None else None

    async def multi(self, operations: Sequence[Operation]) -> list[Done]:
        path = operations[0].path
        await self._until_connected()
        with self._tree._lock:
            self._check_alive(path)
            outcome = self._send(operations, self._faults.write(operations))
        await asyncio.sleep(0)
        if isinstance(outcome, TreeError):
            raise outcome
        return outcome

    async def sync(self) -> None:
        await self._until_connected()
        with self._tree._lock:
            self._check_alive("/")
            self._fire(self._view.catch_up())
        await asyncio.sleep(0)

    async def close(self) -> None:
        """End the session. Without a connection its ephemeral nodes stay until it expires."""
        with self._tree._lock:
            self._closed = True
            if self._connected:
                self._tree._end(self._session_id)
        self._wake()

    # --- faults, from any thread

    def disconnect(self) -> None:
        """Lose the connection. The session continues until a call of ``expire``."""
        with self._tree._lock:
            if self._connected and not self._ended:
                self._connected = False
                self._view.lag()
                self._post(self._tell, SessionEvent.SUSPENDED)

    def reconnect(self) -> None:
        with self._tree._lock:
            if self._connected:
                return
            self._connected = True
            if self._ended:
                self._post(self._tell, SessionEvent.LOST)
            else:
                self._post(self._tell, SessionEvent.RECONNECTED)
                self._fire(self._view.catch_up())
            self._post(self._wake)

    # --- with the lock held

    def _send(self, operations: Sequence[Operation], delivery: Delivery) -> list[Done] | TreeError:
        if delivery is Delivery.REQUEST_LOST:
            return OutcomeUnknown(operations[0].path)
        try:
            outcome: list[Done] | TreeError = self._tree._write(operations, self, delivery)
        except TreeError as refusal:
            outcome = refusal
        if delivery is Delivery.ANSWER_LOST:
            return OutcomeUnknown(operations[0].path)
        self._fire(self._view.catch_up())
        return outcome

    def _check_alive(self, path: str) -> None:
        if self._closed or self._ended:
            raise SessionLost(path)

    def _node(self, path: str) -> Node | None:
        entry = self._view.entry(path)
        return entry.node if entry is not None else None

    def _changed(self, before: _Before, touched: Sequence[Touch], *, own: Delivery | None) -> None:
        """A write of this session, with its delivery, or of another."""
        if own is Delivery.ANSWER_LOST:
            self._view.lag()
        elif own is None and not self._view.lags and (seconds := self._faults.lag()) > 0:
            self._view.lag()
            self._post(self._loop.call_later, seconds, self._end_lag)
        self._fire(self._view.changed(before, touched))

    def _fire(self, touched: Sequence[Touch]) -> None:
        for watch, path in self._watches.fire(touched):
            delay = self._faults.watch_delay()
            if delay > 0:
                self._post(self._loop.call_later, delay, self._call, watch, path)
            else:
                self._post(self._call, watch, path)

    def _expire(self) -> None:
        self._ended = True
        if self._connected:
            self._post(self._tell, SessionEvent.LOST)
            self._post(self._wake)

    def _post(self, callback: Callable[..., object], *arguments: object) -> None:
        try:
            self._loop.call_soon_threadsafe(callback, *arguments)
        except RuntimeError:
            _log.debug("Session %d: the event loop of its owner is closed", self._session_id)

    # --- on the owner's loop

    async def _until_connected(self) -> None:
        while not self._connected and not self._closed:
            call: asyncio.Future[None] = self._loop.create_future()
            self._waiting.append(call)
            await call

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for call in waiting:
            if not call.done():
                call.set_result(None)

    def _tell(self, event: SessionEvent) -> None:
        if self.on_session_event is not None and not self._closed:
            self.on_session_event(event)

    def _call(self, watch: Watch, path: str) -> None:
        if not self._closed and not self._ended:
            watch(path)

    def _end_lag(self) -> None:
        with self._tree._lock:
            if self._connected:
                self._fire(self._view.catch_up())
