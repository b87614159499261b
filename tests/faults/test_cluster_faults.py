"""Faults of one broker in a cluster under load: no acknowledged record is lost, all converge.

The brokers run on threads of this process. A stock producer and a stock reader work all the while,
and the checker of the history judges what they saw. The tests share one cluster: each has a topic
of its own, and leaves all brokers running and in sync.
"""

import errno
import itertools
import os
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.model.errors import ErrorCode
from headrace.records.record import Record, build_batch
from headrace.testing import Cluster, cluster_state
from headrace.testing.runners import ThreadRunner
from headrace.wire import messages as m
from headrace.wire.api import ApiKey
from tests.fakes.inside import ClusterInside
from tests.fakes.raw_client import RawClient
from tests.fakes.waiting import wait_until
from tests.history.checker import anomalies
from tests.history.history import History
from tests.history.stock_clients import StockClients, entries_on_disk

pytestmark = [pytest.mark.slow]

SESSION_MS = 500
LAG_MS = 600
DAY_MS = 24 * 3_600_000
HALF_AN_HOUR_MS = 1_800_000  # records more than an hour ahead of the clock are refused
SETTINGS = {
    "zookeeper.session.timeout.ms": SESSION_MS,
    "replica.lag.time.max.ms": LAG_MS,
    "replica.fetch.wait.max.ms": 200,
    "replica.socket.timeout.ms": 2_000,
    "controller.socket.timeout.ms": 2_000,
}
STRICT_ORDER = Path(__file__).parents[2] / "examples" / "strict_order.py"
_numbers = itertools.count()


@pytest.fixture(scope="module")
def shared_cluster(tmp_path_factory):
    data = tmp_path_factory.mktemp("cluster")
    with Cluster(config=SETTINGS, data=data) as cluster:
        yield cluster


@pytest.fixture
def cluster(shared_cluster):
    yield shared_cluster
    shared_cluster.heal()
    for broker in shared_cluster.brokers:
        if broker.state == "paused":
            shared_cluster.resume(broker.broker_id)
        elif broker.state == "stopped":
            shared_cluster.restart(broker.broker_id)


class Roles:
    """A topic of one partition, whose leader, one follower and the controller differ."""

    def __init__(self, cluster, **settings):
        self.controller = cluster.controller_id()
        self.leader = (self.controller + 1) % 3
        self.follower = (self.controller + 2) % 3
        self.topic = f"orders-{next(_numbers)}"
        config = {"min.insync.replicas": "2"} | settings
        replicas = [[self.leader, self.follower, self.controller]]
        create(cluster, NewTopic(self.topic, 1, replica_assignment=replicas, config=config))


def admin_of(cluster):
    return AdminClient({"bootstrap.servers": cluster.answering_servers(), "log_level": 0})


def create(cluster, new):
    admin = admin_of(cluster)  # a client that is collected gives no result
    admin.create_topics([new])[new.topic].result(30)
    cluster.wait_in_sync(new.topic)


@pytest.fixture
def roles(cluster):
    return Roles(cluster)


@contextmanager
def load(cluster, topic):
    """Clients that work during the ``with`` block; the check follows it."""
    history = History()
    with StockClients(history, cluster) as clients:
        clients.produce("producer", topic, 1)
        clients.wait_progress()
        yield clients
        clients.wait_progress()
        clients.finish()
    assert anomalies(history) == []


EVERY_ROLE = pytest.mark.parametrize("role", ["leader", "follower", "controller"])


# --- killed, paused, cut off, slow


@EVERY_ROLE
def test_a_broker_is_killed(cluster, roles, role):
    victim = getattr(roles, role)
    with load(cluster, roles.topic) as clients:
        cluster.kill(victim)
        clients.wait_progress()
        cluster.restart(victim)


@EVERY_ROLE
def test_a_broker_is_killed_and_back_within_its_session(cluster, roles, role):
    victim = getattr(roles, role)
    with load(cluster, roles.topic):
        cluster.kill(victim)
        cluster.restart(victim)


@EVERY_ROLE
def test_a_broker_is_paused_for_longer_than_its_session(cluster, roles, role):
    victim = getattr(roles, role)
    with load(cluster, roles.topic) as clients:
        cluster.pause(victim)
        clients.wait_progress()  # only after the session has expired
        wait_until(lambda: victim in out_of_sync(cluster, roles.topic))
        cluster.resume(victim)


