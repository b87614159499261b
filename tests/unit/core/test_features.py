"""Which changes of feature levels are allowed."""

import pytest

from headrace.core.features import (
    GROUP_VERSION,
    INITIAL_LEVELS,
    METADATA_VERSION,
    SAFE_DOWNGRADE,
    SUPPORTED,
    TRANSACTION_VERSION,
    UNSAFE_DOWNGRADE,
    UPGRADE,
    FeatureUpdate,
    decide_levels,
)
from headrace.model.cluster_metadata import BrokerEntry, LevelRange
from headrace.model.errors import ErrorCode, Rejected
from headrace.model.ids import BrokerId


def test_a_new_cluster_has_the_highest_supported_levels():
    assert {name: supported.highest for name, supported in SUPPORTED.items()} == INITIAL_LEVELS


def test_the_same_level_changes_nothing():
    stay = FeatureUpdate(METADATA_VERSION, INITIAL_LEVELS[METADATA_VERSION], UPGRADE)
    assert decide_levels(INITIAL_LEVELS, [stay]) == INITIAL_LEVELS


def test_an_older_cluster_is_upgraded():
    old = {METADATA_VERSION: 20}
    assert decide_levels(old, [FeatureUpdate(METADATA_VERSION, 25, UPGRADE)]) == {
        METADATA_VERSION: 25
    }


@pytest.mark.parametrize(
    ("name", "level", "kind"),
    [
        ("nope", 1, UPGRADE),
        ("", 1, UPGRADE),
        (METADATA_VERSION, 31, UPGRADE),
        (METADATA_VERSION, 6, UNSAFE_DOWNGRADE),
        (METADATA_VERSION, 0, UNSAFE_DOWNGRADE),
        (METADATA_VERSION, -1, UPGRADE),
        (METADATA_VERSION, 29, UPGRADE),
        (METADATA_VERSION, 29, SAFE_DOWNGRADE),
        (METADATA_VERSION, 29, UNSAFE_DOWNGRADE),
        (METADATA_VERSION, 29, 0),
        (METADATA_VERSION, 29, 9),
    ],
)
def test_what_kafka_rejects_is_rejected(name, level, kind):
    with pytest.raises(Rejected) as refused:
        decide_levels(INITIAL_LEVELS, [FeatureUpdate(name, level, kind)])
    assert refused.value.code == ErrorCode.INVALID_UPDATE_VERSION


def a_broker(number, **highest):
    features = {name.replace("_", "."): LevelRange(0, level) for name, level in highest.items()}
    return BrokerEntry(BrokerId(number), {}, None, 1, features)


OURS = a_broker(1, transaction_version=2, group_version=1)
KAFKA_3_9 = a_broker(2)


@pytest.mark.parametrize("name", [TRANSACTION_VERSION, GROUP_VERSION])
def test_a_level_rises_only_if_every_registered_broker_supports_it(name):
    upgrade = [FeatureUpdate(name, 1, UPGRADE)]
    assert decide_levels({name: 0}, upgrade, [OURS]) == {name: 1}
    with pytest.raises(Rejected) as refused:
        decide_levels({name: 0}, upgrade, [OURS, KAFKA_3_9])
    assert refused.value.code == ErrorCode.INVALID_UPDATE_VERSION
    assert "broker 2" in refused.value.message
    # A downgrade is allowed: it helps such a broker.
    assert decide_levels({name: 1}, [FeatureUpdate(name, 0, SAFE_DOWNGRADE)], [OURS, KAFKA_3_9])


def test_the_lowest_of_all_brokers_is_the_limit():
    older = a_broker(3, transaction_version=1)
    update = FeatureUpdate(TRANSACTION_VERSION, 1, UPGRADE)
    assert decide_levels({}, [update], [OURS, older]) == {TRANSACTION_VERSION: 1}
    with pytest.raises(Rejected):
        decide_levels({}, [update._replace(level=2)], [OURS, older])


def test_the_metadata_version_is_not_checked_against_brokers():
    upgrade = [FeatureUpdate(METADATA_VERSION, 25, UPGRADE)]
    assert decide_levels({METADATA_VERSION: 20}, upgrade, [KAFKA_3_9])


def test_an_upgrade_requested_as_a_downgrade_is_rejected():
    with pytest.raises(Rejected):
        decide_levels({METADATA_VERSION: 20}, [FeatureUpdate(METADATA_VERSION, 25, SAFE_DOWNGRADE)])
