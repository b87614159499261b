"""Three brokers as one cluster, with stock clients: replicas, failover, shutdown, return."""

import asyncio
import threading

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.broker.membership import Membership
from headrace.client.blocking import Connection
from headrace.client.errors import Disconnected
from headrace.coordination.current_session import CurrentSession
from headrace.wire import messages as m
from headrace.world.world import World
from tests.fakes.clusters import ClusterOnOneLoop
from tests.fakes.faulty_files import FaultyFiles
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
    values += [each.value() for each in consumer.consume(500, 0.1) if each.error() is None]
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


def test_a_broker_that_comes_back_catches_up_and_is_in_sync_again(cluster):
    create(cluster)
    producer = Acknowledged(cluster)
    producer.send(b"first")
    leader = cluster.state("orders").leader
    cluster.kill(leader)
    producer.send(b"second")
    cluster.start(leader)
    wait_until(lambda: set(cluster.state("orders").isr) == {0, 1, 2})
    producer.send(b"third")
    others = [broker_id for broker_id in cluster.brokers if broker_id != leader]
    for broker_id in others:
        cluster.kill(broker_id)
        wait_until(lambda gone=broker_id: gone not in cluster.state("orders", broker_id=leader).isr)
    assert cluster.state("orders").leader == leader
    assert read_all(cluster, 3) == [b"first", b"second", b"third"]


def test_the_controller_can_be_killed(cluster):
    create(cluster)
    producer = Acknowledged(cluster)
    producer.send(b"first")
    gone = cluster.controller_id
    cluster.kill(gone)
    wait_until(lambda: cluster.controller_id not in (-1, gone))
    producer.send(b"second")
    create(cluster, "later", partitions=3, replicas=2)
    producer.send(b"third", topic="later")
    assert read_all(cluster, 2) == [b"first", b"second"]


def test_a_clean_stop_moves_the_leaderships_first(cluster):
    create(cluster, partitions=3)
    stopped = cluster.state("orders").leader
    cluster.stop(stopped)
    states = [cluster.state("orders", partition) for partition in range(3)]
    assert all(each.leader not in (stopped, -1) for each in states)
    assert all(stopped not in each.isr for each in states)
    Acknowledged(cluster).send(*(b"%d" % n for n in range(50)))


def test_a_broker_that_leaves_is_not_taken_back_into_the_isr(cluster):
    """The next controller does not know that it is shutting down."""
    create(cluster)
    producer = Acknowledged(cluster)
    producer.send(b"before")
    leaving = cluster.controller_id
    cluster.run(cluster.brokers[leaving].services.member.leave(clean=True))
    wait_until(lambda: cluster.controller_id not in (-1, leaving))
    for n in range(30):  # a follower that still fetched would join within one of these
        producer.send(b"%d" % n)
        assert leaving not in cluster.state("orders").isr


def test_brokers_stop_although_the_tree_cannot_be_reached(cluster):
    create(cluster, partitions=3)
    for session in cluster.sessions.values():
        cluster.loop.call_soon_threadsafe(session.disconnect)
    memberships = [broker.services.membership for broker in cluster.brokers.values()]
    wait_until(lambda: not any(each.is_connected for each in memberships))
    for broker_id in list(cluster.brokers):
        cluster.stop(broker_id)


def test_a_lost_session_makes_a_broker_a_newcomer(cluster):
    create(cluster, partitions=3)
    producer = Acknowledged(cluster)
    producer.send(b"first")
    broker_id = cluster.controller_id
    epoch = cluster.brokers[broker_id].services.membership.broker_epoch
    cluster.tree.expire(cluster.sessions[broker_id].session_id)
    wait_until(lambda: cluster.brokers[broker_id].services.membership.broker_epoch > epoch)
    producer.send(*(b"%d" % n for n in range(50)))
    for partition in range(3):
        wait_until(lambda n=partition: set(cluster.state("orders", n).isr) == {0, 1, 2})


def test_every_broker_describes_the_whole_cluster(tmp_path):
    with ClusterOnOneLoop(tmp_path) as cluster:
        create(cluster, partitions=2, replicas=2)
        for broker in cluster.brokers.values():
            ((host, port),) = broker.addresses.values()
            admin = AdminClient({"bootstrap.servers": f"{host}:{port}"})
            described = admin.describe_cluster().result(30)
            assert sorted(node.id for node in described.nodes) == [0, 1, 2]
            assert described.controller.id == cluster.controller_id

            def describes_the_topic(admin=admin):
                """A follower may be out of sync for a moment, if the machine is busy."""
                topic = admin.list_topics("orders", timeout=30).topics["orders"]
                return len(topic.partitions) == 2 and all(
                    partition.error is None
                    and len(partition.replicas) == 2
                    and sorted(partition.isrs) == sorted(partition.replicas)
                    for partition in topic.partitions.values()
                )

            wait_until(describes_the_topic)


def test_topics_are_created_on_demand_by_any_broker(cluster):
    for broker in cluster.brokers.values():
        ((host, port),) = broker.addresses.values()
        topic = f"from-{port}"
        producer = Acknowledged(cluster, **{"bootstrap.servers": f"{host}:{port}"})
        producer.send(b"x", topic=topic)
        assert read_all(cluster, 1, topic) == [b"x"]


