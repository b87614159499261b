"""Requests and notices that brokers and tools write into the tree for the controller.

Each is read again when its watch fires, carried out, and deleted.
"""

from collections.abc import Sequence

from headrace.broker.controller.events import Events, Handle
from headrace.broker.controller.leaders import Leaders
from headrace.broker.controller.term import Term
from headrace.coordination import paths


class TreeNotices:
    def __init__(self, term: Term, events: Events, leaders: Leaders) -> None:
        self._term = term
        self._events = events
        self._leaders = leaders
        self._watched = term.registry.watched

    @property
    def all(self) -> Sequence[Handle]:
        """The events with which a term begins to follow them."""
        return (
            self._elect_preferred,
            self._read_changed_isrs,
            self._ask_for_failed_replicas,
        )

    # --- preferred leaders

    def _preferred_fired(self, path: str) -> None:
        self._events.post(self._elect_preferred)

    async def _elect_preferred(self) -> None:
        async with self._term.turn():
            wanted = await self._watched.preferred_election_request(self._preferred_fired)
            if wanted is not None:
                await self._leaders.elect_within_turn(wanted, unclean=False)
                await self._term.store.delete(paths.PREFERRED_REPLICA_ELECTION)

    # --- ISRs that leaders of old versions changed themselves

    def _isrs_fired(self, path: str) -> None:
        self._events.post(self._read_changed_isrs)

    async def _read_changed_isrs(self) -> None:
        async with self._term.turn():
            notices = await self._watched.isr_changes(self._isrs_fired)
            changed = {each for partitions in notices.values() for each in partitions}
            if changed:
                await self._term.reload(sorted(changed))
            for path in notices:
                await self._term.store.delete(path)

    # --- failed log directories

    def _log_dirs_fired(self, path: str) -> None:
        self._events.post(self._ask_for_failed_replicas)

    async def _ask_for_failed_replicas(self) -> None:
        """Tell a broker its roles again: it answers which replicas it cannot serve."""
        async with self._term.turn():
            notices = await self._watched.log_dir_events(self._log_dirs_fired)
            for broker_id in dict.fromkeys(notices.values()):
                for state in self._term.controller.states():
                    if broker_id is not None and broker_id in state.replicas:
                        self._term.tell_replica(broker_id, state)
            for path in notices:
                await self._term.store.delete(path)