@EVERY_ROLE
def test_a_broker_is_cut_off_from_the_other_brokers(cluster, roles, role):
    victim = getattr(roles, role)
    with load(cluster, roles.topic) as clients:
        cluster.cut(victim)
        if role == "follower":  # otherwise no ISR can change, and acks=all waits
            wait_until(lambda: victim in out_of_sync(cluster, roles.topic))
            clients.wait_progress()
        else:
            threading.Event().wait(2 * LAG_MS / 1000)
        cluster.heal()


@EVERY_ROLE
def test_a_broker_is_cut_off_from_the_tree(cluster, roles, role):
    victim = getattr(roles, role)
    with load(cluster, roles.topic) as clients:
        cluster.cut(victim, "zookeeper")
        wait_until(lambda: ClusterInside(cluster).read(f"/brokers/ids/{victim}") is None)
        if role != "leader":  # it cannot know that another one leads; its acks=all waits
            clients.wait_progress()
        cluster.heal()


@EVERY_ROLE
def test_a_broker_is_slow(cluster, roles, role):
    victim = getattr(roles, role)
    with load(cluster, roles.topic) as clients:
        cluster.slow(victim, None, ms=100)
        clients.wait_progress(20)
        cluster.heal()


@EVERY_ROLE
def test_a_session_expires_while_records_are_written(cluster, roles, role):
    victim = getattr(roles, role)
    with load(cluster, roles.topic) as clients:
        for _ in range(3):
            cluster.expire_session(victim)
            clients.wait_progress()


def test_zookeeper_restarts(cluster, roles):
    with load(cluster, roles.topic) as clients:
        for _ in range(3):
            cluster.restart_zookeeper()
            clients.wait_progress(20)


def out_of_sync(cluster, topic):
    """By the tree: a broker that is cut off would answer what it knew before."""
    return set(cluster_state.out_of_sync(ClusterInside(cluster).read, topic).get(0, []))


# --- disks


@EVERY_ROLE
def test_a_disk_is_full(cluster, roles, role):
    victim = getattr(roles, role)
    with load(cluster, roles.topic) as clients:
        cluster.fill_disk(victim)
        if role != "leader":  # it refuses records until there is room again
            clients.wait_progress()
        else:
            wait_until(lambda: refused_for_space(cluster.brokers[victim], roles.topic))
        cluster.heal()


def refused_for_space(broker, topic):
    with RawClient(broker.bootstrap_servers) as client:
        batch = build_batch([Record(0, -1, None, b"x")])
        return client.produce(topic, batch).error_code == ErrorCode.KAFKA_STORAGE_ERROR


@EVERY_ROLE
def test_a_disk_fails(cluster, roles, role):
    """Its partitions get other leaders; the broker starts again with a good disk."""
    victim = getattr(roles, role)
    with load(cluster, roles.topic) as clients:
        break_disk(ClusterInside(cluster).world(victim).files)
        clients.wait_progress()
        wait_until(lambda: victim in out_of_sync(cluster, roles.topic))
        assert cluster.leader_of(roles.topic) != victim
        cluster.kill(victim)
        cluster.restart(victim)


def break_disk(files):
    def refuse(*_):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    for name in ("pwrite", "pwritev", "fsync"):
        setattr(files, name, refuse)


