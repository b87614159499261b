"""One ZooKeeper session on kazoo's threads: requests go out, answers and events come to the loop.

kazoo's connection thread reads answers and watch events in the order in which ZooKeeper sent them.
This module posts both to the owner's event loop from that thread, so the order is kept; kazoo's own
worker threads, one for each kind, would lose it.

kazoo repeats nothing here: each request is sent once, and ``Answer.value_for`` says how it ended.
kazoo would open another session after one has expired. ``_over`` is set first, under the lock that
every request takes, so no request can reach that session, and the client is stopped.

A loop that has not turned for a session timeout cannot give up its leaderships, while kazoo's
thread would keep the session alive. The guard thread then closes the session.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from kazoo.client import KazooClient
from kazoo.exceptions import (
    EXCEPTIONS,
    BadVersionError,
    ConnectionLoss,
    KazooException,
    NoChildrenForEphemeralsError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    RolledBackError,
    SessionExpiredError,
    UnimplementedError,
    ZookeeperError,
)
from kazoo.handlers.threading import AsyncResult, SequentialThreadingHandler
from kazoo.protocol.serialization import (
    GetData,
    MultiHeader,
    int_struct,
    read_buffer,
    stat_struct,
)
from kazoo.protocol.states import Callback, EventType, KazooState, WatchedEvent, ZnodeStat

from headrace.coordination.tree import (
    BadVersion,
    Check,
    Conflict,
    Create,
    Delete,
    EphemeralParent,
    NodeExists,
    NoNode,
    NotEmpty,
    Operation,
    SessionEvent,
    SessionLost,
    Set,
)
from headrace.coordination.watches import Aspect, Touch

_log = logging.getLogger("headrace.metadata")
# kazoo warns at every attempt to reconnect. The tree says once that the connection is lost.
_kazoo_log = _log.getChild("kazoo")
_kazoo_log.setLevel(logging.ERROR)

Credentials = tuple[int, bytes]

# A new cluster starts with its ZooKeeper: a longer pause would delay every broker.
_RECONNECT = {"max_tries": -1, "delay": 0.05, "backoff": 2, "max_delay": 0.2}
_BEATS_PER_TIMEOUT = 10

_EVENTS = {
    KazooState.SUSPENDED: SessionEvent.SUSPENDED,
    KazooState.CONNECTED: SessionEvent.RECONNECTED,
    KazooState.LOST: SessionEvent.LOST,
}
_TOUCHED = {
    EventType.CREATED: (Aspect.NODE,),
    EventType.CHANGED: (Aspect.NODE,),
    EventType.DELETED: (Aspect.NODE, Aspect.CHILDREN),
    EventType.CHILD: (Aspect.CHILDREN,),
}
_CONFLICTS: dict[type[ZookeeperError], type[Conflict]] = {
    NoNodeError: NoNode,
    NodeExistsError: NodeExists,
    BadVersionError: BadVersion,
    NotEmptyError: NotEmpty,
    NoChildrenForEphemeralsError: EphemeralParent,
}


def refusal(operations: Sequence[Operation], results: Sequence[object]) -> Exception | None:
    """The error that made a ``commit`` fail; None if it did not.

    The results before it say that they were rolled back.
    """
    for index, (operation, result) in enumerate(zip(operations, results, strict=True)):
        if isinstance(result, ZookeeperError) and not isinstance(result, RolledBackError):
            conflict = _CONFLICTS.get(type(result))
            return conflict(operation.path, index) if conflict is not None else result
    return None


class Answer(NamedTuple):
    """How a request ended. A write's answer has its zxid; a read's has the last one seen."""

    value: Any
    error: Exception | None
    zxid: int

    def value_for(self, path: str) -> Any:
        """The value; None if there is no such node.

        Raises ConnectionResetError if the connection was lost before the answer came, SessionLost
        if the session has ended, and NotImplementedError if ZooKeeper does not know the request.
        """
        match self.error:
            case None:
                return self.value
            case NoNodeError():
                return None
            case ConnectionLoss():
                raise ConnectionResetError(f"Lost the connection to ZooKeeper at {path}")
            case SessionExpiredError():
                raise SessionLost(path)
            case UnimplementedError():
                raise NotImplementedError
        raise self.error


class KazooSession:
    """Requests are made on the owner's event loop, where both callbacks are called too."""

    def __init__(
        self,
        hosts: str,
        session_timeout_ms: int,
        reattach: Credentials | None,
        on_state: Callable[[SessionEvent], None],
        on_change: Callable[[list[Touch]], None],
    ) -> None:
        self.credentials: Credentials | None = reattach  # once connected, those of this session
        self._loop = asyncio.get_running_loop()
        self._timeout_s = session_timeout_ms / 1000
        self._on_state = on_state
        self._on_change = on_change
        self._handler = _Handler(self._loop)
        self.client = KazooClient(
            hosts,
            timeout=self._timeout_s,
            client_id=reattach,
            handler=self._handler,
            connection_retry=_RECONNECT,
            logger=_kazoo_log,
        )
        self._handler.client = self.client
        self.client.add_listener(self._state_changed)
        self._lock = self._handler.lock_object()
        self._over = False  # under the lock: no request may be sent
        self._stopping = False  # under the lock
        self._ended = self._handler.event_object()
        self._turned_at = self._loop.time()
        self._beat_timer: asyncio.TimerHandle | None = None

    # --- on the owner's loop

    def start(self) -> None:
        """Connect, retrying until it succeeds. ``on_state`` gets RECONNECTED the first time too."""
        self.client.start_async()
        self._beat()
        self._handler.spawn(self._guard)

    async def close(self, *, connected: bool) -> None:
        """End the session. Without a connection its ephemeral nodes stay until it expires."""
        with self._lock:
            self._over = True
        self.stop_beating()
        stopped = self._loop.create_future()
        self._handler.spawn(self._stop, stopped)
        if connected:
            await asyncio.wait({stopped}, timeout=self._timeout_s)

    def stop_beating(self) -> None:
        if self._beat_timer is not None:
            self._beat_timer.cancel()
            self._beat_timer = None
        self._ended.set()

    def get(self, path: str, watched: bool) -> asyncio.Future[Answer]:
        return self._send(lambda: self.client.get_async(path, self._watcher(watched)))

    def exists(self, path: str, watched: bool) -> asyncio.Future[Answer]:
        return self._send(lambda: self.client.exists_async(path, self._watcher(watched)))

    def children(self, path: str, watched: bool) -> asyncio.Future[Answer]:
        watcher = self._watcher(watched)
        return self._send(lambda: self.client.get_children_async(path, watcher, include_data=True))

    def get_several(self, paths: Sequence[str]) -> asyncio.Future[Answer]:
        """The answer has a list: for each path a value and a stat, or None."""

        def call() -> _PostedResult:
            result = self._handler.async_result()
            self.client._call(_MultiRead(paths), result)
            return result

        return self._send(call)

    def sync(self, path: str) -> asyncio.Future[Answer]:
        return self._send(lambda: self.client.sync_async(path))

    def commit(self, operations: Sequence[Operation]) -> asyncio.Future[Answer]:
        """The answer has a list: for each operation a path, a stat, True or an error."""
        transaction = self.client.transaction()
        for operation in operations:
            match operation:
                case Create(path, value, ephemeral, sequential):
                    transaction.create(path, value, ephemeral=ephemeral, sequence=sequential)
                case Set(path, value, expected):
                    transaction.set_data(path, value, expected)
                case Delete(path, expected):
                    transaction.delete(path, expected)
                case Check(path, expected):
                    transaction.check(path, expected)
        return self._send(transaction.commit_async)

    def _send(self, call: Callable[[], "_PostedResult"]) -> asyncio.Future[Answer]:
        with self._lock:
            if not self._over:
                return call().future
        over: asyncio.Future[Answer] = self._loop.create_future()
        over.set_result(Answer(None, SessionExpiredError(), 0))
        return over

    def _watcher(self, watched: bool) -> Callable[[WatchedEvent], None] | None:
        return self._watch_fired if watched else None

    def _beat(self) -> None:
        self._turned_at = self._loop.time()
        self._beat_timer = self._loop.call_later(self._timeout_s / _BEATS_PER_TIMEOUT, self._beat)

    # --- on kazoo's connection thread

    def _state_changed(self, state: str) -> None:
        with self._lock:
            if self._over:
                return
            self._over = state == KazooState.LOST
            if state == KazooState.CONNECTED:
                self.credentials = self.client.client_id
        _post(self._loop, self._on_state, _EVENTS[state])
        if state == KazooState.LOST:
            self._handler.spawn(self._stop)

    def _watch_fired(self, event: WatchedEvent) -> None:
        touched = [Touch(aspect, event.path) for aspect in _TOUCHED.get(event.type, ())]
        if touched:
            # One turn later: a read that was answered before has then returned to its caller.
            _post(self._loop, self._loop.call_soon, self._on_change, touched)

    # --- on threads of their own

    def _guard(self) -> None:
        while not self._ended.wait(self._timeout_s / _BEATS_PER_TIMEOUT):
            silence_s = self._loop.time() - self._turned_at
            if silence_s > self._timeout_s:
                _log.error(
                    "The broker was suspended or busy for %.1f s, longer than the session timeout; "
                    "closing the ZooKeeper session so that other brokers can take over",
                    silence_s,
                )
                self._stop()

    def _stop(self, stopped: asyncio.Future[None] | None = None) -> None:
        with self._lock:
            first, self._stopping = not self._stopping, True
        if first:
            try:
                self.client.stop()
                self.client.close()
            except KazooException as error:
                _log.warning("The ZooKeeper session was not closed; it will expire: %r", error)
        self._ended.set()
        if stopped is not None:
            _post(self._loop, _resolve, stopped, None)


