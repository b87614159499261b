"""The brokers' sessions in one tree in memory, which expire without heartbeats as ZooKeeper's do.

No heartbeat is ever sent: the kit knows when a broker is silent, and starts the session timeout
then. So a busy machine expires no session by mistake.
"""

import threading
import time
from enum import Enum

from headrace.coordination.memory import MemorySession, MemoryTree
from headrace.model.ids import Millis


class Silence(Enum):
    """Why the tree gets no message from a broker."""

    CUT = "cut"  # the broker notices that its connection is lost
    PAUSED = "paused"
    KILLED = "killed"


class TreeSessions:
    """All methods may be called from any thread, ``open`` on the event loop of the broker."""

    def __init__(self, timeout_s: float, snapshot: bytes | None = None) -> None:
        """The tree begins with the nodes of an earlier tree's ``snapshot``."""
        self._timeout_s = timeout_s
        self.tree = MemoryTree(lambda: Millis(time.time_ns() // 1_000_000), snapshot)
        self._lock = threading.RLock()
        self._brokers: dict[int, _BrokerSession] = {}

    def open(self, broker_id: int) -> MemorySession:
        """A session for a broker that starts, or whose last session expired."""
        with self._lock:
            broker = self._broker(broker_id)
            session = self.tree.open_session()
            broker.replace(session)
            return session

    def silence(self, broker_id: int, reason: Silence) -> None:
        with self._lock:
            self._broker(broker_id).silence(reason)

    def end_silence(self, broker_id: int, reason: Silence) -> None:
        """End the silence for this reason."""
        with self._lock:
            self._broker(broker_id).end_silence(reason)

    def expire(self, broker_id: int) -> None:
        """Expire the session now."""
        with self._lock:
            self._broker(broker_id).expire()

    def reconnect_all(self) -> None:
        """Let every broker lose its connection and open another, within its session."""
        with self._lock:
            for broker in self._brokers.values():
                broker.reconnect()

    def read(self, path: str) -> bytes | None:
        """The value of a node of the tree."""
        return self.tree.read(path)

    def snapshot(self) -> bytes:
        return self.tree.snapshot()

    def close(self) -> None:
        with self._lock:
            for broker in self._brokers.values():
                broker.stop_timer()

    def _broker(self, broker_id: int) -> "_BrokerSession":
        if broker_id not in self._brokers:
            self._brokers[broker_id] = _BrokerSession(self.tree, self._lock, self._timeout_s)
        return self._brokers[broker_id]


class _BrokerSession:
    """The session of one broker, and why it is silent. Every call holds the lock."""

    def __init__(self, tree: MemoryTree, lock: threading.RLock, timeout_s: float) -> None:
        self.tree = tree
        self._lock = lock
        self._timeout_s = timeout_s
        self._session: MemorySession | None = None
        self._reasons: set[Silence] = set()
        self._timer: threading.Timer | None = None

    def replace(self, session: MemorySession) -> None:
        self.stop_timer()
        self._session = session
        if self._reasons:
            self._start_timeout()

    def silence(self, reason: Silence) -> None:
        if reason not in self._reasons:
            self._reasons.add(reason)
            self._start_timeout()

    def end_silence(self, reason: Silence) -> None:
        self._reasons.discard(reason)
        if not self._reasons:
            self.stop_timer()
        if self._session is not None and not self._reasons & {Silence.CUT, Silence.KILLED}:
            self._session.reconnect()

    def reconnect(self) -> None:
        if self._session is not None and not self._reasons:
            self._session.disconnect()
            self._session.reconnect()

    def expire(self) -> None:
        self.stop_timer()
        if self._session is not None:
            self.tree.expire(self._session.session_id)

    def stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _start_timeout(self) -> None:
        if self._session is None:
            return
        if self._reasons & {Silence.CUT, Silence.KILLED}:
            self._session.disconnect()
        if self._timer is None:
            timer = threading.Timer(self._timeout_s, self._timed_out, (self._session,))
            timer.daemon = True
            timer.name = "headrace-session-timeout"
            self._timer = timer
            timer.start()

    def _timed_out(self, session: MemorySession) -> None:
        with self._lock:
            # The broker may have been heard, or may have another session, in the meantime.
            if self._timer is threading.current_thread() and session is self._session:
                self.expire()
