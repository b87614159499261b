"""The coordination tree of a cluster of one: nodes in a SQLite file, served by one thread.

    headrace.sqlite        in one of log.dirs, WAL mode, locked while it is open
        node      one row per node; the path is the key
        counter   the last zxid

Durability. Every write is one SQLite transaction. It is in the page cache when it is
acknowledged, so killing the process loses nothing. It is not yet on disk: ``synchronous=NORMAL``
does not wait for the disk on commit, and FULL would add at least one fsync to the first record
that a new node acknowledges. Instead the thread checkpoints, with fsync, once it has been idle
for a moment, so a power cut loses at most the writes of that moment. The log makes the same
trade (acknowledged means replicated, not fsynced). A topic lost in this way is read back from its
partition directories.

SQLite and the watches run on the one worker thread. The event loop only posts jobs and receives
results, so no lock is needed and no call blocks it.

The one session is open as long as the file is. Its connection cannot be lost, so it has no events.
"""

import asyncio
import logging
import queue
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

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
    SessionEvent,
    SessionLost,
    Set,
    Tree,
    TreeError,
    Unwritable,
    Watch,
    parent_of,
)
from headrace.coordination.watches import Aspect, Touch, Watches
from headrace.model.errors import Corrupt
from headrace.model.ids import Millis, ZkVersion

if TYPE_CHECKING:
    import sqlite3

_log = logging.getLogger("headrace.metadata")

FILE_NAME = "headrace.sqlite"

# Long enough for the writes of one start, or of many topics at once, to share a checkpoint.
IDLE_SECONDS = 0.05

_SESSION_ID = 1

_SCHEMA_VERSION = 1  # in the file's user_version, which was 0 before there was a version

_SCHEMA = """
CREATE TABLE IF NOT EXISTS node (
    path TEXT PRIMARY KEY,
    parent TEXT NOT NULL,
    value BLOB NOT NULL,
    zk_version INTEGER NOT NULL,
    created_zxid INTEGER NOT NULL,
    modified_zxid INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    ephemeral INTEGER NOT NULL,
    next_sequence INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS node_parent ON node (parent);
CREATE TABLE IF NOT EXISTS counter (zxid INTEGER NOT NULL);
INSERT INTO counter SELECT 0 WHERE NOT EXISTS (SELECT 1 FROM counter);
INSERT OR IGNORE INTO node VALUES ('/', '', x'', 0, 0, 0, 0, 0, 0);
DELETE FROM node WHERE ephemeral = 1;
"""

T = TypeVar("T")


