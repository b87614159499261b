"""A cluster inside a test: killed, paused, cut off, slowed down, healed; and what it keeps."""

import time

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from headrace.launch.java import JavaMissing
from headrace.testing import Cluster
from tests.fakes.waiting import wait_until

pytestmark = pytest.mark.slow

TOPIC = "orders"


@pytest.fixture
def threads():
    with Cluster(brokers=3, topics=[TOPIC]) as cluster:
        yield cluster


def values(cluster):
    return [record.value for record in cluster.records(TOPIC)]


def is_registered(cluster, broker_id):
    """As the other brokers know it."""
    others = [broker for broker in cluster.brokers if broker.broker_id != broker_id]
    admin = AdminClient({"bootstrap.servers": others[0].bootstrap_servers, "log_level": 0})
    return broker_id in admin.list_topics(timeout=10).brokers


# --- in one process and in several


def kill_a_leader(cluster):
    """It is replaced, and comes back."""
    leader = cluster.leader_of(TOPIC)
    cluster.kill(leader)
    cluster.produce(TOPIC, ["meanwhile"])
    assert cluster.leader_of(TOPIC) != leader
    assert [broker.state for broker in cluster.brokers].count("stopped") == 1
    cluster.restart(leader)
    cluster.wait_in_sync(TOPIC)


def pause_a_leader(cluster):
    """After a pause longer than its session it follows another."""
    leader = cluster.leader_of(TOPIC)
    cluster.pause(leader)
    assert cluster.leader_of(TOPIC) != leader
    cluster.produce(TOPIC, ["meanwhile"])
    cluster.resume(leader)
    cluster.wait_in_sync(TOPIC)


def cut_a_leader_off(cluster):
    """It is replaced, and follows after the cut."""
    leader = cluster.leader_of(TOPIC)
    cluster.cut(leader)
    cluster.cut(leader, "zookeeper")
    assert cluster.leader_of(TOPIC) != leader
    cluster.produce(TOPIC, ["meanwhile"])
    cluster.heal()
    cluster.wait_in_sync(TOPIC)


FAULTS = [kill_a_leader, pause_a_leader, cut_a_leader_off]


@pytest.mark.parametrize("fault", FAULTS)
def test_threads_lose_nothing(threads, fault):
    lose_nothing(threads, [fault])


def test_processes_lose_nothing():
    cluster = Cluster(brokers=3, topics=[TOPIC], process=True)
    try:
        cluster.start()
    except JavaMissing as missing:
        pytest.skip(str(missing))
    try:
        lose_nothing(cluster, FAULTS)
    finally:
        cluster.stop()


def lose_nothing(cluster, faults):
    for fault in faults:
        cluster.produce(TOPIC, ["before"])
        fault(cluster)
        cluster.produce(TOPIC, ["after"])
    assert values(cluster) == [b"before", b"meanwhile", b"after"] * len(faults)


# --- in one process


def test_a_cluster_takes_the_settings_of_a_cluster(threads):
    admin = AdminClient({"bootstrap.servers": threads.bootstrap_servers, "log_level": 0})
    described = admin.list_topics(TOPIC, timeout=10)
    assert sorted(described.brokers) == [0, 1, 2]
    (partition,) = described.topics[TOPIC].partitions.values()
    assert sorted(partition.replicas) == sorted(partition.isrs) == [0, 1, 2]
    assert partition.leader == threads.leader_of(TOPIC)
    assert described.controller_id == threads.controller_id()


def test_a_killed_controller_is_replaced(threads):
    controller = threads.controller_id()
    threads.kill(controller)
    assert threads.controller_id() != controller
    threads.produce(TOPIC, ["1"])
    assert values(threads) == [b"1"]


def test_a_follower_cut_off_its_leader_leaves_the_isr_and_returns(threads):
    leader = threads.leader_of(TOPIC)
    # The leader must reach the controller to change the ISR.
    follower = min({0, 1, 2} - {leader, threads.controller_id()})
    threads.cut(leader, follower)
    threads.produce(TOPIC, ["1"])  # acknowledged once the follower has left the ISR
    wait_until(lambda: follower not in isr(threads))
    threads.heal()
    threads.wait_in_sync(TOPIC)
    assert threads.leader_of(TOPIC) == leader


def isr(cluster):
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
    return admin.list_topics(TOPIC, timeout=10).topics[TOPIC].partitions[0].isrs


