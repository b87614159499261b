"""Headrace and Apache Kafka 3.9 in one cluster: each role, taken by either kind of broker."""

import itertools
import time
from collections.abc import Iterator, Sequence

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
)

from headrace.coordination import paths, values
from headrace.model.errors import ErrorCode
from headrace.model.settings.resources import ResourceType
from headrace.records.record import Record, build_batch
from headrace.wire import messages as m
from headrace.wire.api import ApiKey
from tests.fakes.leaks import nothing_left_behind
from tests.fakes.raw_client import RawClient
from tests.fakes.waiting import wait_until

from . import records
from .mixed_cluster import MIXTURES, Kind, MixedCluster

LIMIT_S = 60
GROUP, TRANSACTION = 0, 1  # types of coordinators
KINDS = pytest.mark.parametrize("kind", Kind, ids=lambda kind: kind.name.lower())
numbers = itertools.count()


@pytest.fixture(autouse=True, scope="module")
def no_leaked_threads_or_children() -> Iterator[None]:
    """Tests restart brokers of the cluster that they share, so its end is looked at, not theirs."""
    with nothing_left_behind():
        yield


@pytest.fixture(scope="module", params=MIXTURES)
def cluster(
    request: pytest.FixtureRequest,
    kafka_jars: object,
    no_leaked_threads_or_children: None,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[MixedCluster]:
    with MixedCluster(MIXTURES[request.param], tmp_path_factory.mktemp("mixed")) as running:
        yield running


@pytest.fixture
def topic() -> str:
    return f"topic-{next(numbers)}"


def other(kind: Kind) -> Kind:
    return Kind.HEADRACE if kind is Kind.KAFKA else Kind.KAFKA


def admin(cluster: MixedCluster) -> AdminClient:
    return AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})


def isr(cluster: MixedCluster, topic: str) -> set[int]:
    state = cluster.read(paths.state(topic, 0))
    assert state is not None
    return set(map(int, values.decode_state(topic, 0, state).isr))


def restart_leader(cluster: MixedCluster, topic: str) -> None:
    """Restart the leader. A broker of the other kind leads afterwards."""
    leader = cluster.leader_of(topic)
    cluster.restart(leader)
    cluster.wait_in_sync(topic)
    assert cluster.leader_kind(topic) is other(cluster.kind(leader))


def elect_preferred_leaders(cluster: MixedCluster) -> None:
    """Spread the leaderships again, also those of the internal topics."""
    request = m.ElectLeadersRequest(election_type=0, topic_partitions=None, timeout_ms=60_000)
    with RawClient(cluster.address(cluster.controller_id())) as client:
        answer = client.ask(ApiKey.ELECT_LEADERS, 2, request)
    assert answer.error_code == ErrorCode.NONE


