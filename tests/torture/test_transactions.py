"""Exactly once with three producers, a copier and the brokers killed and paused at random."""

import time

import pytest

from headrace.testing import Broker, Cluster
from tests.torture.exactly_once import TOPICS, exactly_once, paused

pytestmark = [pytest.mark.torture, pytest.mark.timeout(0)]

SESSION_S = 0.5


def fault_of_the_node(dice, broker):
    what = dice.choice(["kill broker", "pause broker"])
    if what == "kill broker":
        broker.kill()
        broker.start()
    else:
        paused(broker.runner.child.process_id, dice.uniform(0.2, 2))
    return what


def fault_of_a_cluster(dice, cluster):
    """The victim is back within its session, or after it."""
    victim = dice.choice(cluster.brokers).broker_id
    away_s = dice.choice([0, 2 * SESSION_S])
    what = dice.choice(["kill broker", "kill broker", "stop broker", "pause broker", "expire"])
    if what == "kill broker":
        cluster.kill(victim)
        time.sleep(away_s)
        cluster.restart(victim)
    elif what == "stop broker":
        cluster.restart(victim)
    elif what == "pause broker":
        cluster.pause(victim)
        time.sleep(away_s)
        cluster.resume(victim)
    else:
        cluster.expire_session(victim)
    # One broker at a time: two of three replicas must be in sync.
    for topic in TOPICS:
        cluster.wait_in_sync(topic)
    return what


def test_read_committed_sees_committed_transactions_exactly_once(tmp_path, torture_rounds):
    with Broker(process=True, data=tmp_path / "data", topics=TOPICS) as broker:
        exactly_once(broker, tmp_path, torture_rounds, fault_of_the_node)


def test_transactions_are_exactly_once_while_brokers_of_a_cluster_die(tmp_path, torture_rounds):
    settings = {"zookeeper.session.timeout.ms": int(SESSION_S * 1000)}
    with Cluster(data=tmp_path / "data", topics=TOPICS, config=settings) as cluster:
        exactly_once(cluster, tmp_path, torture_rounds, fault_of_a_cluster)
