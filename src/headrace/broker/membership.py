"""Membership in a cluster: the session, the registration of this broker, and its candidacy.

Every broker is registered as long as its session lasts, and a candidate for controller. Losing
the session or the controllership is an ordinary event:

    SUSPENDED     the connection is lost. The broker goes on serving what it leads
    RECONNECTED   the session continues
    LOST          the session has ended: the broker ends its term as controller, opens another
                  session, registers again with a new broker epoch, and is a candidate again

Nothing here deletes a node of another session.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Protocol

from headrace.coordination import paths, values
from headrace.coordination.current_session import CurrentSession
from headrace.coordination.registry import BrokerIdInUse, Elected, Registry
from headrace.coordination.tree import Conflict, OutcomeUnknown, SessionEvent, SessionLost, Tree
from headrace.core.controller_fencing import UNKNOWN_BROKER_EPOCH, ControllerFence
from headrace.model.cluster_metadata import BrokerEntry
from headrace.model.errors import ConfigError, ErrorCode, Fenced
from headrace.model.ids import BrokerId
from headrace.world.world import World

_log = logging.getLogger("headrace.controller")

_RETRY_FIRST_S = 0.1
_RETRY_MAX_S = 5.0
_REGISTRATION_RETRY_S = 0.1
_COMPLETE_S_MAX = 5.0


class Term(Protocol):
    """This broker as controller, from its election until it resigns or is fenced."""

    async def start(self) -> None: ...
    async def stop(self) -> None: ...


# Called with the registry of the session, the election, and what to call once it is fenced.
BeginTerm = Callable[[Registry, Elected, Callable[[], None]], Term]


class Sessions(Protocol):
    """Opens sessions with the tree that the brokers of the cluster share."""

    timeout_ms: int

    async def open(self) -> Tree: ...

    async def release(self, session_id: int) -> bool:
        """End an earlier session of this broker; False if it is not this broker's."""
        ...

    def remember(self, session: Tree) -> None:
        """Keep what ``release`` needs after a restart."""
        ...


