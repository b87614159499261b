"""Groups and transactions of a cluster: coordinators die and move, and clients go on."""

import threading

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.core.topics import OFFSETS_TOPIC, TRANSACTIONS_TOPIC, java_hash
from headrace.model.errors import ErrorCode
from headrace.wire import messages as m
from headrace.wire.api import ApiKey
from tests.fakes.clusters import ClusterOnOneLoop
from tests.fakes.transactional_client import TransactionalClient
from tests.fakes.waiting import wait_until

NONE = ErrorCode.NONE
TOPIC = "orders"
PARTITIONS = 3  # of each topic, so that each broker leads one
LIMIT_S = 30


@pytest.fixture(params=[{}])
def cluster(tmp_path, request):
    settings = {
        "offsets.topic.num.partitions": str(PARTITIONS),
        "transaction.state.log.num.partitions": str(PARTITIONS),
        **request.param,
    }
    with ClusterOnOneLoop(tmp_path, **settings) as running:
        admin = AdminClient({"bootstrap.servers": running.bootstrap_servers})
        new = NewTopic(TOPIC, PARTITIONS, 3, config={"min.insync.replicas": "2"})
        admin.create_topics([new])[TOPIC].result(LIMIT_S)
        for internal in (OFFSETS_TOPIC, TRANSACTIONS_TOPIC):
            coordinator_of(running, internal, "any")  # creates it, while all brokers are there
        yield running


# --- what the tests share


def client_of(cluster, broker_id):
    ((host, port),) = cluster.brokers[broker_id].addresses.values()
    return TransactionalClient(f"{host}:{port}")


def coordinator_of(cluster, topic, key):
    """The broker that leads the key's partition; asking for it creates the internal topic."""
    partition = java_hash(key) % PARTITIONS
    kind = 0 if topic == OFFSETS_TOPIC else 1
    with client_of(cluster, next(iter(cluster.brokers))) as client:
        wait_until(lambda: client.find(key, kind=kind) == [NONE])
    return cluster.state(topic, partition).leader


def key_coordinated_by(cluster, topic, broker_id):
    keys = (f"key-{number}" for number in range(100))
    return next(key for key in keys if coordinator_of(cluster, topic, key) == broker_id)


def produce(cluster, *values):
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "acks": "all"})
    errors = []
    for number, value in enumerate(values):
        producer.produce(
            TOPIC,
            value,
            partition=number % PARTITIONS,
            on_delivery=lambda error, message: errors.append(error) if error else None,
        )
    assert producer.flush(LIMIT_S) == 0
    assert errors == []


class Member:
    """A consumer of a group that commits what it reads; it notes its assignments."""

    def __init__(self, cluster, **settings):
        self.read, self.assigned = [], []
        self.consumer = Consumer(
            {
                "bootstrap.servers": cluster.bootstrap_servers,
                "group.id": "readers",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "topic.metadata.refresh.interval.ms": 500,
                **settings,
            }
        )
        self.consumer.subscribe([TOPIC], on_assign=self._assigned)

    def _assigned(self, consumer, partitions):
        self.assigned.append(sorted(one.partition for one in partitions))

    def read_until(self, count):
        def poll():
            message = self.consumer.poll(0.2)
            if message is not None and message.error() is None:
                self.read.append(message.value())
                self._commit(message)
            return len(self.read) >= count

        wait_until(poll, LIMIT_S)

    def _commit(self, message):
        def is_committed():
            try:
                self.consumer.commit(message, asynchronous=False)
            except KafkaException as refused:
                assert refused.args[0].retriable() or refused.args[0].name() == "_WAIT_COORD"
                return False
            return True

        wait_until(is_committed, LIMIT_S)


def committed_values(cluster):
    """What a new read_committed consumer finds in all partitions, up to their ends."""
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "group.id": "checker",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
        }
    )
    consumer.assign([TopicPartition(TOPIC, number, 0) for number in range(PARTITIONS)])
    values, ended = [], set()

    def poll():
        for message in consumer.consume(500, 0.2):
            if message.error() is None:
                values.append(message.value())
            else:
                ended.add(message.partition())
        return len(ended) == PARTITIONS

    try:
        wait_until(poll, LIMIT_S)
    finally:
        consumer.close()
    return sorted(values)


def open_transactions(cluster):
    """The producers with an open transaction in a partition of the topic."""
    found = []
    for number in range(PARTITIONS):
        with client_of(cluster, cluster.state(TOPIC, number).leader) as client:
            producers = client.producers(TOPIC, number).active_producers
            found += [one for one in producers if one.current_txn_start_offset >= 0]
    return found


def transactional_producer(cluster, transactional_id="tx"):
    producer = Producer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "transactional.id": transactional_id,
            "topic.metadata.refresh.interval.ms": 500,
            "retry.backoff.ms": 20,
        }
    )
    producer.init_transactions(LIMIT_S)
    return producer


def send_to_all(producer, name):
    for number in range(PARTITIONS):
        producer.produce(TOPIC, f"{name}-{number}", partition=number)
    assert producer.flush(LIMIT_S) == 0


def values_of(*names):
    return sorted(f"{name}-{number}".encode() for name in names for number in range(PARTITIONS))


