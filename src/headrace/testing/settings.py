"""Settings of the test kit: its defaults, and Python values as the text that Kafka reads."""

import os
from collections.abc import Mapping
from typing import Any

from headrace.model.settings.replication import replication_settings

# Defaults for tests: react quickly, wait for no further members, keep internal topics small.
TEST_DEFAULTS = {
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "100",
    "group.consumer.heartbeat.interval.ms": "200",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.assignment.interval.ms": "0",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
    "share.coordinator.state.topic.num.partitions": "4",
}


def cluster_defaults(broker_count: int) -> dict[str, str]:
    """Defaults for a cluster: replicate as widely as it can, and notice failures quickly."""
    settings = replication_settings(broker_count)
    return settings | {
        "share.coordinator.state.topic.replication.factor": settings["default.replication.factor"],
        "share.coordinator.state.topic.min.isr": settings["min.insync.replicas"],
        "zookeeper.session.timeout.ms": "1000",
        # On a busy machine ZooKeeper may take longer for its first answer than a session lasts.
        "zookeeper.connection.timeout.ms": "15000",
        "replica.lag.time.max.ms": "1000",
        "controlled.shutdown.retry.backoff.ms": "100",
    }


def as_text(argument: str, settings: Mapping[str, Any]) -> dict[str, str]:
    """Settings as text. Raises TypeError, with the argument named, for what is no setting."""
    if not isinstance(settings, Mapping):
        raise TypeError(
            f"{argument}: expected a mapping such as {{'log.segment.bytes': 1_000_000}}; "
            f"got {settings!r}"
        )
    return {name: _value_as_text(argument, name, value) for name, value in settings.items()}


def _value_as_text(argument: str, name: Any, value: Any) -> str:
    if not isinstance(name, str):
        raise TypeError(f"{argument}: expected the names of settings as strings; got {name!r}")
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (str, int, float, os.PathLike)):
        return str(value)
    raise TypeError(
        f"{argument}[{name!r}]: expected a string, a number, a bool or a path; got {value!r}"
    )