def produce(cluster: MixedCluster, topic: str, sent: Sequence[str], **settings: object) -> None:
    producer = Producer(
        {"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0, **settings}
    )
    for value in sent:
        producer.produce(topic, value, partition=0)
    assert producer.flush(LIMIT_S) == 0


def contents(cluster: MixedCluster, topic: str) -> list[str]:
    committed = records.read(cluster.bootstrap_servers, topic, isolation="read_committed")
    return [(record.value or b"").decode() for record in committed]


# --- leaders and followers


@KINDS
def test_records_of_one_kind_are_read_from_a_leader_of_the_other(
    cluster: MixedCluster, topic: str, kind: Kind
) -> None:
    cluster.create(topic, kind)
    servers = cluster.bootstrap_servers
    records.write_every_kind(servers, topic)
    records.write_transactions(servers, topic)
    everything = records.read(servers, topic)
    committed = records.read(servers, topic, isolation="read_committed")
    assert len(everything) - len(committed) == 50  # the aborted transaction
    cluster.wait_level(topic)

    restart_leader(cluster, topic)
    assert records.read(servers, topic) == everything
    assert records.read(servers, topic, isolation="read_committed") == committed
    records.write_every_kind(servers, topic)
    records.write_transactions(servers, topic)
    cluster.wait_level(topic)


@KINDS
def test_a_repeated_batch_is_recognized_by_a_leader_of_the_other_kind(
    cluster: MixedCluster, topic: str, kind: Kind
) -> None:
    cluster.create(topic, kind)
    producer_id = new_producer_id(cluster)
    assert [produce_batch(cluster, topic, producer_id, n) for n in range(3)] == [0, 0, 0]
    cluster.wait_level(topic)
    restart_leader(cluster, topic)
    assert produce_batch(cluster, topic, producer_id, 2) == ErrorCode.NONE
    assert produce_batch(cluster, topic, producer_id, 9) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert produce_batch(cluster, topic, producer_id, 3) == ErrorCode.NONE
    assert contents(cluster, topic) == ["0", "1", "2", "3"]
    cluster.wait_level(topic)


def new_producer_id(cluster: MixedCluster) -> int:
    request = m.InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
    given: list[int] = []

    def ask() -> bool:
        with RawClient(cluster.address(0)) as client:
            answer = client.ask(ApiKey.INIT_PRODUCER_ID, 4, request)
        given.append(answer.producer_id)
        return answer.error_code == ErrorCode.NONE

    wait_until(ask)
    return given[-1]


def produce_batch(cluster: MixedCluster, topic: str, producer_id: int, number: int) -> ErrorCode:
    """Send record ``number`` of a producer to the leader."""
    batch = build_batch(
        [Record(0, int(time.time() * 1000), None, str(number).encode(), ())],
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=number,
    )
    r = m.ProduceRequest
    data = r.TopicProduceData(
        name=topic, partition_data=[r.PartitionProduceData(index=0, records=batch)]
    )
    with RawClient(cluster.address(cluster.leader_of(topic))) as client:
        answer = client.ask(ApiKey.PRODUCE, 11, r(acks=-1, timeout_ms=10_000, topic_data=[data]))
    return ErrorCode(answer.responses[0].partition_responses[0].error_code)


@KINDS
def test_a_former_leader_cuts_off_what_an_unclean_leader_of_the_other_kind_lacks(
    cluster: MixedCluster, topic: str, kind: Kind
) -> None:
    leader, follower = cluster.ids(kind)[0], cluster.ids(other(kind))[0]
    config = {"unclean.leader.election.enable": "true", "min.insync.replicas": "1"}
    new = NewTopic(topic, 1, replica_assignment=[[leader, follower]], config=config)
    tool = admin(cluster)  # its answers end with it
    tool.create_topics([new])[topic].result()
    cluster.wait_in_sync(topic)
    produce(cluster, topic, ["both"] * 20)
    cluster.kill(follower)
    wait_until(lambda: isr(cluster, topic) == {leader}, LIMIT_S)
    produce(cluster, topic, ["lost"] * 30)
    cluster.kill(leader)
    cluster.restart(follower)
    assert cluster.leader_of(topic) == follower
    produce(cluster, topic, ["kept"] * 10)
    cluster.restart(leader)
    cluster.wait_in_sync(topic)
    assert contents(cluster, topic) == ["both"] * 20 + ["kept"] * 10
    assert cluster.log_bytes(leader, topic) == cluster.log_bytes(follower, topic)


# --- controllers


@KINDS
def test_a_controller_of_either_kind_does_its_work(
    cluster: MixedCluster, topic: str, kind: Kind
) -> None:
    cluster.make_controller(kind)
    cluster.create(topic, other(kind))
    tool = admin(cluster)
    tool.create_partitions([NewPartitions(topic, 3)])[topic].result()
    wait_until(lambda: all(_has(cluster, each, topic, 2) for each in range(3)))

    change = ConfigEntry("retention.ms", "7654321", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[change])
    tool.incremental_alter_configs([resource])[resource].result()
    for each in range(3):
        wait_until(lambda n=each: _retention(cluster, n, topic) == "7654321")

    killed = cluster.leader_of(topic)
    produce(cluster, topic, ["before"])
    cluster.kill(killed)
    wait_until(lambda: killed not in isr(cluster, topic), LIMIT_S)
    assert cluster.leader_of(topic) != killed
    produce(cluster, topic, ["after"])
    cluster.restart(killed)
    cluster.wait_in_sync(topic)
    elect_preferred_leaders(cluster)
    assert cluster.leader_of(topic) == killed
    assert contents(cluster, topic) == ["before", "after"]
    assert cluster.kind(cluster.controller_id()) is kind

    tool.delete_topics([topic])[topic].result()
    wait_until(lambda: not any(_has(cluster, each, topic, 0) for each in range(3)), LIMIT_S)


def _has(cluster: MixedCluster, broker_id: int, topic: str, partition: int) -> bool:
    return (cluster.brokers[broker_id].data / f"{topic}-{partition}").exists()


def _retention(cluster: MixedCluster, broker_id: int, topic: str) -> str | None:
    r = m.DescribeConfigsRequest
    resource = r.DescribeConfigsResource(
        resource_type=ResourceType.TOPIC, resource_name=topic, configuration_keys=["retention.ms"]
    )
    with RawClient(cluster.address(broker_id)) as client:
        answer = client.ask(ApiKey.DESCRIBE_CONFIGS, 4, r(resources=[resource]))
    value: str | None = answer.results[0].configs[0].value
    return value


@KINDS
def test_a_controller_of_either_kind_moves_replicas_to_the_other(
    cluster: MixedCluster, topic: str, kind: Kind
) -> None:
    controller = cluster.make_controller(kind)
    single = cluster.ids(next(each for each in Kind if len(cluster.ids(each)) == 1))[0]
    first, second = (each for each in range(3) if each != single)
    new = NewTopic(topic, 1, replica_assignment=[[first, second]])
    tool = admin(cluster)  # its answers end with it
    tool.create_topics([new])[topic].result()
    cluster.wait_in_sync(topic)
    produce(cluster, topic, ["moved"] * 100)
    r = m.AlterPartitionReassignmentsRequest
    for target in ([single, second], [first, second], [first, second, single]):
        partition = r.ReassignablePartition(partition_index=0, replicas=target)
        wanted = r(topics=[r.ReassignableTopic(name=topic, partitions=[partition])])
        with RawClient(cluster.address(controller)) as client:
            answer = client.ask(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, wanted)
        assert answer.error_code == ErrorCode.NONE
        assert answer.responses[0].partitions[0].error_code == ErrorCode.NONE
        wait_until(lambda t=target: isr(cluster, topic) == set(t), LIMIT_S)
        wait_until(lambda t=target: _assigned(cluster, topic) == t, LIMIT_S)
        assert cluster.leader_of(topic) == target[0]
        wait_until(
            lambda t=target: (
                [_has(cluster, n, topic, 0) for n in range(3)] == [n in t for n in range(3)]
            ),
            LIMIT_S,
        )
    assert contents(cluster, topic) == ["moved"] * 100
    assert cluster.controller_id() == controller
    cluster.wait_level(topic)


def _assigned(cluster: MixedCluster, topic: str) -> list[int]:
    value = cluster.read(paths.topic(topic))
    assert value is not None
    return list(map(int, values.decode_topic(topic, value).replicas[0]))


# --- coordinators


def coordinated_by(cluster: MixedCluster, kind: Kind, coordinator: int) -> tuple[str, int]:
    """A new key whose coordinator is of this kind, and that coordinator."""
    elect_preferred_leaders(cluster)
    for _ in range(100):
        key = f"key-{next(numbers)}"
        found = find_coordinator(cluster, key, coordinator)
        if cluster.kind(found) is kind:
            return key, found
    raise AssertionError(f"no coordinator is {kind.value}")


def find_coordinator(cluster: MixedCluster, key: str, coordinator: int) -> int:
    request = m.FindCoordinatorRequest(key_type=coordinator, coordinator_keys=[key])
    found: list[int] = []

    def ask() -> bool:
        with RawClient(cluster.address(0)) as client:
            (answer,) = client.ask(ApiKey.FIND_COORDINATOR, 4, request).coordinators
        found.append(answer.node_id)
        return answer.error_code == ErrorCode.NONE

    wait_until(ask, LIMIT_S)
    return found[-1]


@KINDS
def test_a_group_goes_on_when_its_coordinator_moves(
    cluster: MixedCluster, topic: str, kind: Kind
) -> None:
    cluster.create(topic, other(kind))
    group, coordinator = coordinated_by(cluster, kind, GROUP)
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": 10_000,
            "log_level": 0,
        }
    )
    try:
        consumer.subscribe([topic])
        produce(cluster, topic, [f"first {n}" for n in range(50)])
        assert read_and_commit(consumer, 50) == [f"first {n}" for n in range(50)]
        cluster.restart(coordinator)
        produce(cluster, topic, [f"second {n}" for n in range(50)])
        assert read_and_commit(consumer, 50) == [f"second {n}" for n in range(50)]
    finally:
        consumer.close()
    assert find_coordinator(cluster, group, GROUP) != coordinator
    assert committed(cluster, group, topic) == 100


