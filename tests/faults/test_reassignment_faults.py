"""Partitions that move under load, asked for by a stock client: no acknowledged record is lost.

A stock producer, a reader and the members of a group work all the while. The partitions of their
topic and of their coordinator move; brokers die and disks are full during the moves.
"""

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaAdminClient, TopicPartition

from headrace.testing import Cluster
from tests.fakes.waiting import wait_until
from tests.history.checker import anomalies
from tests.history.history import History
from tests.history.stock_clients import CONVERGE_LIMIT_S, StockClients

pytestmark = [pytest.mark.slow]

SETTINGS = {
    "zookeeper.session.timeout.ms": 500,
    "replica.lag.time.max.ms": 600,
    "replica.fetch.wait.max.ms": 200,
    "replica.socket.timeout.ms": 2_000,
    "controller.socket.timeout.ms": 2_000,
    "min.insync.replicas": 2,
    "offsets.topic.num.partitions": 1,
}


class Moves:
    """A stock administrator."""

    def __init__(self, cluster):
        self._cluster = cluster

    def begin(self, targets):
        """Ask until the controller accepts it: it may have died."""
        wanted = {TopicPartition(*place): replicas for place, replicas in targets.items()}

        def is_accepted():
            admin = KafkaAdminClient(bootstrap_servers=self._cluster.answering_servers())
            try:
                return not any(admin.alter_partition_reassignments(wanted).values())
            finally:
                admin.close()

        wait_until(is_accepted, CONVERGE_LIMIT_S)

    def wait_done(self):
        def are_done():
            admin = KafkaAdminClient(bootstrap_servers=self._cluster.answering_servers())
            try:
                return not admin.list_partition_reassignments()
            finally:
                admin.close()

        wait_until(are_done, CONVERGE_LIMIT_S)

    def replicas(self, topic, partition):
        admin = AdminClient({"bootstrap.servers": self._cluster.answering_servers()})
        found = admin.list_topics(topic, 10).topics[topic].partitions[partition]
        return found.replicas


def fail(cluster, victim, clients):
    """Let one broker fail while the clients work, and repair it."""
    if victim == "full disk":
        # A replica that cannot even be created waits for a restart of its broker.
        for name in ("t-0", "t-1", "__consumer_offsets-0"):
            wait_until((cluster.brokers[3].data / name / "partition.metadata").exists)
        cluster.fill_disk(3)
        clients.wait_progress(10)
        cluster.heal()
    elif victim != "nobody":
        dead = {
            "target": lambda: 3,
            "source": lambda: cluster.leader_of("t", 0),
            "controller": cluster.controller_id,
        }[victim]()
        cluster.kill(dead)
        clients.wait_progress(10)
        cluster.restart(dead)


@pytest.mark.parametrize("victim", ["nobody", "target", "source", "full disk", "controller"])
def test_no_record_is_lost_while_partitions_move(victim):
    with Cluster(brokers=4, config=SETTINGS) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
        new = NewTopic("t", 2, replica_assignment=[[0, 1, 2], [1, 2, 0]])
        admin.create_topics([new])["t"].result(30)
        moves = Moves(cluster)
        history = History()
        with StockClients(history, cluster) as clients:
            clients.produce("producer", "t", 2)
            clients.join("member", "group", ["t"])
            clients.wait_progress()
            offsets = moves.replicas("__consumer_offsets", 0)
            moved = [3, *(each for each in offsets if each != 3)][:3]
            if victim == "full disk":
                cluster.slow(3, None, 200)  # so that it copies when its disk fills up
            moves.begin({("t", 0): [3, 2, 1], ("t", 1): [3, 0], ("__consumer_offsets", 0): moved})
            fail(cluster, victim, clients)
            moves.wait_done()
            clients.wait_progress()
            moves.begin({("t", 0): [1, 0, 2], ("t", 1): [2, 1, 0]})
            moves.wait_done()
            clients.finish()
            assert moves.replicas("t", 0) == [1, 0, 2]
        assert anomalies(history) == []
