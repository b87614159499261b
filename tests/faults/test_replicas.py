"""Replicas under faults: disks, files and processes fail, and no acknowledged record is lost."""

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from headrace.testing import Cluster
from tests.fakes.waiting import wait_until

TOPIC = "orders"


@pytest.fixture
def cluster(tmp_path):
    with Cluster(brokers=3, topics=[TOPIC], data=tmp_path) as running:
        yield running


class Sender:
    """A producer with acks=all that keeps what was acknowledged."""

    def __init__(self, cluster):
        self.acknowledged = []
        self.errors = []
        self._producer = Producer(
            {
                "bootstrap.servers": cluster.bootstrap_servers,
                "enable.idempotence": True,
                "linger.ms": 0,
                "retry.backoff.ms": 20,
                "message.timeout.ms": 60_000,
            }
        )

    def send(self, count=20):
        first = len(self.acknowledged)
        for number in range(first, first + count):
            self._producer.produce(TOPIC, b"%d" % number, on_delivery=self._delivered)
        assert self._producer.flush(60) == 0
        assert self.errors == []

    def _delivered(self, error, message):
        if error is not None:
            self.errors.append(error)
        else:
            self.acknowledged.append(message.value())


def read(cluster, count):
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "group.id": "readers",
            "auto.offset.reset": "earliest",
        }
    )
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    found = []

    def has_all():
        found.extend(each.value() for each in consumer.consume(1000, 0.2) if not each.error())
        return len(found) >= count

    try:
        wait_until(has_all)
    finally:
        consumer.close()
    return found


def others(cluster, broker_id):
    return [each.broker_id for each in cluster.brokers if each.broker_id != broker_id]


def logs_of(cluster, broker_id):
    data = cluster.brokers[broker_id].data
    return sorted(data.rglob(f"{TOPIC}-0/*.log"))


def test_a_follower_with_a_full_disk_leaves_the_isr_and_catches_up_when_there_is_room(cluster):
    sender = Sender(cluster)
    sender.send()
    follower = others(cluster, cluster.leader_of(TOPIC))[0]
    cluster.fill_disk(follower)
    sender.send()
    cluster.heal()
    cluster.wait_in_sync(TOPIC)
    sender.send()
    assert read(cluster, 60) == sender.acknowledged


def test_a_follower_whose_log_was_cut_by_hand_gets_the_rest_again(cluster):
    sender = Sender(cluster)
    sender.send()
    leader = cluster.leader_of(TOPIC)
    follower = others(cluster, leader)[0]
    cluster.kill(follower)
    (log,) = logs_of(cluster, follower)
    content = log.read_bytes()
    log.write_bytes(content[: len(content) // 2])
    cluster.restart(follower)
    cluster.wait_in_sync(TOPIC)
    sender.send()
    (leaders,) = logs_of(cluster, cluster.leader_of(TOPIC))
    wait_until(lambda: log.read_bytes() == leaders.read_bytes())
    assert read(cluster, 40) == sender.acknowledged


def test_all_replicas_down_and_back_in_another_order_lose_nothing(cluster):
    sender = Sender(cluster)
    sender.send()
    order = [cluster.leader_of(TOPIC)]
    order += others(cluster, order[0])
    for broker_id in order:
        cluster.kill(broker_id)
    for broker_id in order[1:] + order[:1]:
        cluster.restart(broker_id)
    cluster.wait_in_sync(TOPIC)
    sender.send()
    assert read(cluster, 40) == sender.acknowledged


def test_a_replica_outside_of_the_isr_does_not_lead_after_the_last_member(cluster):
    sender = Sender(cluster)
    sender.send()
    first = cluster.leader_of(TOPIC)
    outsider, second = others(cluster, first)
    cluster.kill(outsider)
    sender.send()  # acknowledged by two replicas, so without the third
    cluster.kill(first)
    wait_until(lambda: cluster.leader_of(TOPIC) == second)
    cluster.kill(second)
    cluster.restart(outsider)
    cluster.restart(second)
    assert cluster.leader_of(TOPIC) == second
    cluster.restart(first)
    cluster.wait_in_sync(TOPIC)
    assert read(cluster, 40) == sender.acknowledged


def test_a_follower_that_is_cut_off_from_its_leader_does_not_stop_the_others(cluster):
    sender = Sender(cluster)
    sender.send()
    leader = cluster.leader_of(TOPIC)
    # Without the controller the leader could not change the ISR, as in Kafka.
    followers = [each for each in others(cluster, leader) if each != cluster.controller_id()]
    cluster.cut(leader, followers[0])
    sender.send()
    cluster.heal()
    cluster.wait_in_sync(TOPIC)
    sender.send()
    assert read(cluster, 60) == sender.acknowledged
