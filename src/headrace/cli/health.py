"""Is the cluster healthy? The checks of ``headrace cluster health``. Pure.

A failed check means that data is at risk or unavailable. A warning changes nothing for clients.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from headrace.cli.cluster_view import ClusterView, PartitionView

OK, WARNING, FAILED = "ok", "warning", "FAILED"

# Kafka's default of leader.imbalance.per.broker.percentage.
_IMBALANCE_PERCENT_MAX = 10
_ITEMS_SHOWN = 5

# It belongs to KRaft: a broker of Kafka 3.9 on ZooKeeper lists no level of it, and needs none.
LEVEL_FOR_TOOLS_ONLY = "metadata.version"


class Check(NamedTuple):
    name: str
    status: str
    items: list[str]  # what is wrong; empty if nothing is

    @property
    def detail(self) -> str:
        """The items for one line; a long list ends with the number of the others."""
        shown = ", ".join(self.items[:_ITEMS_SHOWN])
        rest = len(self.items) - _ITEMS_SHOWN
        return f"{len(self.items):,}: {shown}, and {rest:,} more" if rest > 0 else shown


class BrokerFeatures(NamedTuple):
    """The feature levels that one broker supports, and the levels that it says are finalized."""

    supported: Mapping[str, int]
    finalized: Mapping[str, int]


def checks(
    view: ClusterView,
    features: Mapping[int, BrokerFeatures],
    unreachable: Mapping[int, str],
) -> list[Check]:
    """``features`` are of the brokers that answered; ``unreachable`` says why others did not."""
    partitions = view.partitions
    brokers = [f"broker {number} is not registered" for number in view.missing_brokers]
    brokers += [f"broker {number}: {why}" for number, why in sorted(unreachable.items())]
    return [
        _check("controller", [] if _has_controller(view) else ["the cluster has no controller"]),
        _check("brokers", brokers),
        _check("offline partitions", _names(p for p in partitions if p.is_unavailable)),
        _check("under min ISR", _names(p for p in partitions if p.is_under_min_isr)),
        _check("under-replicated", _names(p for p in partitions if p.is_under_replicated)),
        _check("offline replicas", _offline_replicas(view)),
        _check("feature levels", _unsupported_levels(features)),
        _check("preferred leaders", _skewed(view), otherwise=WARNING),
    ]


def is_healthy(found: Iterable[Check]) -> bool:
    return all(check.status != FAILED for check in found)


def _check(name: str, items: list[str], otherwise: str = FAILED) -> Check:
    return Check(name, otherwise if items else OK, items)


def _has_controller(view: ClusterView) -> bool:
    return view.controller_id is not None and view.controller_id in view.brokers


def _names(partitions: Iterable[PartitionView]) -> list[str]:
    return [partition.name for partition in partitions]


def _offline_replicas(view: ClusterView) -> list[str]:
    """Replicas on live brokers: a log directory failed, or the broker is shutting down."""
    return [
        f"{partition.name} on broker {broker_id}"
        for partition in view.partitions
        for broker_id in partition.offline_replicas
        if broker_id in view.brokers
    ]


def _unsupported_levels(features: Mapping[int, BrokerFeatures]) -> list[str]:
    finalized: dict[str, int] = {}
    for one in features.values():
        for name, level in one.finalized.items():
            finalized[name] = max(level, finalized.get(name, 0))
    return [
        f"broker {broker_id} supports {name} up to {one.supported.get(name, 0)}, "
        f"but {level} is finalized ('headrace features downgrade')"
        for broker_id, one in sorted(features.items())
        for name, level in sorted(finalized.items())
        if name != LEVEL_FOR_TOOLS_ONLY and level > one.supported.get(name, 0)
    ]


def _skewed(view: ClusterView) -> list[str]:
    """Brokers that lead too few of the partitions whose first replica they hold."""
    found = []
    for broker_id in view.brokers:
        preferred = [p for p in view.partitions if p.replicas[:1] == [broker_id]]
        led = sum(p.leader == broker_id for p in preferred)
        if 100 * (len(preferred) - led) > _IMBALANCE_PERCENT_MAX * len(preferred):
            found.append(
                f"broker {broker_id} leads {led} of {len(preferred)} ('headrace elect-leaders "
                "--all')"
            )
    return found