class Membership:
    """``join`` once; ``resign`` before the session is closed."""

    def __init__(
        self,
        tree: CurrentSession,
        sessions: Sessions,
        *,
        broker_id: BrokerId,
        world: World,
        fail: Callable[[BaseException], None],
        begin_term: BeginTerm,
        losses_reported: Callable[[], None],
    ) -> None:
        """``fail`` stops the broker, if another broker has taken its id.

        ``losses_reported`` notes on disk that a controller knows of the records that may be lost.
        """
        self._tree = tree
        self._sessions = sessions
        self._broker_id = broker_id
        self._world = world
        self._fail = fail
        self._begin_term = begin_term
        self._losses_reported = losses_reported
        self._controller_knows = False  # of this registration
        self._fence = ControllerFence()
        self.applying = asyncio.Lock()  # held while a request of the controller is applied
        self._entry: BrokerEntry | None = None  # as registered
        self._is_registered = asyncio.Event()
        self._term: Term | None = None
        self._term_is_over = False
        self._session_is_lost = False
        self.is_connected = True  # as far as this broker knows
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._received = asyncio.Event()  # replaced with every message about the metadata
        self._on_new_session: list[Callable[[], Awaitable[None]]] = []

    @property
    def broker_epoch(self) -> int:
        return self._entry.broker_epoch if self._entry is not None else UNKNOWN_BROKER_EPOCH

    @property
    def is_controller(self) -> bool:
        return self._term is not None

    def on_new_session(self, listener: Callable[[], Awaitable[None]]) -> None:
        """Await ``listener`` after every registration with a new session: watches are gone."""
        self._on_new_session.append(listener)

    # --- requests of the controller

    async def check_controller(
        self, controller_epoch: int, broker_epoch: int, *, is_kraft: bool
    ) -> ErrorCode:
        """NONE if a request with these epochs is to be obeyed.

        Waits for the registration. Only its epoch shows that a request is for this process, and
        not for the last process with this broker id, which the controller may believe is alive.
        """
        await self._is_registered.wait()
        refusal = self._fence.check(
            controller_epoch, broker_epoch, self.broker_epoch, is_kraft=is_kraft
        )
        if refusal is ErrorCode.NONE and broker_epoch == self.broker_epoch:
            # The controller sends nothing to a new broker before it has corrected the ISRs.
            self._controller_knows = True
            if self._has_losses_to_report:
                self._wake.set()
        return refusal

    @property
    def _has_losses_to_report(self) -> bool:
        return self._entry is not None and self._entry.may_have_lost_records

    def metadata_received(self) -> None:
        received, self._received = self._received, asyncio.Event()
        received.set()

    async def wait_for_metadata(self, is_complete: Callable[[], bool]) -> None:
        """Wait for the metadata that the controller, if there is one, sends to a new broker."""
        try:
            async with asyncio.timeout(self._sessions.timeout_ms / 1000):
                await self._received.wait()
        except TimeoutError:
            _log.warning("No controller has sent cluster metadata yet; serving clients anyway")
            return
        with suppress(TimeoutError):  # a topic may be deleted meanwhile
            async with asyncio.timeout(_COMPLETE_S_MAX):
                while not is_complete():
                    await self._received.wait()

    # --- joining and leaving

    async def join(self, entry: BrokerEntry) -> None:
        """Register, and be a candidate from now on. Raises BrokerIdInUse."""
        self._entry = await self._register(entry)
        self._is_registered.set()
        _log.info("Registered as broker %d with epoch %d", self._broker_id, self.broker_epoch)
        self._tree.on_session_event = self._session_event
        self._wake.set()
        self._task = asyncio.create_task(self._run())

    async def resign(self) -> None:
        """End the term as controller and the candidacy; the registration stays."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        self._tree.on_session_event = None
        await self._end_term()

    async def tell_directory_failed(self) -> None:
        """Tell the controller that a log directory of this broker failed."""
        while True:
            try:
                await self._tree.create(
                    paths.LOG_DIR_EVENT_PREFIX,
                    values.encode_log_dir_event(self._broker_id),
                    sequential=True,
                )
                return
            except OutcomeUnknown:
                continue  # a second notice does no harm
            except SessionLost:
                await asyncio.sleep(_RETRY_FIRST_S)  # until there is another session

    async def _register(self, entry: BrokerEntry) -> BrokerEntry:
        """Register within a session time-out: an earlier session of this broker may still last."""
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + self._sessions.timeout_ms / 1000
        registry = Registry(self._tree.session, self._broker_id)
        is_reported = False
        while True:
            try:
                registered = await registry.register(entry, self._world.now())
            except BrokerIdInUse as taken:
                if await self._sessions.release(taken.session_id):
                    _log.info("Ended the session of this broker's last process")
                    continue
                if loop.time() >= give_up_at:
                    raise
                if not is_reported:
                    is_reported = True
                    _log.warning("%s. Waiting for that session to end", taken)
                await asyncio.sleep(_REGISTRATION_RETRY_S)
            else:
                self._sessions.remember(self._tree.session)
                return registered

    # --- events

    def _session_event(self, event: SessionEvent) -> None:
        match event:
            case SessionEvent.SUSPENDED:
                self.is_connected = False
                _log.warning(
                    "The connection to the cluster metadata is lost. Partitions are served as "
                    "before; leaders and settings cannot change"
                )
            case SessionEvent.RECONNECTED:
                self.is_connected = True
                _log.info("The connection to the cluster metadata is back")
            case SessionEvent.LOST:
                self.is_connected = False
                _log.warning("The session with the cluster metadata has ended; opening another")
                self._session_is_lost = True
                self._wake.set()

    def _controller_changed(self, path: str) -> None:
        self._wake.set()

    def _fenced(self) -> None:
        self._term_is_over = True
        self._wake.set()

    async def _run(self) -> None:
        """React to events, one after the other, until the broker leaves."""
        retry_s = _RETRY_FIRST_S
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                if self._session_is_lost:
                    await self._end_term()
                    await self._renew()
                if self._controller_knows and self._has_losses_to_report:
                    await self._withdraw_losses()
                if self._term_is_over:
                    await self._end_term()
                await self._try_to_become_controller()
                retry_s = _RETRY_FIRST_S
            except BrokerIdInUse as taken:
                self._fail(taken)
                return
            except (SessionLost, Fenced, ConfigError, OSError) as problem:
                self._session_is_lost |= isinstance(problem, SessionLost)
                self._term_is_over = True
                _log.warning("Cannot use the cluster metadata: %s. Retrying", problem)
                await asyncio.sleep(retry_s)
                retry_s = min(2 * retry_s, _RETRY_MAX_S)
                self._wake.set()
            except Exception as bug:  # noqa: BLE001 - see ``fail``
                self._fail(bug)
                return

    async def _renew(self) -> None:
        """Register again with a new session."""
        assert self._entry is not None, "only a broker that has joined can lose its session"
        self._tree.renew(await self._sessions.open())
        self._session_is_lost = self._controller_knows = False
        self.is_connected = True
        self._entry = await self._register(self._entry)
        _log.info("Registered again, with broker epoch %d", self.broker_epoch)
        for listener in self._on_new_session:
            await listener()

    async def _withdraw_losses(self) -> None:
        """Withdraw the report of lost records: this broker is in no ISR that depends on them.

        The disk has the note first: a broker that restarts without it must report its losses again.
        """
        assert self._entry is not None
        await asyncio.get_running_loop().run_in_executor(None, self._losses_reported)
        self._entry = self._entry._replace(may_have_lost_records=False)
        registry = Registry(self._tree.session, self._broker_id)
        await registry.withdraw_losses(self._entry, self._world.now())

    async def _try_to_become_controller(self) -> None:
        """Become controller if there is none, and watch the controller's node."""
        registry = Registry(self._tree.session, self._broker_id)
        holder = await registry.watched.controller(self._controller_changed)
        if self._term is not None:
            if holder == self._broker_id:
                return
            await self._end_term()  # the node was deleted by another process
        if holder == self._broker_id:
            # This broker's term failed, and its node would keep others from becoming controller.
            await self.release_controllership()
        election = await registry.take_controllership(self._world.now(), self._controller_changed)
        if isinstance(election, Elected):
            await registry.watched.controller(self._controller_changed)
            _log.info("Elected controller in epoch %d", election.controller_epoch)
            self._term_is_over = False
            self._term = self._begin_term(registry, election, self._fenced)
            await self._term.start()
        else:
            _log.info("Broker %d is the controller", election.broker_id)

    async def _end_term(self) -> None:
        self._term_is_over = False
        term, self._term = self._term, None
        if term is not None:
            _log.info("This broker is no longer the controller")
            await term.stop()

    async def release_controllership(self) -> None:
        """Let another broker become controller now, before this one has stopped.

        Waits for a lost connection to return.
        """
        session = self._tree.session
        with suppress(SessionLost, OutcomeUnknown, Conflict):
            node = await session.get(paths.CONTROLLER)
            if node is not None and node.ephemeral_owner == session.session_id:
                await session.delete(paths.CONTROLLER, node.zk_version)
