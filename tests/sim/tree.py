"""The coordination tree as simulated brokers reach it: late, with heartbeats and lost answers.

``SimulatedEnsemble`` is the ensemble, one ``MemoryTree``. Each broker opens a ``SimulatedSession``,
which has the methods of ``headrace.coordination.tree.Tree``. Requests and answers take time and
stay in order. A session expires if its broker has been silent (killed, paused, cut off) for the
session timeout. A write whose connection breaks before its answer arrives has an unknown outcome.
"""

import asyncio
import contextvars
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from headrace.coordination.memory import Delivery, Faults, MemorySession, MemoryTree
from headrace.coordination.tree import (
    Create,
    Delete,
    Done,
    Node,
    Operation,
    OutcomeUnknown,
    SessionEvent,
    SessionLost,
    Set,
    Watch,
)
from headrace.model.ids import Millis, ZkVersion
from tests.sim.world import wall_clock_ns

_LATENCY_S = (0.000_2, 0.003)
_REGISTRATIONS = "/brokers/ids/"
_IN_ORDER_S = 1e-7  # between two messages of one direction that would arrive together


class TreeFaultRates:
    """How often the tree misbehaves while ``are_on``."""

    def __init__(self, lost: float = 0.0, lag: float = 0.0, lag_s_max: float = 0.5) -> None:
        self.lost = lost  # share of writes without an answer
        self.lag = lag  # share of writes of others that a session sees late
        self.lag_s_max = lag_s_max
        self.are_on = True


