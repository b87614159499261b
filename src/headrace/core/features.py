"""Feature levels of the cluster: which are supported, which are set, which changes are allowed.

Pure. A feature is listed here once the broker serves what its level promises. The other features
of Kafka 4.3 (``share.version``, ``streams.version``, ``eligible.leader.replicas.version``) follow
with their implementation, because clients enable behavior by them.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from headrace.model.cluster_metadata import BrokerEntry, LevelRange
from headrace.model.errors import ErrorCode, Rejected

METADATA_VERSION = "metadata.version"
TRANSACTION_VERSION = "transaction.version"
GROUP_VERSION = "group.version"

SUPPORTED: Mapping[str, LevelRange] = {
    # 7 is Kafka 3.3, 30 is Kafka 4.3: tools print the level as the release of the cluster.
    METADATA_VERSION: LevelRange(7, 30),
    # 1: records with tagged fields; 2: every end of a transaction bumps the epoch (KIP-890).
    TRANSACTION_VERSION: LevelRange(0, 2),
    # 1: groups of the consumer protocol (KIP-848) and their records.
    GROUP_VERSION: LevelRange(0, 1),
}

# The levels of a new cluster.
INITIAL_LEVELS: Mapping[str, int] = {
    METADATA_VERSION: 30,
    TRANSACTION_VERSION: 2,
    GROUP_VERSION: 1,
}

UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE = 1, 2, 3


class FeatureUpdate(NamedTuple):
    name: str
    level: int  # 0 disables the feature
    kind: int


def decide_levels(
    levels: Mapping[str, int], updates: Iterable[FeatureUpdate], brokers: Iterable[BrokerEntry] = ()
) -> dict[str, int]:
    """The levels after all ``updates``; raises Rejected for the first invalid one.

    ``brokers`` are all registered brokers: a level rises only if each of them supports it.
    """
    registered = list(brokers)
    decided = dict(levels)
    for update in updates:
        name, level, kind = update
        supported = SUPPORTED.get(name)
        if supported is None:
            raise _refused(update, "the cluster does not support this feature")
        if kind not in (UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE):
            raise _refused(update, f"unknown update type {kind}")
        present = decided.get(name, 0)
        if not supported.lowest <= level <= supported.highest:
            raise _refused(
                update, f"supported levels are {supported.lowest} to {supported.highest}"
            )
        if level < present and kind == UPGRADE:
            raise _refused(
                update, f"the level is {present}, and the request does not ask for a downgrade"
            )
        if level > present and kind != UPGRADE:
            raise _refused(
                update, f"the level is {present}, and the request does not ask for an upgrade"
            )
        if level < present and name == METADATA_VERSION:
            # Kafka rejects any downgrade that changes its records, and tools rely on that.
            raise _refused(update, f"a downgrade from {present} is not possible")
        if level > present and name != METADATA_VERSION:
            _check_brokers(update, registered)
        decided[name] = level
    return decided


def initial_levels(brokers: Iterable[BrokerEntry], *, has_topics: bool) -> dict[str, int]:
    """The levels of a cluster that has none: the highest that all registered brokers support.

    If it ``has_topics``, Apache Kafka 3.9 created them. The levels are 0 then, because brokers of
    Kafka that are away for a moment must be able to come back.
    """
    registered = list(brokers)
    return {
        name: level
        if name == METADATA_VERSION
        else 0
        if has_topics
        else min([level, *(_highest(broker, name) for broker in registered)])
        for name, level in INITIAL_LEVELS.items()
    }


def find_unsupported(levels: Mapping[str, int], broker: BrokerEntry) -> dict[str, int]:
    """The levels of the cluster that are too high for ``broker``."""
    return {
        name: level
        for name, level in levels.items()
        if name != METADATA_VERSION and level > _highest(broker, name)
    }


def _highest(broker: BrokerEntry, feature: str) -> int:
    return broker.features[feature].highest if feature in broker.features else 0


def _check_brokers(update: FeatureUpdate, registered: Iterable[BrokerEntry]) -> None:
    """A broker that does not list a feature, such as Kafka 3.9, supports level 0 only.

    ``metadata.version`` is not checked: it belongs to KRaft, and no broker in a tree lists it.
    """
    for broker in registered:
        highest = _highest(broker, update.name)
        if update.level > highest:
            raise _refused(update, f"broker {broker.broker_id} supports levels up to {highest}")


def _refused(update: FeatureUpdate, reason: str) -> Rejected:
    return Rejected(
        ErrorCode.INVALID_UPDATE_VERSION,
        f"Invalid update version {update.level} for feature {update.name}: {reason}.",
    )
