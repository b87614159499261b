"""Feature levels of the cluster: which are supported, which are on, which change is allowed.

Pure. A feature is named here once the node serves what its level promises; the others
of Kafka 4.3 (``share.version``, ``streams.version``, ``eligible.leader.replicas.version``)
join with their machines, because clients switch behaviour on by them.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from headrace.model.cluster_metadata import BrokerEntry, LevelRange
from headrace.model.errors import ErrorCode, Rejected

METADATA_VERSION = "metadata.version"
TRANSACTION_VERSION = "transaction.version"
GROUP_VERSION = "group.version"


SUPPORTED: Mapping[str, LevelRange] = {
    # 7 is Kafka 3.3 and 30 is 4.3: tools print the level as the release of the cluster.
    METADATA_VERSION: LevelRange(7, 30),
    # 1: records with tagged fields; 2: every end of a transaction bumps the epoch (KIP-890).
    TRANSACTION_VERSION: LevelRange(0, 2),
    # 1: groups of the consumer protocol (KIP-848) and their records.
    GROUP_VERSION: LevelRange(0, 1),
}

# What a new cluster starts with.
INITIAL_LEVELS: Mapping[str, int] = {
    METADATA_VERSION: 30,
    TRANSACTION_VERSION: 2,
    GROUP_VERSION: 1,
}

UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE = 1, 2, 3


class FeatureUpdate(NamedTuple):
    name: str
    level: int  # 0 takes the feature away
    kind: int


def decide_levels(
    levels: Mapping[str, int], updates: Iterable[FeatureUpdate], brokers: Iterable[BrokerEntry] = ()
) -> dict[str, int]:
    """The levels after all ``updates``, or Rejected for the first that cannot be: all or none.

    ``brokers`` are all that are registered: a level rises only if each of them can live with it.
    """
    registered = list(brokers)
    decided = dict(levels)
    for update in updates:
        name, level, kind = update
        supported = SUPPORTED.get(name)
        if supported is None:
            raise _refused(update, "this cluster does not have that feature")
        if kind not in (UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE):
            raise _refused(update, f"there is no kind of update {kind}")
        present = decided.get(name, 0)
        if not supported.lowest <= level <= supported.highest:
            raise _refused(update, f"levels {supported.lowest} to {supported.highest} are served")
        if level < present and kind == UPGRADE:
            raise _refused(update, f"it is at {present}, and a downgrade must be asked for as such")
        if level > present and kind != UPGRADE:
            raise _refused(update, f"it is at {present}, and an upgrade must be asked for as such")
        if level < present and name == METADATA_VERSION:
            # Kafka refuses any step down that changes its records, and tools rely on that.
            raise _refused(update, f"it cannot go back from {present}")
        if level > present and name != METADATA_VERSION:
            _check_brokers(update, registered)
        decided[name] = level
    return decided


def _check_brokers(update: FeatureUpdate, registered: Iterable[BrokerEntry]) -> None:
    """A broker that does not name a feature knows nothing above level 0, such as Kafka 3.9.

    ``metadata.version`` is not asked about: it is KRaft's, and no broker of a tree names it.
    """
    for broker in registered:
        highest = broker.features[update.name].highest if update.name in broker.features else 0
        if update.level > highest:
            raise _refused(
                update, f"broker {broker.broker_id} supports levels up to {highest} of it"
            )


def _refused(update: FeatureUpdate, reason: str) -> Rejected:
    return Rejected(
        ErrorCode.INVALID_UPDATE_VERSION,
        f"Invalid update version {update.level} for feature {update.name}: {reason}.",
    )