def test_a_group_reads_on_when_its_coordinator_is_killed(cluster):
    create(cluster, partitions=2)
    producer = Acknowledged(cluster)
    producer.send(*(b"%d" % n for n in range(20)))
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "group.id": "g",
            "auto.offset.reset": "earliest",
            "session.timeout.ms": 6000,
        }
    )
    try:
        consumer.subscribe(["orders"])
        values = []
        wait_until(lambda: _read(consumer, values) >= 20)
        consumer.commit(asynchronous=False)
        states = [cluster.state("__consumer_offsets", n) for n in range(2)]
        cluster.kill(states[0].leader)
        producer.send(*(b"%d" % n for n in range(20, 40)))
        wait_until(lambda: _read(consumer, values) >= 40)
        assert sorted(map(int, values)) == list(range(40))
        wait_until(lambda: consumer.commit(asynchronous=False) is not None)
    finally:
        consumer.close()


def test_the_event_loop_turns_while_logs_are_opened(cluster):
    """A recovery may take longer than a session lives without an event loop that turns."""
    create(cluster)
    Acknowledged(cluster).send(b"x")
    cluster.kill(2)
    turned, found = threading.Event(), []

    def wait_for_a_turn(path):
        if str(path).endswith("orders-0"):
            cluster.loop.call_soon_threadsafe(turned.set)
            found.append(turned.wait(10))

    world = World()
    world.files = FaultyFiles()
    world.files.before("names_in", wait_for_a_turn)
    cluster.start(2, world)
    assert found[0]


class ShortSession(CurrentSession):
    """A session that expires at one of its calls."""

    def __init__(self, tree, calls_left):
        super().__init__(tree.open_session())
        self._tree = tree
        self._calls_left = calls_left

    def _count(self):
        self._calls_left -= 1
        if self._calls_left == 0:
            self._tree.expire(self.session_id)

    async def get(self, path, watch=None):
        self._count()
        return await super().get(path, watch)

    async def get_many(self, paths):
        self._count()
        return await super().get_many(paths)

    async def children(self, path, watch=None):
        self._count()
        return await super().children(path, watch)

    async def multi(self, operations):
        self._count()
        return await super().multi(operations)


@pytest.mark.parametrize("calls", range(1, 26, 3))
def test_a_session_that_ends_anywhere_in_the_start_is_replaced(tmp_path, calls):
    with ClusterOnOneLoop(tmp_path, 2) as cluster:
        create(cluster, replicas=2, retention_ms="60000")
        cluster.stop(1)
        opened = []

        def open_session():
            opened.append(ShortSession(cluster.tree, calls if not opened else 1_000_000))
            return opened[-1]

        cluster.open_session = open_session
        cluster.start(1)
        wait_until(lambda: set(cluster.state("orders").isr) == {0, 1})
        assert len(opened) > 1, "the session did not end in the start"


def test_a_broker_that_shuts_down_holds_up_no_acknowledgement(tmp_path):
    """It follows the new leader for a moment, which must not wait for it when it stops."""
    with ClusterOnOneLoop(tmp_path, **{"replica.lag.time.max.ms": "60000"}) as cluster:
        create(cluster, min_insync_replicas="2")
        producer = Acknowledged(cluster)
        producer.send(b"before")
        leaving = cluster.state("orders").leader
        services = cluster.brokers[cluster.controller_id].services
        assert cluster.run(services.controller.shut_down(leaving, -1)) == []
        wait_until(lambda: cluster.state("orders").leader not in (leaving, -1))
        leader = cluster.brokers[cluster.state("orders").leader].services.replicas.get("orders", 0)
        follower = leader.leadership.followers[leaving]
        wait_until(lambda: follower.log_end >= 1 and leader.leadership.proposal is None)
        cluster.run(cluster.brokers.pop(leaving).crash())  # its session goes on
        producer.send(b"after")


def test_a_broker_that_starts_describes_the_cluster_once_it_knows_it(cluster, monkeypatch):
    """librdkafka gives up all its brokers if metadata name none, and never asks again."""
    create(cluster)
    host, port = next(iter(cluster.brokers[0].addresses.values()))
    cluster.stop(0)
    registering, may_register = threading.Event(), asyncio.Event()
    join = Membership.join

    async def join_later(membership, entry):
        registering.set()
        await may_register.wait()
        await join(membership, entry)

    monkeypatch.setattr(Membership, "join", join_later)
    starting = threading.Thread(target=cluster.start, args=(0,))
    starting.start()
    topic = m.MetadataRequest.MetadataRequestTopic(name="orders")
    about_topic, about_cluster = m.MetadataRequest(topics=[topic]), m.DescribeClusterRequest()
    try:
        assert registering.wait(10)
        with (
            Connection(host, port, client_id="early") as one,
            Connection(host, port, client_id="early") as other,
        ):
            one.send(about_topic)
            other.send(about_cluster)
            for early in (one, other):
                with pytest.raises(Disconnected, match="closed the connection"):
                    early.receive_frame(10)
        with Connection(host, port, client_id="patient") as patient:
            patient.send(about_topic)
            patient.send(about_cluster)
            cluster.loop.call_soon_threadsafe(may_register.set)
            described = patient.receive(m.MetadataResponse)
            assert len(described.brokers) == 3 and described.controller_id >= 0
            assert [len(each.partitions) for each in described.topics] == [1]
            assert len(patient.receive(m.DescribeClusterResponse).brokers) == 3
    finally:
        cluster.loop.call_soon_threadsafe(may_register.set)
        starting.join()