def test_a_slow_way_delays_acknowledgements(threads):
    threads.produce(TOPIC, ["1"])
    leader = threads.leader_of(TOPIC)
    for follower in {0, 1, 2} - {leader}:
        threads.slow(leader, follower, 100)
    begun_at = time.monotonic()
    threads.produce(TOPIC, ["2"])
    assert time.monotonic() - begun_at >= 0.1


def test_a_broker_whose_session_expired_registers_again(threads):
    leader = threads.leader_of(TOPIC)
    threads.expire_session(leader)
    wait_until(lambda: threads.leader_of(TOPIC) != leader)
    threads.wait_in_sync(TOPIC)
    assert is_registered(threads, leader)


def test_a_follower_with_a_full_disk_leaves_the_isr(threads):
    threads.produce(TOPIC, ["1"])
    follower = (threads.leader_of(TOPIC) + 1) % 3
    threads.fill_disk(follower)
    threads.produce(TOPIC, ["2"])
    wait_until(lambda: follower not in isr(threads))
    threads.heal()
    threads.wait_in_sync(TOPIC)
    assert values(threads) == [b"1", b"2"]


def test_an_error_is_injected_on_one_broker(threads):
    leader = threads.leader_of(TOPIC)
    threads.fail("Produce", "TOPIC_AUTHORIZATION_FAILED", broker_id=(leader + 1) % 3)
    threads.produce(TOPIC, ["1"])
    threads.fail("Produce", "TOPIC_AUTHORIZATION_FAILED")
    with pytest.raises(KafkaException) as refused:
        threads.produce(TOPIC, ["2"])
    assert refused.value.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED


def test_a_clean_restart_moves_the_leadership(threads):
    threads.produce(TOPIC, ["1"])
    threads.restart(threads.leader_of(TOPIC))
    threads.produce(TOPIC, ["2"])
    threads.wait_in_sync(TOPIC)
    assert values(threads) == [b"1", b"2"]


def test_a_group_goes_on_when_its_coordinator_dies(threads):
    threads.produce(TOPIC, ["1"])
    consumer = Consumer(
        {
            "bootstrap.servers": threads.bootstrap_servers,
            "group.id": "test",
            "auto.offset.reset": "earliest",
            "log_level": 0,
        }
    )
    position = [TopicPartition(TOPIC, 0, 1)]
    consumer.commit(offsets=position, asynchronous=False)
    admin = AdminClient({"bootstrap.servers": threads.bootstrap_servers, "log_level": 0})
    described = admin.describe_consumer_groups(["test"])["test"].result()
    coordinator = described.coordinator.id
    threads.kill(coordinator)
    (committed,) = consumer.committed(position, timeout=20)
    assert committed.offset == 1
    consumer.close()


def test_a_second_start_finds_topics_and_records(tmp_path):
    for number in (b"1", b"2"):
        with Cluster(brokers=3, topics=[TOPIC], data=tmp_path) as cluster:
            cluster.produce(TOPIC, [number])
            cluster.wait_in_sync(TOPIC)
    assert values(cluster.start()) == [b"1", b"2"]
    cluster.stop()


# --- arguments


@pytest.mark.parametrize("brokers", [0, -1, True, "3"])
def test_a_wrong_number_of_brokers_is_named(brokers):
    with pytest.raises(ValueError, match="brokers: expected a number of brokers; got"):
        Cluster(brokers=brokers)


def test_a_cluster_that_is_not_running_says_so():
    cluster = Cluster()
    assert "not running" in repr(cluster)
    with pytest.raises(RuntimeError, match="this cluster is not running"):
        cluster.kill(0)


def test_wrong_arguments_are_named(threads):
    with pytest.raises(ValueError, match="expected the id of a broker, 0 to 2; got 3"):
        threads.kill(3)
    with pytest.raises(ValueError, match="b: expected another broker, 'zookeeper' or None; got 1"):
        threads.cut(1, 1)
    with pytest.raises(ValueError, match="got 'the moon'"):
        threads.cut(1, "the moon")
    with pytest.raises(ValueError, match="a tree in memory"):
        threads.slow(1, "zookeeper", 5)
    threads.kill(0)
    with pytest.raises(RuntimeError, match=r"broker 0 is not running; restart\(0\) starts it"):
        threads.pause(0)
    with pytest.raises(RuntimeError, match="already running"):
        threads.start()
