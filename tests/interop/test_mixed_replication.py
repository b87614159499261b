"""The replication matrix in clusters of Headrace and Apache Kafka, with the same checker.

Producers, readers and a group run while leaders, followers and controllers of either kind are
killed, stopped and paused. ``pytest --torture-rounds=20`` runs the long form.
"""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.history.checker import anomalies
from tests.history.history import History
from tests.history.stock_clients import StockClients
from tests.torture.test_replication import (
    BOUNCES,
    PARTITIONS,
    TOPICS,
    bounce,
    kill,
    pause,
    restart_zookeeper,
    rolling_restart,
    stop,
)

from .mixed_cluster import MIXTURES, Kind, MixedCluster

pytestmark = [pytest.mark.usefixtures("kafka_jars"), pytest.mark.timeout(0)]

Round = Callable[[MixedCluster, StockClients], None]
PLACES = [(topic, number) for topic in TOPICS for number in range(PARTITIONS)]


def leader(kind: Kind) -> Callable[[MixedCluster], int]:
    """A broker of one kind that leads partitions of the load."""

    def choose(cluster: MixedCluster) -> int:
        # The last victim leads nothing any more: automatic elections are off.
        cluster.elect_preferred_leaders(PLACES)
        leaders = [cluster.leader_of(*place) for place in PLACES]
        victim = max(cluster.ids(kind), key=leaders.count)
        assert victim in leaders
        return victim

    choose.__name__ = f"{kind.value} leader"
    return choose


def follower(kind: Kind) -> Callable[[MixedCluster], int]:
    """The broker of one kind that leads the fewest partitions of the load."""

    def choose(cluster: MixedCluster) -> int:
        leaders = [cluster.leader_of(*place) for place in PLACES]
        return min(cluster.ids(kind), key=leaders.count)

    choose.__name__ = f"{kind.value} follower"
    return choose


def controller(kind: Kind) -> Callable[[MixedCluster], int]:
    def choose(cluster: MixedCluster) -> int:
        return cluster.make_controller(kind)

    choose.__name__ = f"{kind.value} controller"
    return choose


def rounds(*, long: bool) -> list[Round]:
    """The short form runs for minutes. The long one bounces as often as a matrix without Kafka."""
    bounces, pauses = (BOUNCES, 2) if long else (2, 1)
    roles = [role(kind) for role in (leader, controller, follower) for kind in Kind]
    return [
        *(bounce(how, role, bounces) for role in roles for how in (kill, stop)),
        *(bounce(pause, role, pauses) for role in roles),
        restart_zookeeper,
        rolling_restart,
    ]


@pytest.mark.parametrize("mixture", MIXTURES)
def test_no_acknowledged_record_is_lost_or_changed(
    tmp_path: Path, mixture: str, is_torture: bool
) -> None:
    history = History()
    with (
        MixedCluster(MIXTURES[mixture], tmp_path) as cluster,
        StockClients(history, cluster) as clients,
    ):
        settings = {"partitions": PARTITIONS, "min.insync.replicas": 2}
        cluster.create_topics(dict.fromkeys(TOPICS, settings))
        for name, options in TOPICS.items():
            clients.produce(name, name, PARTITIONS, **({"idempotent": False} | options))
        for number in range(2):
            clients.join(f"member-{number}", "group", ["idempotent"])
        started_at = time.monotonic()
        for one_round in rounds(long=is_torture):
            one_round(cluster, clients)
            print(f"{time.monotonic() - started_at:6.1f} s  {one_round.__name__}", flush=True)
            clients.wait_progress()
        clients.finish()
    assert anomalies(history) == []
    read = sum(len(reading.entries) for reading in history.readings)
    print(f"{clients.acknowledged_count} records acknowledged, {read} read: no anomaly")
