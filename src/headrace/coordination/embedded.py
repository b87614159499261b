"""The coordination tree of a cluster of one: nodes in a SQLite file, served by one thread.

    headrace.sqlite        in the first log directory, WAL mode, locked while it is open
        node      one row per node; the path is the key
        counter   the zxid last given

Durability. Every write is one SQLite transaction, in the page cache when it is
acknowledged, so killing the process loses nothing. It is not yet on the platter:
``synchronous=NORMAL`` does not wait for the disk on commit, and FULL would add one or
more fsyncs to the first record a new node acknowledges. Instead the thread checkpoints,
with fsync, as soon as it has been quiet for a moment, which bounds what a power cut can take
to the writes of that moment. The log makes the same bargain (acknowledged is
replicated, not fsynced). A topic lost that way is read back from its folders.

Everything SQLite runs on the one worker thread, watches included; the event
loop only posts jobs and is posted results, so no lock is needed and no call blocks it.
"""

import asyncio
import logging
import queue
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from headrace.coordination.tree import (
    ANY_VERSION,
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
    Set,
    TreeError,
    Unwritable,
    Watch,
)
from headrace.model.errors import Corrupt
from headrace.model.ids import ZkVersion

if TYPE_CHECKING:
    import sqlite3

log = logging.getLogger(__name__)

FILE_NAME = "headrace.sqlite"

# Long enough that the writes of one start or one burst of topics share a checkpoint.
_QUIET_SECONDS = 0.05

_SCHEMA = """
CREATE TABLE IF NOT EXISTS node (
    path TEXT PRIMARY KEY,
    parent TEXT NOT NULL,
    value BLOB NOT NULL,
    zk_version INTEGER NOT NULL,
    created_zxid INTEGER NOT NULL,
    modified_zxid INTEGER NOT NULL,
    ephemeral INTEGER NOT NULL,
    next_sequence INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS node_parent ON node (parent);
CREATE TABLE IF NOT EXISTS counter (zxid INTEGER NOT NULL);
INSERT INTO counter SELECT 0 WHERE NOT EXISTS (SELECT 1 FROM counter);
INSERT OR IGNORE INTO node VALUES ('/', '', x'', 0, 0, 0, 0, 0);
DELETE FROM node WHERE ephemeral = 1;
"""

T = TypeVar("T")