def read_and_commit(consumer: Consumer, count: int) -> list[str]:
    read: list[str] = []
    give_up_at = time.monotonic() + LIMIT_S
    while len(read) < count:
        assert time.monotonic() < give_up_at, f"read {len(read)} of {count} records"
        message = consumer.poll(1)
        if message is not None and message.error() is None:
            read.append((message.value() or b"").decode())
    wait_until(lambda: _commits(consumer), LIMIT_S)
    return read


def _commits(consumer: Consumer) -> bool:
    try:
        consumer.commit(asynchronous=False)
    except KafkaException:  # the coordinator moves
        consumer.poll(0)
        return False
    return True


def committed(cluster: MixedCluster, group: str, topic: str) -> int:
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap_servers, "group.id": group})
    try:
        (found,) = consumer.committed([TopicPartition(topic, 0)], timeout=LIMIT_S)
    finally:
        consumer.close()
    offset: int = found.offset
    return offset


@KINDS
def test_a_transaction_is_ended_by_a_coordinator_of_the_other_kind(
    cluster: MixedCluster, topic: str, kind: Kind
) -> None:
    topics = [f"{topic}-{leader.name}" for leader in Kind]
    for name, leader in zip(topics, Kind, strict=True):
        cluster.create(name, leader)
    transaction, coordinator = coordinated_by(cluster, kind, TRANSACTION)
    group, _ = coordinated_by(cluster, other(kind), GROUP)
    producer = Producer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "transactional.id": transaction,
            "log_level": 0,
        }
    )
    member = Consumer({"bootstrap.servers": cluster.bootstrap_servers, "group.id": group})
    producer.init_transactions(LIMIT_S)
    for turn, commits in enumerate((True, False, True)):
        producer.begin_transaction()
        for name in topics:
            producer.produce(name, f"{turn}", partition=0)
        offsets = [TopicPartition(topics[0], 0, turn + 1)]
        producer.send_offsets_to_transaction(offsets, member.consumer_group_metadata(), LIMIT_S)
        producer.flush(LIMIT_S)
        if turn < 2:  # once with a committed and once with an aborted transaction
            cluster.restart(coordinator)
            coordinator = find_coordinator(cluster, transaction, TRANSACTION)
        if commits:
            producer.commit_transaction(LIMIT_S)
        else:
            producer.abort_transaction(LIMIT_S)
    member.close()
    for name in topics:
        assert contents(cluster, name) == ["0", "2"]
        cluster.wait_level(name)
    assert committed(cluster, group, topics[0]) == 3


def test_levels_stay_0_and_groups_of_the_new_protocol_are_refused(cluster: MixedCluster) -> None:
    cluster.make_controller(Kind.HEADRACE)
    for broker_id in cluster.ids(Kind.HEADRACE):
        with RawClient(cluster.address(broker_id)) as client:
            request = m.ApiVersionsRequest(client_software_name="test", client_software_version="1")
            answer = client.ask(ApiKey.API_VERSIONS, 4, request)
            levels = {one.name: one.max_version_level for one in answer.finalized_features}
            assert levels.get("transaction.version", 0) == 0
            assert levels.get("group.version", 0) == 0
            heartbeat = m.ConsumerGroupHeartbeatRequest(
                group_id="new",
                member_id="m",
                member_epoch=0,
                rebalance_timeout_ms=1000,
                subscribed_topic_names=["t"],
                topic_partitions=[],
            )
            refused = client.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, 0, heartbeat)
            assert refused.error_code == ErrorCode.UNSUPPORTED_VERSION
