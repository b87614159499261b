"""The live brokers of a cluster: they join, leave, and may have lost records.

A broker that leaves loses its leaderships. A broker that joins is told all its roles.
"""

import logging
from collections.abc import Iterable, Mapping

from headrace.broker.controller.deletions import Deletions
from headrace.broker.controller.events import Events
from headrace.broker.controller.feature_levels import Features
from headrace.broker.controller.leaders import Leaders
from headrace.broker.controller.reassignments import Reassignments
from headrace.broker.controller.term import Term
from headrace.core import elections
from headrace.model.cluster_metadata import BrokerEntry
from headrace.model.ids import BrokerId

_log = logging.getLogger("headrace.controller")


class LiveBrokers:
    def __init__(
        self,
        term: Term,
        events: Events,
        broker_id: BrokerId,
        leaders: Leaders,
        features: Features,
        deletions: Deletions,
        reassignments: Reassignments,
    ) -> None:
        """``broker_id`` is the controller's own."""
        self._term = term
        self._events = events
        self._broker_id = broker_id
        self._leaders = leaders
        self._features = features
        self._deletions = deletions
        self._reassignments = reassignments
        self._watched = term.registry.watched

    async def load(self) -> Mapping[BrokerId, BrokerEntry]:
        """Read the live brokers at the start of a term, and watch them from then on."""
        controller = self._term.controller
        brokers = await self._watched.live_brokers(self._fired)
        controller.brokers_changed(brokers.values(), self._broker_id)
        for broker_id, broker_epoch in (await self._watched.shutting_down()).items():
            if broker_id in brokers and brokers[broker_id].broker_epoch == broker_epoch:
                controller.shuts_down(broker_id)
        return brokers

    def _fired(self, path: str) -> None:
        self._events.post(self._changed)

    async def _changed(self) -> None:
        term, controller = self._term, self._term.controller
        async with term.turn():
            brokers = await self._watched.live_brokers(self._fired)
            before = controller.metadata.brokers
            if brokers == before:
                return
            gone = controller.brokers_changed(brokers.values(), self._broker_id)
            came = [e for e in brokers.values() if e.broker_id not in before or e.broker_id in gone]
            doubtful = [e.broker_id for e in came if e.may_have_lost_records]
            for broker_id in sorted(gone):
                term.channels.close(broker_id)
            term.channels.update_live_brokers()
            changed = await term.change(
                list(controller.states()),
                lambda states: elections.decide_brokers(
                    controller, states, gone, self._leaders.rules, doubtful
                ),
            )
            term.tell(changed)
            self._open_channels(came)
            await self._features.check(came)
            touched = gone | {entry.broker_id for entry in came}
            term.channels.update_metadata(
                state for state in controller.states() if not touched.isdisjoint(state.replicas)
            )
            _log.info(
                "Brokers that left: %s; brokers that joined: %s (may have lost records: %s); "
                "partition states changed: %d",
                sorted(gone),
                [entry.broker_id for entry in came],
                doubtful,
                len(changed),
            )
        self._events.post(self._deletions.proceed)
        self._events.post(self._reassignments.proceed)

    def _open_channels(self, came: Iterable[BrokerEntry]) -> None:
        term, controller = self._term, self._term.controller
        for entry in came:
            term.channels.open(entry, [*controller.states(), *self._deletions.states])
            for state in controller.states():
                if entry.broker_id in state.replicas:
                    term.tell_replica(entry.broker_id, state)
