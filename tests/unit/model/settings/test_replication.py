"""Replicas and the minimum ISR of small clusters."""

import pytest

from headrace.model.settings.kafka import BROKER
from headrace.model.settings.replication import replication_settings


@pytest.mark.parametrize(
    ("broker_count", "replicas", "min_isr"),
    [(1, "1", "1"), (2, "2", "1"), (3, "3", "2"), (5, "3", "2")],
)
def test_replicas_follow_from_the_number_of_brokers(broker_count, replicas, min_isr):
    settings = replication_settings(broker_count)
    for name, value in settings.items():
        assert value == (replicas if name.endswith("factor") else min_isr), name
    assert set(settings) <= set(BROKER)
