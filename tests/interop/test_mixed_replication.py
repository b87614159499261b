"""The replication matrix in clusters of Headrace and Apache Kafka, with the same checker.

Producers, readers and a group run while leaders, followers and controllers of either kind are
killed, stopped and paused.
"""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.history.checker import anomalies
from tests.history.history import History
from tests.history.stock_clients import StockClients
from tests.torture.test_replication import (
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
BOUNCES = 2  # of each broker: a matrix runs for minutes


def leader(kind: Kind) -> Callable[[MixedCluster], int]:
    """A broker of one kind that leads partitions of the load, if one does."""

    def choose(cluster: MixedCluster) -> int:
        leaders = [cluster.leader_of(topic, n) for topic in TOPICS for n in range(PARTITIONS)]
        return max(cluster.ids(kind), key=leaders.count)

    choose.__name__ = f"{kind.value} leader"
    return choose


def follower(kind: Kind) -> Callable[[MixedCluster], int]:
    """The broker of one kind that leads the fewest partitions of the load."""

    def choose(cluster: MixedCluster) -> int:
        leaders = [cluster.leader_of(topic, n) for topic in TOPICS for n in range(PARTITIONS)]
        return min(cluster.ids(kind), key=leaders.count)

    choose.__name__ = f"{kind.value} follower"
    return choose


def controller(kind: Kind) -> Callable[[MixedCluster], int]:
    def choose(cluster: MixedCluster) -> int:
        return cluster.make_controller(kind)

    choose.__name__ = f"{kind.value} controller"
    return choose


ROUNDS: list[Round] = [
    *(
        bounce(how, role(kind), BOUNCES)
        for role in (leader, controller, follower)
        for kind in Kind
        for how in (kill, stop)
    ),
    *(bounce(pause, role(kind), 1) for role in (leader, controller) for kind in Kind),
    restart_zookeeper,
    rolling_restart,
]


@pytest.mark.parametrize("mixture", MIXTURES)
def test_no_acknowledged_record_is_lost_or_changed(tmp_path: Path, mixture: str) -> None:
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
        for one_round in ROUNDS:
            one_round(cluster, clients)
            print(f"{time.monotonic() - started_at:6.1f} s  {one_round.__name__}", flush=True)
            clients.wait_progress()
        clients.finish()
    assert anomalies(history) == []
    read = sum(len(reading.entries) for reading in history.readings)
    print(f"{clients.acknowledged_count} records acknowledged, {read} read: no anomaly")