class EmbeddedTree(Tree):
    """A ``Tree`` in a file. Use ``open`` to create one; ``close`` ends the session."""

    def __init__(
        self, path: Path, loop: asyncio.AbstractEventLoop, now: Callable[[], Millis]
    ) -> None:
        self.on_session_event: Callable[[SessionEvent], None] | None = None
        self._path = path
        self._loop = loop
        self._now = now
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="headrace-tree", daemon=True)
        self._closed = False
        # Only the worker thread uses these.
        self._connection: sqlite3.Connection  # set by ``_open``, which runs first
        self._close_connection: Callable[[], None] = lambda: None
        self._zxid = 0
        self._checkpoint_due = False
        self._watches = Watches()
        self._fired: list[tuple[Watch, str]] = []

    @classmethod
    async def open(cls, directory: Path, now: Callable[[], Millis]) -> "EmbeddedTree":
        """Open the tree in ``directory``, or create it. ``now`` is called on another thread.

        Ephemeral nodes of the last session are gone. Raises OSError if the disk refuses, and
        Corrupt if the file is not a tree; once it is moved away, topics are read back from the
        partition directories.
        """
        tree = cls(directory / FILE_NAME, asyncio.get_running_loop(), now)
        tree._thread.start()
        try:
            await tree._run(tree._open)
        except BaseException:
            await tree.close()
            raise
        return tree

    @property
    def session_id(self) -> int:
        return _SESSION_ID

    async def get(self, path: str, watch: Watch | None = None) -> Node | None:
        return await self._run(lambda: self._get(path, watch), path)

    async def get_many(self, paths: Sequence[str]) -> list[Node | None]:
        return await self._run(lambda: [self._get(path, None) for path in paths])

    async def children(self, path: str, watch: Watch | None = None) -> list[str] | None:
        return await self._run(lambda: self._children(path, watch), path)

    async def multi(self, operations: Sequence[Operation]) -> list[Done]:
        return await self._run(lambda: self._multi(operations), operations[0].path)

    async def sync(self) -> None:
        self._check_open("/")  # there is one copy of the tree

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._jobs.put(None)
        # Closing checkpoints and fsyncs, which would block the event loop.
        await self._loop.run_in_executor(None, self._thread.join)

    # --- the bridge between the loop and the worker thread

    async def _run(self, job: Callable[[], T], path: str = "/") -> T:
        self._check_open(path)
        done: asyncio.Future[T] = self._loop.create_future()
        self._jobs.put(lambda: self._perform(job, done))
        return await done

    def _check_open(self, path: str) -> None:
        if self._closed:
            raise SessionLost(path)

    def _perform(self, job: Callable[[], T], done: "asyncio.Future[T]") -> None:
        settle: Callable[[], None]
        try:
            settle = partial(done.set_result, job())
        except BaseException as error:  # noqa: BLE001  (the caller's coroutine raises it)
            settle = partial(done.set_exception, error)
        fired, self._fired = self._fired, []

        def deliver() -> None:
            if not done.cancelled():
                settle()
            for watch, path in fired:
                watch(path)

        try:
            self._loop.call_soon_threadsafe(deliver)
        except RuntimeError:
            _log.debug("The event loop was closed before a result of the cluster metadata arrived")

    def _work(self) -> None:
        while True:
            try:
                job = self._jobs.get(timeout=IDLE_SECONDS if self._checkpoint_due else None)
            except queue.Empty:
                self._checkpoint()
                continue
            if job is None:
                break
            job()
        self._close_connection()

    # --- on the worker thread

    def _open(self) -> None:
        import sqlite3  # takes 5 ms, which only a node with an embedded tree pays

        try:
            # check_same_thread stays on: a call from another thread is a bug.
            connection = sqlite3.connect(self._path, isolation_level=None)
            self._connection = connection
            self._close_connection = connection.close
            # Exclusive locking also makes the shared-memory file of the WAL unnecessary.
            connection.execute("PRAGMA locking_mode=EXCLUSIVE")
            # Switching a new file to WAL would fsync several times. The first checkpoint does
            # that a moment later, when the first record does not wait for it.
            connection.execute("PRAGMA synchronous=OFF")
            (written,) = connection.execute("PRAGMA user_version").fetchone()
            if written > _SCHEMA_VERSION:
                raise Corrupt(
                    f"{self._path} (cluster metadata) has version {written}; this Headrace reads "
                    f"up to {_SCHEMA_VERSION}. A newer one wrote it: use that one or a later one"
                )
            connection.execute("PRAGMA journal_mode=WAL")
            connection.executescript(
                f"BEGIN IMMEDIATE;{_SCHEMA}PRAGMA user_version={_SCHEMA_VERSION};COMMIT;"
            )
            connection.execute("PRAGMA synchronous=NORMAL")
            (self._zxid,) = connection.execute("SELECT zxid FROM counter").fetchone()
            self._checkpoint_due = True  # not before: a checkpoint needs the connection
        except sqlite3.OperationalError as error:
            raise OSError(f"{self._path} (cluster metadata) cannot be opened: {error}") from error
        except sqlite3.DatabaseError as error:
            raise Corrupt(
                f"{self._path} (cluster metadata) cannot be read: {error}. Move it away: "
                "topics are then read back from the partition directories, without their settings."
            ) from error

    def _checkpoint(self) -> None:
        """Write the acknowledged changes to the disk."""
        import sqlite3

        self._checkpoint_due = False
        try:
            self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
        except sqlite3.Error as error:
            _log.warning(
                "Checkpoint of %s failed; the next write retries it: %s", self._path, error
            )

    def _get(self, path: str, watch: Watch | None) -> Node | None:
        if watch is not None:
            self._watches.add(Aspect.NODE, path, watch)
        row = self._connection.execute(
            "SELECT value, zk_version, created_zxid, modified_zxid, created_at, ephemeral "
            "FROM node WHERE path = ?",
            (path,),
        ).fetchone()
        if row is None:
            return None
        *fields, ephemeral = row
        return Node._make((*fields, _SESSION_ID if ephemeral else NO_SESSION))

    def _children(self, path: str, watch: Watch | None) -> list[str] | None:
        exists = self._row(path) is not None
        if watch is not None:
            self._watches.add(Aspect.CHILDREN if exists else Aspect.NODE, path, watch)
        if not exists:
            return None
        skip = len(path) + (path != "/")
        rows = self._connection.execute("SELECT path FROM node WHERE parent = ?", (path,))
        return sorted(child[skip:] for (child,) in rows)

    def _multi(self, operations: Sequence[Operation]) -> list[Done]:
        import sqlite3

        connection = self._connection
        zxid = self._zxid + 1
        results = []
        touched: list[Touch] = []
        try:
            connection.execute("BEGIN IMMEDIATE")
            for index, operation in enumerate(operations):
                try:
                    results.append(self._apply(operation, zxid, touched))
                except TreeError as refusal:
                    refusal.index = index
                    raise
            connection.execute("UPDATE counter SET zxid = ?", (zxid,))
            connection.execute("COMMIT")
        except BaseException as error:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            if isinstance(error, sqlite3.OperationalError):
                _log.error("Rolled back a failed write to %s: %s", self._path, error)
                raise Unwritable(operations[0].path) from error
            raise
        self._zxid = zxid
        self._checkpoint_due = True
        self._fired += self._watches.fire(touched)
        return results

    def _apply(self, operation: Operation, zxid: int, touched: list[Touch]) -> Done:
        execute = self._connection.execute
        match operation:
            case Create(path, value, ephemeral, sequential):
                parent = parent_of(path)
                row = self._row(parent)
                if row is None:
                    raise NoNode(path)
                _, parent_is_ephemeral, next_sequence = row
                if parent_is_ephemeral:
                    raise EphemeralParent(path)
                if sequential:
                    path = f"{path}{next_sequence:010d}"
                    execute(
                        "UPDATE node SET next_sequence = next_sequence + 1 WHERE path = ?",
                        (parent,),
                    )
                created = execute(
                    "INSERT OR IGNORE INTO node VALUES (?, ?, ?, 0, ?, ?, ?, ?, 0)",
                    (path, parent, value, zxid, zxid, self._now(), ephemeral),
                )
                if not created.rowcount:
                    raise NodeExists(path)
                touched += watches.created(path)
                return Done(path, ZkVersion(0), zxid)
            case Set(path, value, expected):
                if expected == ANY_VERSION:
                    expected = self._checked(path, expected)
                written = execute(
                    "UPDATE node SET value = ?, zk_version = zk_version + 1, modified_zxid = ? "
                    "WHERE path = ? AND zk_version = ?",
                    (value, zxid, path, expected),
                )
                if not written.rowcount:
                    self._checked(path, expected)  # raises NoNode or BadVersion
                touched += watches.changed(path)
                return Done(path, ZkVersion(expected + 1), zxid)
            case Delete(path, expected):
                zk_version = self._checked(path, expected)
                if execute("SELECT 1 FROM node WHERE parent = ? LIMIT 1", (path,)).fetchone():
                    raise NotEmpty(path)
                execute("DELETE FROM node WHERE path = ?", (path,))
                touched += watches.deleted(path)
                return Done(path, zk_version, zxid)
            case Check(path, expected):
                return Done(path, self._checked(path, expected), zxid)

    def _checked(self, path: str, expected: ZkVersion) -> ZkVersion:
        row = self._row(path)
        if row is None:
            raise NoNode(path)
        if expected not in (ANY_VERSION, row[0]):
            raise BadVersion(path)
        return ZkVersion(row[0])

    def _row(self, path: str) -> Any:
        return self._connection.execute(
            "SELECT zk_version, ephemeral, next_sequence FROM node WHERE path = ?", (path,)
        ).fetchone()