class _DrawnFaults(Faults):
    def __init__(
        self, rates: TreeFaultRates, dice: random.Random, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._rates = rates
        self._dice = dice
        self._loop = loop
        self.sees_nothing_until = 0.0

    def write(self, operations: Sequence[Operation]) -> Delivery:
        if not self._rates.are_on or self._dice.random() >= self._rates.lost:
            return Delivery.ANSWERED
        return self._dice.choice([Delivery.ANSWER_LOST, Delivery.REQUEST_LOST])

    def lag(self) -> float:
        if (hidden_s := self.sees_nothing_until - self._loop.time()) > 0:
            return hidden_s
        if not self._rates.are_on or self._dice.random() >= self._rates.lag:
            return 0.0
        return self._dice.uniform(0, self._rates.lag_s_max)


class SimulatedEnsemble:
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        seed: int,
        rates: TreeFaultRates,
        session_timeout_s: float,
        *,
        releases_sessions: bool = False,
    ) -> None:
        """``releases_sessions``: a restarted broker ends the session of its last process itself.

        So it does with ZooKeeper, whose sessions can be reattached to.
        """
        self.loop = loop
        self.rates = rates
        self.session_timeout_s = session_timeout_s
        self.releases_sessions = releases_sessions
        self.tree = MemoryTree(lambda: Millis(wall_clock_ns(loop) // 1_000_000))
        # Of no process: what is on its way arrives although its sender is paused or dead.
        self.context = contextvars.Context()
        self.handling: dict[asyncio.Future[Any], None] = {}  # requests that arrived
        self._seed = seed
        self._brokers: dict[str, _Connection] = {}

    def open_session(self, host: str) -> "SimulatedSession":
        """A session of the running process on ``host``."""
        connection = self._connection(host)
        dice = random.Random(connection.dice.getrandbits(64))
        faults = _DrawnFaults(self.rates, dice, self.loop)
        inner = self.tree.open_session(faults)
        session = SimulatedSession(self, inner, dice, connection.release_last)
        connection.faults = faults
        connection.opened(session)
        return session

    def kill(self, host: str) -> None:
        """The process is gone without closing its session, which expires."""
        self._connection(host).kill()

    def restart(self, host: str) -> None:
        self._connection(host).is_dead = False

    def pause(self, host: str) -> None:
        self._connection(host).silence("paused")

    def resume(self, host: str) -> None:
        self._connection(host).hear("paused")

    def cut(self, host: str) -> None:
        self._connection(host).silence("cut")

    def mend(self, host: str) -> None:
        self._connection(host).hear("cut")

    def expire(self, host: str) -> None:
        self._connection(host).expire()

    def hide_changes(self, host: str, seconds: float) -> None:
        """The broker sees what others write late: its server lags behind the ensemble's leader."""
        faults = self._connection(host).faults
        if faults is not None:
            faults.sees_nothing_until = self.loop.time() + seconds

    def live_session(self, host: str) -> int | None:
        """The id of the session that the broker uses; None while the tree hears nothing of it."""
        return self._connection(host).live_session

    def _connection(self, host: str) -> "_Connection":
        if host not in self._brokers:
            self._brokers[host] = _Connection(self, random.Random(f"{self._seed} {host}"))
        return self._brokers[host]


class _Connection:
    """A broker's connection to the ensemble, and how long it may be silent."""

    def __init__(self, ensemble: SimulatedEnsemble, dice: random.Random) -> None:
        self.dice = dice
        self.is_dead = False
        self._ensemble = ensemble
        self.faults: _DrawnFaults | None = None  # of the session
        self._session: SimulatedSession | None = None
        self._last_process: int | None = None  # its session
        self._silent: dict[str, None] = {}  # reasons
        self._expiry: asyncio.TimerHandle | None = None

    @property
    def live_session(self) -> int | None:
        if self.is_dead or self._silent or self._session is None:
            return None
        return self._session.session_id

    def opened(self, session: "SimulatedSession") -> None:
        """The session before it, if any, goes on to expire."""
        self._session = session
        self._expiry = None
        if "cut" in self._silent:
            session.disconnect()
        if self._silent:
            self._expire_later()

    def silence(self, reason: str) -> None:
        self._silent[reason] = None
        if self._session is not None:
            if reason == "cut":
                self._session.disconnect()
            self._expire_later()

    def hear(self, reason: str) -> None:
        self._silent.pop(reason, None)
        if self.is_dead:
            return
        if not self._silent and self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
        if reason == "cut" and self._session is not None:
            self._session.reconnect()

    def kill(self) -> None:
        self.is_dead = True
        if self._session is not None:
            self._session.kill()
            self._expire_later()
            self._last_process = self._session.session_id
            self._session = self._expiry = None

    def release_last(self) -> None:
        """The broker finds the registration of its last process."""
        if self._ensemble.releases_sessions and self._last_process is not None:
            self._ensemble.tree.expire(self._last_process)

    def expire(self) -> None:
        if self._session is not None:
            self._ensemble.tree.expire(self._session.session_id)

    def _expire_later(self) -> None:
        if self._expiry is None and self._session is not None:
            self._expiry = self._ensemble.loop.call_later(
                self._ensemble.session_timeout_s,
                self._ensemble.tree.expire,
                self._session.session_id,
                context=self._ensemble.context,
            )


class _Way:
    """One direction: messages arrive late, and in order."""

    def __init__(self, loop: asyncio.AbstractEventLoop, dice: random.Random, context: Any) -> None:
        self._loop = loop
        self._dice = dice
        self._context = context
        self._last = 0.0

    def send(self, deliver: Callable[..., object], *message: object) -> None:
        at = self._loop.time() + self._dice.uniform(*_LATENCY_S)
        self._last = max(at, self._last + _IN_ORDER_S)
        self._loop.call_at(self._last, deliver, *message, context=self._context)


class SimulatedSession:
    """One broker's ``Tree``, in the context of the process that opened it."""

    def __init__(
        self,
        ensemble: SimulatedEnsemble,
        inner: MemorySession,
        dice: random.Random,
        release_last: Callable[[], None],
    ) -> None:
        self.on_session_event: Callable[[SessionEvent], None] | None = None
        self._inner = inner
        self._loop = ensemble.loop
        self._dice = dice
        self._handling = ensemble.handling
        self._release_last = release_last
        self._owner_context = contextvars.copy_context()
        self._there = _Way(ensemble.loop, dice, ensemble.context)
        self._back = _Way(ensemble.loop, dice, ensemble.context)
        self._watches: dict[Watch, Watch] = {}
        self._waiting: dict[asyncio.Future[Any], str] = {}  # for answers; the paths of writes
        self._is_dead = False
        inner.on_session_event = lambda event: self._back.send(self._tell, event)

    @property
    def session_id(self) -> int:
        return self._inner.session_id

    # --- the contract

    async def get(self, path: str, watch: Watch | None = None) -> Node | None:
        node: Node | None = await self._call(lambda: self._inner.get(path, self._late(watch)))
        return node

    async def get_many(self, paths: Sequence[str]) -> list[Node | None]:
        nodes: list[Node | None] = await self._call(lambda: self._inner.get_many(paths))
        return nodes

    async def children(self, path: str, watch: Watch | None = None) -> list[str] | None:
        names: list[str] | None = await self._call(
            lambda: self._inner.children(path, self._late(watch))
        )
        return names

    async def create(
        self, path: str, value: bytes = b"", *, ephemeral: bool = False, sequential: bool = False
    ) -> Done:
        return (await self.multi([Create(path, value, ephemeral, sequential)]))[0]

    async def set(self, path: str, value: bytes, expected: ZkVersion) -> Done:
        return (await self.multi([Set(path, value, expected)]))[0]

    async def delete(self, path: str, expected: ZkVersion) -> None:
        await self.multi([Delete(path, expected)])

    async def multi(self, operations: Sequence[Operation]) -> list[Done]:
        if operations[0].path.startswith(_REGISTRATIONS):
            self._release_last()
        written: list[Done] = await self._call(
            lambda: self._inner.multi(operations), writes=operations[0].path
        )
        return written

    async def sync(self) -> None:
        await self._call(self._inner.sync)

    async def close(self) -> None:
        if not self._is_dead:
            await self._inner.close()

    # --- faults

    def disconnect(self) -> None:
        """Writes without an answer have an unknown outcome: they arrived already, or never do."""
        self._inner.disconnect()
        for answer, path in list(self._waiting.items()):
            if path and not answer.done():
                answer.set_exception(OutcomeUnknown(path))

    def reconnect(self) -> None:
        self._inner.reconnect()

    def kill(self) -> None:
        self._is_dead = True
        for answer in list(self._waiting):
            answer.cancel()

    # --- messages

    async def _call(self, request: Callable[[], Awaitable[Any]], writes: str = "") -> Any:
        if self._is_dead:
            raise SessionLost(writes or "/")
        answer: asyncio.Future[Any] = self._loop.create_future()
        self._waiting[answer] = writes
        self._there.send(self._arrive, request, answer)
        try:
            return await answer
        finally:
            del self._waiting[answer]

    def _arrive(self, request: Callable[[], Awaitable[Any]], answer: "asyncio.Future[Any]") -> None:
        if answer.cancelled():  # its process is gone, and the request may have left before
            if self._dice.random() < 0.5:
                return
        elif answer.done():
            return  # lost with the connection
        handling = asyncio.ensure_future(request())
        self._handling[handling] = None

        def respond(done: asyncio.Future[Any]) -> None:
            self._handling.pop(done, None)
            self._back.send(_deliver, done, answer)

        handling.add_done_callback(respond)

    def _late(self, watch: Watch | None) -> Watch | None:
        """The same object for the same watch, so that setting it twice calls it once."""
        if watch is None:
            return None
        if watch not in self._watches:
            self._watches[watch] = lambda path: self._back.send(self._fire, watch, path)
        return self._watches[watch]

    def _fire(self, watch: Watch, path: str) -> None:
        if not self._is_dead:
            self._loop.call_soon(watch, path, context=self._owner_context)

    def _tell(self, event: SessionEvent) -> None:
        if not self._is_dead and self.on_session_event is not None:
            self._loop.call_soon(self.on_session_event, event, context=self._owner_context)


def _deliver(done: "asyncio.Future[Any]", answer: "asyncio.Future[Any]") -> None:
    error = None if done.cancelled() else done.exception()
    if answer.done() or done.cancelled():
        return
    if error is not None:
        answer.set_exception(error)
    else:
        answer.set_result(done.result())
