"""Three brokers as one cluster, with stock clients: replicas, failover, shutdown, return."""

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.fakes.clusters import ClusterOnOneLoop
from tests.fakes.waiting import wait_until


@pytest.fixture
def cluster(tmp_path):
    with ClusterOnOneLoop(tmp_path) as running:
        yield running


def create(cluster, topic="orders", partitions=1, replicas=3, **settings):
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    config = {name.replace("_", "."): value for name, value in settings.items()}
    new = NewTopic(topic, partitions, replicas, config=config)
    admin.create_topics([new])[topic].result(30)


class Acknowledged:
    """A producer with acks=all that keeps what was acknowledged."""

    def __init__(self, cluster, **settings):
        self.values = []
        self.errors = []
        self._producer = Producer(
            {
                "bootstrap.servers": cluster.bootstrap_servers,
                "acks": "all",
                "enable.idempotence": True,
                "linger.ms": 0,
                "retry.backoff.ms": 20,
                "topic.metadata.refresh.interval.ms": 500,
                **settings,
            }
        )

    def send(self, *values, topic="orders"):
        for value in values:
            self._producer.produce(topic, value, on_delivery=self._delivered)
        assert self._producer.flush(30) == 0
        assert self.errors == []

    def _delivered(self, error, message):
        if error is not None:
            self.errors.append(error)
        else:
            self.values.append(message.value())


def read_all(cluster, count, topic="orders", partition=0):
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "group.id": "readers",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.assign([TopicPartition(topic, partition, 0)])
    values = []
    try:
        wait_until(lambda: _read(consumer, values) >= count)
    finally:
        consumer.close()
    return values


def _read(consumer, values):
    message = consumer.poll(0.5)
    if message is not None and message.error() is None:
        values.append(message.value())
    return len(values)


def test_records_survive_the_crash_of_their_leader(cluster):
    create(cluster, min_insync_replicas="2")
    producer = Acknowledged(cluster)
    producer.send(*(b"before-%d" % n for n in range(100)))
    leader = cluster.state("orders").leader
    cluster.kill(leader)
    producer.send(*(b"after-%d" % n for n in range(100)))
    state = cluster.state("orders")
    assert state.leader != leader and leader not in state.isr
    assert read_all(cluster, 200) == producer.values
