"""The feature levels of a cluster: updated on request, checked when a broker joins."""

import logging
from collections.abc import Iterable, Sequence

from headrace.broker.controller.term import Term
from headrace.coordination.watched import FeatureLevels
from headrace.core import features
from headrace.model.cluster_metadata import BrokerEntry

_log = logging.getLogger("headrace.controller")


class Features:
    def __init__(self, term: Term) -> None:
        self._term = term

    async def update(
        self, updates: Sequence[features.FeatureUpdate], *, validate_only: bool = False
    ) -> None:
        """Apply all updates, or raise Rejected and apply none."""
        term = self._term
        async with term.turn():
            before = await self._load()
            brokers = term.controller.metadata.brokers.values()
            levels = features.decide_levels(before.levels, updates, brokers)
            if not validate_only and levels != before.levels:
                await term.registry.store_features(levels, before.epoch)

    async def check(self, brokers: Iterable[BrokerEntry]) -> None:
        """Report brokers that do not support the levels of the cluster."""
        found = await self._load()
        for broker in brokers:
            for name, level in features.find_unsupported(found.levels, broker).items():
                _log.error(
                    "Broker %d does not support level %d of feature %s, which the cluster uses. "
                    "Lower the level with 'headrace features downgrade', or stop that broker",
                    broker.broker_id,
                    level,
                    name,
                )

    async def _load(self) -> FeatureLevels:
        """The levels of the cluster. A new cluster gets its first ones here."""
        metadata = self._term.controller.metadata
        initial = features.initial_levels(
            metadata.brokers.values(), has_topics=bool(metadata.topics)
        )
        return await self._term.registry.load_features(initial)