# --- groups


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_survives_the_crash_of_its_coordinator(cluster, protocol):
    produce(cluster, *(b"before-%d" % number for number in range(9)))
    member = Member(cluster, **{"group.protocol": protocol})
    try:
        member.read_until(9)
        assignments = list(member.assigned)
        cluster.kill(coordinator_of(cluster, OFFSETS_TOPIC, "readers"))
        produce(cluster, *(b"after-%d" % number for number in range(9)))
        member.read_until(18)
        assert sorted(member.read) == sorted(
            b"%b-%d" % (when, number) for when in (b"before", b"after") for number in range(9)
        ), "nothing is lost, and nothing is read twice"
        assert member.assigned == assignments, "the next coordinator knows the member"
        positions = member.consumer.committed(
            [TopicPartition(TOPIC, number) for number in range(PARTITIONS)], LIMIT_S
        )
        assert [one.offset for one in positions] == [6, 6, 6]
    finally:
        member.consumer.close()


# --- transactions


def test_a_transaction_over_three_leaders_commits_and_aborts(cluster):
    assert len({cluster.state(TOPIC, number).leader for number in range(PARTITIONS)}) == 3
    producer = transactional_producer(cluster)
    for name, ends in (
        ("first", producer.commit_transaction),
        ("aborted", producer.abort_transaction),
        ("second", producer.commit_transaction),
    ):
        producer.begin_transaction()
        send_to_all(producer, name)
        ends(LIMIT_S)
    wait_until(lambda: not open_transactions(cluster))
    assert committed_values(cluster) == values_of("first", "second")


@pytest.mark.parametrize("commits", [True, False], ids=["commit", "abort"])
def test_an_open_transaction_survives_the_crash_of_its_coordinator(cluster, commits):
    producer = transactional_producer(cluster)
    producer.begin_transaction()
    send_to_all(producer, "first")
    producer.commit_transaction(LIMIT_S)
    producer.begin_transaction()
    send_to_all(producer, "open")
    cluster.kill(coordinator_of(cluster, TRANSACTIONS_TOPIC, "tx"))
    if commits:
        producer.commit_transaction(LIMIT_S)
    else:
        producer.abort_transaction(LIMIT_S)
    wait_until(lambda: not open_transactions(cluster))
    assert committed_values(cluster) == values_of("first", *(["open"] if commits else []))
    producer.begin_transaction()
    send_to_all(producer, "next")
    producer.commit_transaction(LIMIT_S)


# A follower that no record wakes fetches again only after the test has failed.
@pytest.mark.parametrize(
    "cluster",
    [{"replica.fetch.wait.max.ms": "60000", "replica.lag.time.max.ms": "60000"}],
    indirect=True,
    ids=["patient followers"],
)
def test_offsets_of_a_transaction_are_committed_on_the_group_coordinators_broker(cluster):
    transactional_id = key_coordinated_by(cluster, TRANSACTIONS_TOPIC, 0)
    group = key_coordinated_by(cluster, OFFSETS_TOPIC, 1)
    with client_of(cluster, 0) as transactions, client_of(cluster, 1) as groups:
        producer = transactions.start(transactional_id)
        assert transactions.add_offsets(transactional_id, producer, group) is NONE
        sent = groups.commit_offsets(transactional_id, group, producer, TOPIC, 5)
        assert sent is NONE
        assert groups.committed_offset(group, TOPIC, require_stable=True)[1] is (
            ErrorCode.UNSTABLE_OFFSET_COMMIT
        )
        assert transactions.end(transactional_id, producer, True) is NONE
        wait_until(lambda: groups.committed_offset(group, TOPIC, require_stable=True) == (5, NONE))


# --- the death of a follower


class Load:
    """A thread with requests to one broker; it collects each error that a client would hear."""

    def __init__(self, round_of_requests):
        self.heard, self.rounds = [], 0
        self._requests = round_of_requests
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._is_over.set()
        self._thread.join(LIMIT_S)

    def _run(self):
        while not self._is_over.is_set():
            self.heard += [code for code in self._requests(self.rounds) if code is not NONE]
            self.rounds += 1

    def goes_on(self, rounds):
        end = self.rounds + rounds
        wait_until(lambda: self.rounds >= end)


def commit_offset(client, group, offset):
    request = m.OffsetCommitRequest
    partition = request.OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
    topic = request.OffsetCommitRequestTopic(name=TOPIC, partitions=[partition])
    response = client.ask(ApiKey.OFFSET_COMMIT, 8, request(group_id=group, topics=[topic]))
    return ErrorCode(response.topics[0].partitions[0].error_code)


def test_the_death_of_a_follower_is_heard_by_no_client(cluster):
    leader, follower = (cluster.state(TOPIC, 0).leader, cluster.state(TOPIC, 1).leader)
    group = key_coordinated_by(cluster, OFFSETS_TOPIC, leader)
    transactional_id = key_coordinated_by(cluster, TRANSACTIONS_TOPIC, leader)
    with client_of(cluster, leader) as client:
        producer = client.start(transactional_id)

        def one_round(number):
            yield commit_offset(client, group, number)
            yield client.add(transactional_id, producer, TOPIC, 0)
            yield client.put(transactional_id, producer, TOPIC, b"x", sequence=number)
            yield client.end(transactional_id, producer, True)
            wait_until(lambda: client.state(transactional_id) == "CompleteCommit")

        leader_epoch = cluster.state(TOPIC, 0).leader_epoch
        with Load(one_round) as load:
            load.goes_on(5)
            cluster.kill(follower)
            wait_until(lambda: follower not in cluster.state(TOPIC, 0).isr)
            load.goes_on(5)
        assert load.heard == []
        assert cluster.state(TOPIC, 0).leader == leader
        assert cluster.state(TOPIC, 0).leader_epoch > leader_epoch
        assert client.committed_offset(group, TOPIC) == (load.rounds - 1, NONE)
