"""Feature levels of the cluster: which are supported, which are on, which change is allowed.

Pure. A feature is named here once the node serves what its level promises; the others
of Kafka 4.3 (``share.version``, ``streams.version``, ``eligible.leader.replicas.version``)
join with their machines, because clients switch behaviour on by them.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from headrace.model.errors import ErrorCode, Rejected

METADATA_VERSION = "metadata.version"
TRANSACTION_VERSION = "transaction.version"
GROUP_VERSION = "group.version"


class Range(NamedTuple):
    lowest: int
    highest: int


SUPPORTED: Mapping[str, Range] = {
    # 7 is Kafka 3.3 and 30 is 4.3: tools print the level as the release of the cluster.
    METADATA_VERSION: Range(7, 30),
    # 1: records with tagged fields; 2: every end of a transaction bumps the epoch (KIP-890).
    TRANSACTION_VERSION: Range(0, 2),
    # 1: groups of the consumer protocol (KIP-848) and their records.
    GROUP_VERSION: Range(0, 1),
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


def decide_levels(levels: Mapping[str, int], updates: Iterable[FeatureUpdate]) -> dict[str, int]:
    """The levels after all ``updates``, or Rejected for the first that cannot be: all or none."""
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
        decided[name] = level
    return decided


def _refused(update: FeatureUpdate, reason: str) -> Rejected:
    return Rejected(
        ErrorCode.INVALID_UPDATE_VERSION,
        f"Invalid update version {update.level} for feature {update.name}: {reason}.",
    )
