"""Automatic preferred leader elections (``auto.leader.rebalance.enable``), at an interval."""

import asyncio
import logging

from headrace.broker.controller.events import Events
from headrace.broker.controller.leaders import Leaders
from headrace.broker.controller.term import Term
from headrace.broker.metadata.dynamic_config import DynamicConfig
from headrace.core import elections

_log = logging.getLogger("headrace.controller")


class Rebalancing:
    def __init__(
        self, term: Term, events: Events, leaders: Leaders, dynamic_config: DynamicConfig
    ) -> None:
        self._term = term
        self._events = events
        self._leaders = leaders
        self._dynamic_config = dynamic_config
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Rebalance at the interval until the term ends."""
        self._term.on_end(self._stop)
        self._schedule()

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _schedule(self) -> None:
        interval_s = self._dynamic_config.config.int("leader.imbalance.check.interval.seconds")
        self._timer = asyncio.get_running_loop().call_later(interval_s, self._due)

    def _due(self) -> None:
        self._events.post(self.rebalance)
        self._schedule()

    async def rebalance(self) -> None:
        """Return leadership to preferred replicas, if too many partitions have another leader."""
        term, config = self._term, self._dynamic_config.config
        if not config.bool("auto.leader.rebalance.enable"):
            return
        imbalance_max = config.int("leader.imbalance.per.broker.percentage")
        async with term.turn():
            decided = elections.decide_rebalance(term.controller, imbalance_max)
            wanted = {change.state.topic_partition for change in decided}
            if not wanted:
                return
            _log.info("Electing the preferred leaders of %d partitions", len(wanted))
            await self._leaders.elect_within_turn(sorted(wanted), unclean=False)