@pytest.mark.parametrize("role", ["leader", "follower"])
def test_a_log_is_truncated_by_hand(cluster, roles, role):
    victim = getattr(roles, role)
    with load(cluster, roles.topic) as clients:
        cluster.kill(victim)
        clients.wait_progress()
        (log,) = (cluster.brokers[victim].data / f"{roles.topic}-0").glob("*.log")
        size = log.stat().st_size
        os.truncate(log, size // 2)
        cluster.restart(victim)


@pytest.mark.parametrize("jump_ms", [DAY_MS, -HALF_AN_HOUR_MS], ids=["ahead", "back"])
@pytest.mark.parametrize("role", ["leader", "controller"])
def test_a_clock_jumps(cluster, roles, role, jump_ms):
    world = ClusterInside(cluster).world(getattr(roles, role))
    right = world.now
    try:
        with load(cluster, roles.topic) as clients:
            world.now = lambda: right() + jump_ms
            clients.wait_progress()
            wait_until(lambda: out_of_sync(cluster, roles.topic) == set())
            world.now = right
    finally:
        world.now = right


# --- lies, old controllers, two brokers with one id


def test_a_follower_that_lies_about_its_offset_is_not_believed(cluster, roles):
    """It claims records that do not exist, then records that it has, with an old broker epoch."""
    cluster.produce(roles.topic, ["first"])
    cluster.kill(roles.follower)
    wait_until(lambda: roles.follower in out_of_sync(cluster, roles.topic))
    cluster.pause(roles.controller)  # nothing is committed without it or the follower
    with RawClient(cluster.brokers[roles.leader].bootstrap_servers) as client:
        batch = build_batch([Record(0, -1, None, b"second")])
        client.produce(roles.topic, batch, answer=False)
        with RawClient(cluster.brokers[roles.leader].bootstrap_servers) as liar:
            beyond = fetch_as(liar, roles.follower, roles.topic, offset=1_000)
            assert beyond.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
            fetch_as(liar, roles.follower, roles.topic, offset=2)
            assert liar.fetch(roles.topic, 0).high_watermark == 1
        cluster.resume(roles.controller)
        answer = client.answer(ApiKey.PRODUCE, 9)
        found = answer.responses[0].partition_responses[0]
        assert found.error_code == ErrorCode.NONE and found.base_offset == 1
    assert roles.follower in out_of_sync(cluster, roles.topic)


def fetch_as(client, replica_id, topic, offset):
    request = m.FetchRequest
    partition = request.FetchPartition(
        partition=0, fetch_offset=offset, partition_max_bytes=1 << 20
    )
    response = client.ask(
        ApiKey.FETCH,
        12,
        request(
            replica_id=replica_id,
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=1 << 20,
            session_epoch=-1,
            topics=[request.FetchTopic(topic=topic, partitions=[partition])],
        ),
    )
    return response.responses[0].partitions[0]


def test_an_old_controller_that_wakes_up_changes_nothing(cluster, roles):
    old = roles.controller
    with load(cluster, roles.topic) as clients:
        cluster.pause(old)
        wait_until(lambda: cluster.controller_id() != old)
        later = NewTopic(f"{roles.topic}-later", 3, 2)
        admin = admin_of(cluster)
        admin.create_topics([later])[later.topic].result(30)
        clients.wait_progress()
        new = cluster.controller_id()
        cluster.resume(old)
        cluster.wait_in_sync(roles.topic)
        assert cluster.controller_id() == new
        for broker in cluster.brokers:
            wait_until(lambda b=broker: controller_known_to(b) == new)
            topics = AdminClient({"bootstrap.servers": broker.bootstrap_servers}).list_topics()
            assert later.topic in topics.topics


def controller_known_to(broker):
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0})
    return admin.describe_cluster().result(10).controller.id


def test_a_second_broker_with_a_taken_id_is_refused(cluster, roles, tmp_path):
    async def open_tree(logs, world):
        return ClusterInside(cluster).open_session()

    settings = {key: str(value) for key, value in SETTINGS.items()}
    settings |= {"broker.id": str(roles.leader), "log.dirs": str(tmp_path / "second")}
    with load(cluster, roles.topic):
        second = ThreadRunner(
            settings | {"listeners": "PLAINTEXT://127.0.0.1:0"}, open_tree=open_tree
        )
        with pytest.raises(Exception, match=cluster.brokers[roles.leader].bootstrap_servers):
            second.start()
        assert cluster.leader_of(roles.topic) == roles.leader


# --- all replicas


@pytest.mark.parametrize("order", [(1, 2, 0), (2, 1, 0)])
def test_all_replicas_are_killed_and_come_back_in_another_order(cluster, roles, order):
    replicas = [roles.leader, roles.follower, roles.controller]
    with load(cluster, roles.topic) as clients:
        for victim in replicas:
            cluster.kill(victim)
        for index in order:
            cluster.restart(replicas[index])
        clients.wait_progress()


