"""Three brokers with a ZooKeeper, killed, bounced and paused under load: a checker judges it all.

Four producers run at the same time, with and without idempotence, with and without compression,
each on a topic with three replicas, min ISR 2 and acks=all; readers and two groups, one per
protocol, follow them. Each round is one kind of fault.
"""

import itertools
import time

import pytest

from headrace.testing import Cluster
from tests.history.checker import anomalies
from tests.history.history import History
from tests.history.stock_clients import StockClients

pytestmark = [pytest.mark.torture, pytest.mark.timeout(0)]

PARTITIONS = 2
BOUNCES = 5
SESSION_S = 1.0
TOPICS = {
    "plain": {},
    "plain-lz4": {"compression": "lz4"},
    "idempotent": {"idempotent": True},
    "idempotent-zstd": {"idempotent": True, "compression": "zstd"},
}


def leader(cluster):
    return cluster.leader_of("idempotent")


def controller(cluster):
    return cluster.controller_id()


def follower(cluster):
    return (cluster.leader_of("idempotent") + 1) % 3


def wait_in_sync(cluster):
    for topic in TOPICS:
        cluster.wait_in_sync(topic)


def kill(cluster, clients, choose):
    victim = choose(cluster)
    cluster.kill(victim)
    clients.wait_progress()
    cluster.restart(victim)


def kill_and_start_at_once(cluster, clients, choose):
    """The broker is back before its session has expired."""
    victim = choose(cluster)
    cluster.kill(victim)
    cluster.restart(victim)


def stop(cluster, clients, choose):
    cluster.restart(choose(cluster))


def pause(cluster, clients, choose):
    victim = choose(cluster)
    cluster.pause(victim)
    clients.wait_progress()  # the others go on once the session has expired
    cluster.resume(victim)


def bounce(how, choose, times=BOUNCES):
    def one_round(cluster, clients):
        for _ in range(times):
            clients.wait_progress()
            how(cluster, clients, choose)
            wait_in_sync(cluster)

    one_round.__name__ = f"{how.__name__} {choose.__name__}".replace("_", " ")
    return one_round


def restart_zookeeper(cluster, clients):
    cluster.restart_zookeeper()
    clients.wait_progress()


def rolling_restart(cluster, clients):
    for broker in cluster.brokers:
        cluster.restart(broker.broker_id)
        wait_in_sync(cluster)


# The first ones run with every make test.
ROUNDS = [
    bounce(kill, leader),
    rolling_restart,
    bounce(stop, leader),
    bounce(kill, controller),
    bounce(stop, controller),
    bounce(kill, follower),
    bounce(stop, follower),
    bounce(kill_and_start_at_once, leader),
    bounce(pause, leader, 2),
    bounce(pause, controller, 2),
    bounce(pause, follower, 2),
    restart_zookeeper,
]


def test_no_acknowledged_record_is_lost_or_changed(tmp_path, torture_rounds):
    history = History()
    topics = {name: {"partitions": PARTITIONS, "min.insync.replicas": 2} for name in TOPICS}
    settings = {"zookeeper.session.timeout.ms": int(SESSION_S * 1000)}
    with (
        Cluster(process=True, data=tmp_path, topics=topics, config=settings) as cluster,
        StockClients(history, cluster) as clients,
    ):
        for name, options in TOPICS.items():
            clients.produce(name, name, PARTITIONS, **({"idempotent": False} | options))
        for protocol, number in itertools.product(("classic", "consumer"), range(2)):
            clients.join(f"{protocol}-{number}", protocol, ["idempotent"], protocol=protocol)
        started_at = time.monotonic()
        for one_round in itertools.islice(itertools.cycle(ROUNDS), torture_rounds):
            one_round(cluster, clients)
            print(f"{time.monotonic() - started_at:6.1f} s  {one_round.__name__}", flush=True)
            clients.wait_progress()
        clients.finish()
    assert anomalies(history) == []
    read = sum(len(reading.entries) for reading in history.readings)
    print(f"{clients.acknowledged_count} records acknowledged, {read} read: no anomaly")