class _MultiRead:
    """Many reads in one request, which kazoo does not know. ZooKeeper has it since 3.6."""

    type = 22

    def __init__(self, paths: Sequence[str]) -> None:
        self.paths = paths

    def serialize(self) -> bytes:
        reads = b"".join(
            MultiHeader(GetData.type, False, -1).serialize() + GetData(path, None).serialize()
            for path in self.paths
        )
        return reads + bytes(MultiHeader(-1, True, -1).serialize())

    @classmethod
    def deserialize(cls, answer: bytes, offset: int) -> list[tuple[bytes, ZnodeStat] | None]:
        found: list[tuple[bytes, ZnodeStat] | None] = []
        header, offset = MultiHeader.deserialize(answer, offset)
        while not header.done:
            if header.type == GetData.type:
                value, offset = read_buffer(answer, offset)
                found.append((value, ZnodeStat._make(stat_struct.unpack_from(answer, offset))))
                offset += stat_struct.size
            else:
                (code,) = int_struct.unpack_from(answer, offset)
                if code != NoNodeError.code:
                    raise EXCEPTIONS[code]()
                found.append(None)
                offset += int_struct.size
            header, offset = MultiHeader.deserialize(answer, offset)
        return found


class _PostedResult(AsyncResult):
    """Posts the answer from the connection thread, while the client still knows its zxid."""

    def __init__(self, handler: "_Handler") -> None:
        super().__init__(handler)
        self.future: asyncio.Future[Answer] = handler.loop.create_future()

    def set(self, value: Any = None) -> None:
        super().set(value)
        self._post_answer(value, None)

    def set_exception(self, exception: Exception) -> None:
        super().set_exception(exception)
        self._post_answer(None, exception)

    def _post_answer(self, value: Any, error: Exception | None) -> None:
        answer = Answer(value, error, self._handler.client.last_zxid)
        _post(self._handler.loop, _resolve, self.future, answer)


class _Handler(SequentialThreadingHandler):
    """kazoo's threads without its two workers: callbacks run on the connection thread."""

    client: KazooClient

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self.loop = loop

    def start(self) -> None:
        pass

    def stop(self) -> None:
        pass

    def async_result(self) -> _PostedResult:
        return _PostedResult(self)

    def dispatch_callback(self, callback: Callback) -> None:
        callback.func(*callback.args)


def _post(
    loop: asyncio.AbstractEventLoop, callback: Callable[..., object], *arguments: object
) -> None:
    try:
        loop.call_soon_threadsafe(callback, *arguments)
    except RuntimeError:
        _log.debug("A ZooKeeper session outlived the event loop of its owner")


def _resolve(future: asyncio.Future[Any], result: object) -> None:
    if not future.done():
        future.set_result(result)
