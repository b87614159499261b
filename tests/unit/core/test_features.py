"""Which changes of feature levels are allowed."""

import pytest

from headrace.core.features import (
    INITIAL_LEVELS,
    METADATA_VERSION,
    SAFE_DOWNGRADE,
    SUPPORTED,
    UNSAFE_DOWNGRADE,
    UPGRADE,
    FeatureUpdate,
    decide_levels,
)
from headrace.model.errors import ErrorCode, Rejected


def test_a_new_cluster_stands_at_the_highest_level_of_all_it_supports():
    assert {name: supported.highest for name, supported in SUPPORTED.items()} == INITIAL_LEVELS


def test_staying_where_it_is_changes_nothing():
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
def test_what_kafka_refuses_is_refused(name, level, kind):
    with pytest.raises(Rejected) as refused:
        decide_levels(INITIAL_LEVELS, [FeatureUpdate(name, level, kind)])
    assert refused.value.code == ErrorCode.INVALID_UPDATE_VERSION


def test_an_upgrade_asked_for_as_a_downgrade_is_refused():
    with pytest.raises(Rejected):
        decide_levels({METADATA_VERSION: 20}, [FeatureUpdate(METADATA_VERSION, 25, SAFE_DOWNGRADE)])