class EmbeddedTree:
    """``Tree`` on a file of its own. Make it with ``open``; ``close`` ends the session."""

    def __init__(self, path: Path, loop: asyncio.AbstractEventLoop) -> None:
        self._path = path
        self._loop = loop
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="headrace-tree", daemon=True)
        self._closed = False
        # From here on only the worker thread touches these.
        self._connection: sqlite3.Connection
        self._zxid = 0
        self._unsettled = False
        self._node_watches: dict[str, list[Watch]] = {}
        self._children_watches: dict[str, list[Watch]] = {}
        self._woken: list[tuple[Watch, str]] = []

    @classmethod
    async def open(cls, folder: Path) -> "EmbeddedTree":
        """The tree in ``folder``, made if missing. Ephemeral nodes of the last session are gone.

        Raises OSError when the disk refuses, and Corrupt when the file is not a tree; its
        topics can be read back from the partition folders once it is moved away.
        """
        tree = cls(folder / FILE_NAME, asyncio.get_running_loop())
        tree._thread.start()
        try:
            await tree._run(tree._open)
        except BaseException:
            await tree.close()
            raise
        return tree

    async def get(self, path: str, watch: Watch | None = None) -> Node | None:
        return await self._run(lambda: self._get(path, watch))

    async def get_many(self, paths: Sequence[str]) -> list[Node | None]:
        return await self._run(lambda: [self._get(path, None) for path in paths])

    async def children(self, path: str, watch: Watch | None = None) -> list[str] | None:
        return await self._run(lambda: self._children(path, watch))

    async def create(
        self, path: str, value: bytes = b"", *, ephemeral: bool = False, sequential: bool = False
    ) -> Done:
        return (await self.multi([Create(path, value, ephemeral, sequential)]))[0]

    async def set(self, path: str, value: bytes, expected: ZkVersion) -> Done:
        return (await self.multi([Set(path, value, expected)]))[0]

    async def delete(self, path: str, expected: ZkVersion) -> None:
        await self.multi([Delete(path, expected)])

    async def multi(self, operations: Sequence[Operation]) -> list[Done]:
        return await self._run(lambda: self._multi(operations))

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._jobs.put(None)
        # Closing checkpoints and fsyncs, which is not the event loop's to wait for.
        await self._loop.run_in_executor(None, self._thread.join)

    # --- the bridge between the loop and the worker thread

    async def _run(self, job: Callable[[], T]) -> T:
        assert not self._closed, "the tree is closed"
        done: asyncio.Future[T] = self._loop.create_future()
        self._jobs.put(lambda: self._perform(job, done))
        return await done

    def _perform(self, job: Callable[[], T], done: "asyncio.Future[T]") -> None:
        outcome: tuple[T | None, BaseException | None]
        try:
            outcome = (job(), None)
        except BaseException as error:  # noqa: BLE001  (handed to whoever awaits it)
            outcome = (None, error)
        woken, self._woken = self._woken, []
        try:
            self._loop.call_soon_threadsafe(_deliver, done, outcome, woken)
        except RuntimeError:
            log.debug("tree: the event loop ended before an answer came")

    def _work(self) -> None:
        while True:
            try:
                job = (
                    self._jobs.get(timeout=_QUIET_SECONDS) if self._unsettled else self._jobs.get()
                )
            except queue.Empty:
                self._settle()
                continue
            if job is None:
                break
            job()
        if hasattr(self, "_connection"):
            self._connection.close()

    # --- on the worker thread

    def _open(self) -> None:
        import sqlite3  # 5 ms that only a node with an embedded tree has to pay

        try:
            # check_same_thread stays on: a call from elsewhere is a mistake of ours.
            connection = sqlite3.connect(self._path, isolation_level=None)
            self._connection = connection
            # Exclusive locking also does without the shared-memory file beside the WAL.
            connection.execute("PRAGMA locking_mode=EXCLUSIVE")
            # Turning a new file into a WAL one would fsync several times; the first
            # checkpoint does that a moment later, off the path to the first record.
            connection.execute("PRAGMA synchronous=OFF")
            connection.execute("PRAGMA journal_mode=WAL")
            connection.executescript(f"BEGIN IMMEDIATE;{_SCHEMA}COMMIT;")
            connection.execute("PRAGMA synchronous=NORMAL")
            (self._zxid,) = connection.execute("SELECT zxid FROM counter").fetchone()
            self._unsettled = True  # not before: there would be nothing to settle it with
        except sqlite3.OperationalError as error:
            raise OSError(
                f"the coordination tree {self._path} cannot be opened: {error}"
            ) from error
        except sqlite3.DatabaseError as error:
            raise Corrupt(
                f"{self._path} cannot be read as a coordination tree ({error}). Move it away: "
                "topics are then read back from the partition folders, their settings are not."
            ) from error

    def _settle(self) -> None:
        """Bring what was acknowledged onto the platter."""
        import sqlite3

        self._unsettled = False
        try:
            self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
        except sqlite3.Error as error:
            log.warning(
                "tree: %s was not checkpointed, later writes try again: %s", self._path, error
            )

    def _get(self, path: str, watch: Watch | None) -> Node | None:
        if watch is not None:
            self._node_watches.setdefault(path, []).append(watch)
        row = self._connection.execute(
            "SELECT value, zk_version, created_zxid, modified_zxid FROM node WHERE path = ?",
            (path,),
        ).fetchone()
        return Node(*row) if row is not None else None

    def _children(self, path: str, watch: Watch | None) -> list[str] | None:
        if self._row(path) is None:
            if watch is not None:
                self._node_watches.setdefault(path, []).append(watch)
            return None
        if watch is not None:
            self._children_watches.setdefault(path, []).append(watch)
        skip = len(path) + (path != "/")
        rows = self._connection.execute("SELECT path FROM node WHERE parent = ?", (path,))
        return sorted(child[skip:] for (child,) in rows)

    def _multi(self, operations: Sequence[Operation]) -> list[Done]:
        import sqlite3

        connection = self._connection
        zxid = self._zxid + 1
        results = []
        touched: list[tuple[dict[str, list[Watch]], str]] = []
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
                log.error("tree: a write to %s failed and was undone: %s", self._path, error)
                raise Unwritable(operations[0].path) from error
            raise
        self._zxid = zxid
        self._unsettled = True
        for watches, path in touched:
            self._woken += [(watch, path) for watch in watches.pop(path, ())]
        return results

    def _apply(
        self, operation: Operation, zxid: int, touched: list[tuple[dict[str, list[Watch]], str]]
    ) -> Done:
        execute = self._connection.execute
        match operation:
            case Create(path, value, ephemeral, sequential):
                parent = _parent(path)
                row = self._row(parent)
                if row is None:
                    raise NoNode(parent)
                _, parent_is_ephemeral, next_sequence = row
                if parent_is_ephemeral:
                    raise EphemeralParent(parent)
                if sequential:
                    path = f"{path}{next_sequence:010d}"
                    execute(
                        "UPDATE node SET next_sequence = next_sequence + 1 WHERE path = ?",
                        (parent,),
                    )
                created = execute(
                    "INSERT OR IGNORE INTO node VALUES (?, ?, ?, 0, ?, ?, ?, 0)",
                    (path, parent, value, zxid, zxid, ephemeral),
                )
                if not created.rowcount:
                    raise NodeExists(path)
                touched += ((self._node_watches, path), (self._children_watches, parent))
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
                    self._checked(path, expected)  # says which of the two is wrong
                touched.append((self._node_watches, path))
                return Done(path, ZkVersion(expected + 1), zxid)
            case Delete(path, expected):
                zk_version = self._checked(path, expected)
                if execute("SELECT 1 FROM node WHERE parent = ? LIMIT 1", (path,)).fetchone():
                    raise NotEmpty(path)
                execute("DELETE FROM node WHERE path = ?", (path,))
                touched += (
                    (self._node_watches, path),
                    (self._children_watches, path),
                    (self._children_watches, _parent(path)),
                )
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


def _parent(path: str) -> str:
    assert path.startswith("/") and path != "/", f"{path!r} is no path of a node"
    return path.rpartition("/")[0] or "/"


def _deliver(
    done: "asyncio.Future[T]",
    outcome: tuple[T | None, BaseException | None],
    woken: list[tuple[Watch, str]],
) -> None:
    if not done.cancelled():
        result, error = outcome
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(result)  # type: ignore[arg-type]
    for watch, path in woken:
        watch(path)
