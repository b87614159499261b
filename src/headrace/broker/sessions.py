"""Sessions of a broker with the coordination tree that its cluster shares.

A broker that is restarted within the session timeout finds its own registration, of the session of
its last process. Session id and password are kept beside the logs for that case: the holder of the
lock on the log directory reattaches to that session and closes it.
"""

import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.coordination import zookeeper
from headrace.coordination.registry import Registry
from headrace.coordination.tree import SessionLost, Tree
from headrace.model.ids import BrokerId
from headrace.storage.checkpoint import ZOOKEEPER_SESSION
from headrace.storage.files import read_file, write_atomically
from headrace.world.files import SystemFiles

if TYPE_CHECKING:
    from headrace.broker.membership import Sessions
    from headrace.model.config import BrokerConfig

_log = logging.getLogger("headrace.controller")

_OWNER_ONLY = 0o600
_TRIES = 5
_UNREGISTERED = BrokerId(-1)  # the broker before it knows its id


async def open_first_session(sessions: "Sessions") -> Tree:
    """A session in which the nodes exist that every broker needs.

    If the session ends meanwhile, as on a busy machine, another one is opened. Raises SessionLost
    if that happens again and again.
    """
    for tries_left in reversed(range(_TRIES)):
        try:
            session = await sessions.open()
            await Registry(session, _UNREGISTERED).create_persistent_nodes()
        except SessionLost:
            if not tries_left:
                raise
            _log.warning("The session ended during the start of the broker; opening another")
        else:
            return session
    raise AssertionError("the last try returns or raises")


class InProcessSessions:
    """Sessions of a tree within this process. They cannot be reattached to."""

    def __init__(self, open_session: Callable[[], Awaitable[Tree]], timeout_ms: int) -> None:
        self.timeout_ms = timeout_ms
        self._open_session = open_session

    async def open(self) -> Tree:
        return await self._open_session()

    async def release(self, session_id: int) -> bool:
        return False

    def remember(self, session: Tree) -> None:
        pass


class ZooKeeperSessions:
    """Sessions with the ensemble in ``zookeeper.connect``."""

    def __init__(self, config: "BrokerConfig", files: SystemFiles, log_dir: Path) -> None:
        self.timeout_ms = config.int("zookeeper.session.timeout.ms")
        self._connect = config.str("zookeeper.connect")
        connection_timeout_ms = config.optional_int("zookeeper.connection.timeout.ms")
        self._connection_timeout_ms = connection_timeout_ms or self.timeout_ms
        self._files = files
        self._path = log_dir / ZOOKEEPER_SESSION

    async def open(self) -> Tree:
        return await zookeeper.ZooKeeperTree.open(
            self._connect,
            session_timeout_ms=self.timeout_ms,
            connection_timeout_ms=self._connection_timeout_ms,
        )

    async def release(self, session_id: int) -> bool:
        kept = self._kept()
        if kept is None or kept[0] != session_id:
            return False
        await zookeeper.close_session(
            self._connect,
            kept,
            session_timeout_ms=self.timeout_ms,
            connection_timeout_ms=self._connection_timeout_ms,
        )
        return True  # also if it ended meanwhile

    def _kept(self) -> tuple[int, bytes] | None:
        with suppress(OSError, ValueError):
            session_id, password = read_file(self._files, self._path).decode().split()
            return int(session_id, 16), bytes.fromhex(password)
        return None

    def remember(self, session: Tree) -> None:
        assert isinstance(session, zookeeper.ZooKeeperTree), "opened by this object"
        session_id, password = session.credentials
        content = f"{session_id:x} {password.hex()}\n".encode()
        try:
            write_atomically(self._files, self._path, content, mode=_OWNER_ONLY)
        except OSError as error:
            _log.warning(
                "Could not keep the session id in %s: %s. A quick restart will wait until the "
                "session expires",
                self._path,
                error,
            )
