"""The coordination tree of a cluster: one ZooKeeper session, shared with Kafka's own brokers.

``kazoo_session`` sends requests and brings answers and events to the event loop in ZooKeeper's
order. This module makes a ``Tree`` of that:

- Reads wait for a lost connection to return and are sent again. A write is sent once; if its
  answer does not come, the caller gets ``OutcomeUnknown``.
- kazoo drops its watches with the connection. For each watch the tree remembers the zxid of what
  the read saw. After a reconnect it reads that zxid again, which also sets ZooKeeper's watch again,
  and calls the watch if the zxid differs.
- The zxid of a write is in the header of ZooKeeper's answer, so ``Done.zxid`` costs no read.
- ZooKeeper does not say which version a ``Check`` or a ``Delete`` found: with ``ANY_VERSION`` their
  ``Done.zk_version`` is -1.
- A chroot in ``zookeeper.connect`` is the root of the tree. Without one the root also has
  ZooKeeper's own node ``/zookeeper``.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from headrace.coordination.tree import (
    Create,
    Done,
    Node,
    NodeExists,
    Operation,
    OutcomeUnknown,
    SessionEvent,
    SessionLost,
    Set,
    Tree,
    Unwritable,
    Watch,
    parent_of,
)
from headrace.coordination.watches import Aspect, Touch, Watches
from headrace.model.errors import ConfigError
from headrace.model.ids import Millis, ZkVersion

if TYPE_CHECKING:
    from headrace.coordination.kazoo_session import Answer, Credentials

_log = logging.getLogger("headrace.metadata")

# kazoo wakes its thread through a socket that holds fewer than 300 wake-ups and blocks when full.
_IN_FLIGHT_MAX = 64
_READS_PER_REQUEST = 200
# ZooKeeper closes the connection at a larger request than 1 MiB (its jute.maxbuffer), paths
# included, which would look like a lost answer.
_WRITE_BYTES_MAX = 1_000_000
_MISSING = 0  # the zxid that a watch on a missing node saw

_Send = Callable[[], "asyncio.Future[Answer]"]


class ZooKeeperTree(Tree):
    """One broker's ``Tree``. Make it with ``open``."""

    def __init__(
        self, connect: str, session_timeout_ms: int, reattach: "Credentials | None"
    ) -> None:
        from headrace.coordination.kazoo_session import KazooSession, refusal

        hosts, _, chroot = connect.partition("/")
        self.on_session_event: Callable[[SessionEvent], None] | None = None
        self._connect = connect
        self._chroot = f"/{chroot.strip('/')}" if chroot.strip("/") else ""
        self._refusal = refusal
        self.session = KazooSession(
            hosts, session_timeout_ms, reattach, self._state_changed, self._touched
        )
        self._in_flight = asyncio.Semaphore(_IN_FLIGHT_MAX)
        self._usable = asyncio.Event()  # connected, or ended: calls need not wait
        self._was_connected = False
        self._ended = False
        self._watches = Watches()
        self._seen: dict[Touch, int] = {}  # by watch: the zxid of what the read saw
        self._renewal: asyncio.Task[None] | None = None

    @classmethod
    async def open(
        cls,
        connect: str,
        *,
        session_timeout_ms: int,
        connection_timeout_ms: int,
        reattach: "Credentials | None" = None,
    ) -> "ZooKeeperTree":
        """A session of its own, or the one that ``reattach`` names; its chroot exists.

        Raises ConfigError if ZooKeeper does not answer, and SessionLost if the session to reattach
        has ended.
        """
        try:
            tree = cls(connect, session_timeout_ms, reattach)
        except ModuleNotFoundError as missing:
            raise ConfigError(
                f"zookeeper.connect requires the package {missing.name}: "
                "run pip install 'headrace[cluster]'"
            ) from missing
        tree.session.start()
        try:
            async with asyncio.timeout(connection_timeout_ms / 1000):
                await tree._usable.wait()
                if reattach is not None and tree.session_id != reattach[0]:
                    raise SessionLost("/")
                await tree._create_chroot()
        except TimeoutError as late:
            await tree.close()
            raise ConfigError(
                f"zookeeper.connect: no answer from ZooKeeper at {connect} within "
                f"{connection_timeout_ms} ms. Start ZooKeeper, correct the address, or raise "
                "zookeeper.connection.timeout.ms"
            ) from late
        except BaseException:
            await tree.close()
            raise
        return tree

    @property
    def session_id(self) -> int:
        return self.credentials[0]

    @property
    def credentials(self) -> "Credentials":
        """Session id and password, with which a later process can reattach."""
        credentials = self.session.credentials
        assert credentials is not None, "the session has not been opened"
        return credentials

    # --- the contract

    async def get(self, path: str, watch: Watch | None = None) -> Node | None:
        full, watched = self._full(path), watch is not None
        while True:
            found = await self._read(path, lambda: self.session.get(full, watched))
            if found is not None:
                self._watch(Aspect.NODE, path, found[1].mzxid, watch)
                return _node(*found)
            if await self._is_missing(path, watch):
                return None

    async def get_many(self, paths: Sequence[str]) -> list[Node | None]:
        parts = [
            paths[start:][:_READS_PER_REQUEST] for start in range(0, len(paths), _READS_PER_REQUEST)
        ]
        self._check_alive("/")
        try:
            found = await asyncio.gather(*map(self._get_several, parts))
        except NotImplementedError:  # by a ZooKeeper before 3.6
            return list(await asyncio.gather(*map(self.get, paths)))
        return [node for part in found for node in part]

    async def children(self, path: str, watch: Watch | None = None) -> list[str] | None:
        full, watched = self._full(path), watch is not None
        while True:
            found = await self._read(path, lambda: self.session.children(full, watched))
            if found is not None:
                names, stat = found
                self._watch(Aspect.CHILDREN, path, stat.pzxid, watch)
                return sorted(names)
            if await self._is_missing(path, watch):
                return None

    async def multi(self, operations: Sequence[Operation]) -> list[Done]:
        for operation in operations:
            if isinstance(operation, Create):
                parent_of(operation.path)  # raises ValueError if the path is malformed
        return await self._write(operations)

    async def sync(self) -> None:
        await self._read("/", lambda: self.session.sync(self._full("/")))

    async def close(self) -> None:
        """End the session. Without a connection its ephemeral nodes stay until it expires."""
        if self._ended:
            return
        connected = self._usable.is_set()
        self._end()
        await self.session.close(connected=connected)

    # --- requests

    async def _read(self, path: str, send: _Send) -> Any:
        while True:
            try:
                return (await self._ask(path, send)).value_for(path)
            except ConnectionResetError:
                self._check_alive(path)

    async def _get_several(self, paths: Sequence[str]) -> list[Node | None]:
        full = [self._full(path) for path in paths]
        found = await self._read(paths[0], lambda: self.session.get_several(full))
        return [None if each is None else _node(*each) for each in found]

    async def _write(self, operations: Sequence[Operation]) -> list[Done]:
        path = operations[0].path
        size = sum(len(each.value) for each in operations if isinstance(each, Create | Set))
        if size > _WRITE_BYTES_MAX:
            _log.error("A write of %d bytes at %s is too large for ZooKeeper", size, path)
            raise Unwritable(path)
        full = [each._replace(path=self._full(each.path)) for each in operations]
        answer = await self._ask(path, lambda: self.session.commit(full))
        try:
            results = answer.value_for(path)
        except ConnectionResetError as lost:
            self._check_alive(path)
            raise OutcomeUnknown(path) from lost
        refusal = self._refusal(operations, results)
        if refusal is not None:
            raise refusal
        return [
            self._done(operation, result, answer.zxid)
            for operation, result in zip(operations, results, strict=True)
        ]

    async def _ask(self, path: str, send: _Send) -> "Answer":
        async with self._in_flight:
            await self._usable.wait()
            self._check_alive(path)
            return await send()

    async def _is_missing(self, path: str, watch: Watch | None) -> bool:
        """Whether ``path`` is still missing; ``watch`` fires when it is created."""
        if watch is None:
            return True
        full = self._full(path)
        if await self._read(path, lambda: self.session.exists(full, watched=True)) is not None:
            return False
        self._watch(Aspect.NODE, path, _MISSING, watch)
        return True

    async def _create_chroot(self) -> None:
        chroot, self._chroot = self._chroot, ""
        for end in [at for at in range(1, len(chroot) + 1) if chroot[at : at + 1] in ("/", "")]:
            await self._create_if_missing(chroot[:end])
        self._chroot = chroot

    async def _create_if_missing(self, path: str) -> None:
        while await self.get(path) is None:
            try:
                await self.create(path)
            except (NodeExists, OutcomeUnknown):
                continue

    def _done(self, operation: Operation, result: Any, zxid: int) -> Done:
        match operation:
            case Create():
                return Done(result.removeprefix(self._chroot), ZkVersion(0), zxid)
            case Set(path):
                return Done(path, ZkVersion(result.version), zxid)
        return Done(operation.path, operation.expected, zxid)

    def _full(self, path: str) -> str:
        return self._chroot + path if path != "/" else self._chroot or "/"

    def _check_alive(self, path: str) -> None:
        if self._ended:
            raise SessionLost(path)

    # --- watches

    def _watch(self, aspect: Aspect, path: str, zxid: int, watch: Watch | None) -> None:
        if watch is None:
            return
        touch = Touch(aspect, path)
        if self._seen.get(touch, zxid) != zxid:
            # It changed while the connection was lost, and this read was faster than the renewal.
            self._fire([touch], but=watch)
        self._watches.add(aspect, path, watch)
        self._seen[touch] = zxid

    def _touched(self, touched: list[Touch]) -> None:
        """Paths as ZooKeeper knows them."""
        self._fire([Touch(aspect, path[len(self._chroot) :] or "/") for aspect, path in touched])

    def _fire(self, touched: list[Touch], but: Watch | None = None) -> None:
        for touch in touched:
            self._seen.pop(touch, None)
        for watch, path in self._watches.fire(touched):
            if watch != but:
                watch(path)

    async def _renew_watches(self) -> None:
        try:
            await asyncio.gather(*(self._renew(touch) for touch in list(self._seen)))
        except SessionLost:
            _log.debug("The ZooKeeper session ended before its watches were set again")

    async def _renew(self, touch: Touch) -> None:
        full = self._full(touch.path)
        if touch.aspect is Aspect.NODE:
            stat = await self._read(touch.path, lambda: self.session.exists(full, watched=True))
            zxid = stat.mzxid if stat is not None else _MISSING
        else:
            found = await self._read(touch.path, lambda: self.session.children(full, watched=True))
            zxid = found[1].pzxid if found is not None else _MISSING
        if self._seen.get(touch, zxid) != zxid:
            self._fire([touch])

    # --- the session

    def _state_changed(self, event: SessionEvent) -> None:
        if self._ended:
            return
        match event:
            case SessionEvent.SUSPENDED:
                _log.warning("Lost the connection to ZooKeeper at %s; reconnecting", self._connect)
                self._usable.clear()
            case SessionEvent.RECONNECTED:
                self._usable.set()
                if not self._was_connected:
                    self._was_connected = True
                    return
                _log.info("Connected to ZooKeeper at %s again", self._connect)
            case SessionEvent.LOST:
                _log.warning("The session at ZooKeeper %s has ended", self._connect)
                self._end()
                self.session.stop_beating()
        if self.on_session_event is not None:
            self.on_session_event(event)
        if event is SessionEvent.RECONNECTED:
            self._renewal = asyncio.get_running_loop().create_task(self._renew_watches())

    def _end(self) -> None:
        self._ended = True
        self._watches = Watches()
        self._seen.clear()
        self._usable.set()
        if self._renewal is not None:
            self._renewal.cancel()


async def close_session(
    connect: str,
    credentials: "Credentials",
    *,
    session_timeout_ms: int,
    connection_timeout_ms: int,
) -> bool:
    """Attach to a session that another process left, and end it. Returns whether it was alive."""
    try:
        tree = await ZooKeeperTree.open(
            connect,
            session_timeout_ms=session_timeout_ms,
            connection_timeout_ms=connection_timeout_ms,
            reattach=credentials,
        )
    except SessionLost:
        return False
    await tree.close()
    return True


def _node(value: bytes | None, stat: Any) -> Node:
    return Node(
        value or b"",
        ZkVersion(stat.version),
        stat.czxid,
        stat.mzxid,
        Millis(stat.ctime),
        stat.ephemeralOwner,
    )