def test_without_the_last_isr_member_there_is_no_leader(cluster, roles):
    cluster.produce(roles.topic, ["first"])
    with RawClient(cluster.brokers[roles.leader].bootstrap_servers) as client:
        for victim in (roles.follower, roles.controller):
            cluster.kill(victim)
            wait_until(lambda gone=victim: gone in isr_missing(client, roles.topic))
    cluster.kill(roles.leader)
    cluster.restart(roles.follower)
    cluster.restart(roles.controller)
    wait_until(lambda: leader_in_metadata(cluster, roles) == -1)
    with pytest.raises(KafkaException):
        cluster_producer_sends(cluster, roles.topic)
    cluster.restart(roles.leader)
    cluster.wait_in_sync(roles.topic)
    assert [record.value for record in cluster.records(roles.topic)] == [b"first"]


def isr_missing(client, topic):
    partition = client.metadata(topic).topics[0].partitions[0]
    return set(partition.replica_nodes) - set(partition.isr_nodes)


def leader_in_metadata(cluster, roles):
    with RawClient(cluster.brokers[roles.follower].bootstrap_servers) as client:
        return client.metadata(roles.topic).topics[0].partitions[0].leader_id


def cluster_producer_sends(cluster, topic):
    from confluent_kafka import Producer

    failures = []
    producer = Producer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "message.timeout.ms": 500,
            "log_level": 0,
        }
    )
    producer.produce(topic, b"x", on_delivery=lambda error, _: failures.append(error))
    producer.flush(30)
    raise KafkaException(failures[0])


def test_an_unclean_election_where_it_is_allowed(cluster):
    roles = Roles(cluster, **{"unclean.leader.election.enable": "true"})
    cluster.produce(roles.topic, ["first"])
    with RawClient(cluster.brokers[roles.leader].bootstrap_servers) as client:
        for victim in (roles.follower, roles.controller):
            cluster.kill(victim)
            wait_until(lambda gone=victim: gone in isr_missing(client, roles.topic))
    cluster.kill(roles.leader)
    cluster.restart(roles.follower)
    assert cluster.leader_of(roles.topic) == roles.follower
    cluster.restart(roles.controller)
    cluster.restart(roles.leader)
    cluster.wait_in_sync(roles.topic)


def test_three_brokers_restart_at_once(cluster, roles):
    with load(cluster, roles.topic):
        restarts = [
            threading.Thread(target=cluster.restart, args=[broker.broker_id])
            for broker in cluster.brokers
        ]
        for restart in restarts:
            restart.start()
        for restart in restarts:
            restart.join()


def test_a_topic_is_deleted_while_a_broker_is_away(cluster, roles):
    cluster.produce(roles.topic, ["old"])
    directory = cluster.brokers[roles.follower].data / f"{roles.topic}-0"
    assert entries_on_disk(directory) != []
    cluster.kill(roles.follower)
    admin = admin_of(cluster)
    admin.delete_topics([roles.topic])[roles.topic].result(30)
    cluster.restart(roles.follower)
    wait_until(lambda: roles.topic not in admin.list_topics(timeout=10).topics)
    wait_until(lambda: not directory.exists())
    new = NewTopic(roles.topic, 1, 3)
    wait_until(lambda: created(admin, new))
    cluster.wait_in_sync(roles.topic)
    cluster.produce(roles.topic, ["new"])
    assert [record.value for record in cluster.records(roles.topic)] == [b"new"]


def created(admin, new):
    try:
        admin.create_topics([new])[new.topic].result(30)
    except KafkaException:
        return False
    return True


# --- strict order


def test_strict_order_with_leaders_killed(cluster):
    create(cluster, NewTopic("ledger", 1, 3, config={"min.insync.replicas": "2"}))
    command = [sys.executable, str(STRICT_ORDER), "send", cluster.bootstrap_servers]
    with subprocess.Popen(command, stdin=subprocess.PIPE, text=True) as sender:
        write_numbers(sender, range(1_000))
        wait_until(lambda: cluster.records("ledger"))
        for start in (1_000, 2_000, 3_000):
            write_numbers(sender, range(start, start + 1_000))
            victim = cluster.leader_of("ledger")
            cluster.kill(victim)
            cluster.restart(victim)
            cluster.wait_in_sync("ledger")
        sender.stdin.close()
        assert sender.wait(60) == 0
    values = [int(record.value) for record in cluster.records("ledger")]
    assert values == list(range(4_000))


def write_numbers(sender, numbers):
    for number in numbers:
        sender.stdin.write(f"{number}\n")
    sender.stdin.flush()
