"""What changes around a member of a cluster: disks, directories, addresses, settings, sessions."""

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

from headrace.coordination import paths, values
from headrace.coordination.registry import Registry
from headrace.model.cluster_metadata import PartitionState, TopicState
from headrace.model.errors import ErrorCode
from headrace.model.ids import TopicId
from headrace.model.settings.resources import ResourceType
from headrace.wire import messages as m
from headrace.wire.api import ApiKey
from tests.broker.test_cluster import Acknowledged, create, read_all
from tests.fakes.clusters import ClusterOnOneLoop
from tests.fakes.raw_client import RawClient
from tests.fakes.waiting import wait_until


@pytest.fixture
def cluster(tmp_path):
    with ClusterOnOneLoop(tmp_path) as running:
        yield running


def test_a_failed_log_directory_costs_its_leaderships_only(tmp_path):
    with ClusterOnOneLoop(tmp_path) as cluster:
        create(cluster, partitions=3)
        producer = Acknowledged(cluster)
        producer.send(b"first")
        broken = cluster.state("orders").leader
        services = cluster.brokers[broken].services

        async def fail_disk():
            services.logs.directories[0].take_offline("the test broke it")

        cluster.run(fail_disk())
        for partition in range(3):
            wait_until(lambda n=partition: broken not in cluster.state("orders", n).isr)
            wait_until(lambda n=partition: cluster.state("orders", n).leader not in (broken, -1))
        producer.send(*(b"%d" % n for n in range(20)))
        assert broken in cluster.brokers and cluster.brokers[broken].failure is None


def test_a_move_between_disks_goes_on_after_a_restart(tmp_path):
    first, second = tmp_path / "a", tmp_path / "b"
    with ClusterOnOneLoop(tmp_path, 1, **{"log.dirs": f"{first},{second}"}) as cluster:
        create(cluster, replicas=1)
        producer = Acknowledged(cluster)
        producer.send(*(b"x" * 1000 for _ in range(200)))
        source, target = (first, second) if (first / "orders-0").exists() else (second, first)
        configs = Registry(cluster.sessions[0], 99).configs
        slow = {"replica.alter.log.dirs.io.max.bytes.per.second": "1"}
        cluster.run(configs.store("brokers", "0", slow))
        config = cluster.brokers[0].services.dynamic_config
        wait_until(lambda: config.broker_overrides(0) == slow)
        ask_to_move(cluster, "orders", target)
        wait_until(lambda: list(target.glob("orders-0.*-future")))
        cluster.stop(0)
        assert (source / "orders-0").exists() and list(target.glob("orders-0.*-future"))
        cluster.run(Registry(cluster.tree_session(), 99).configs.store("brokers", "0", {}))
        cluster.start(0)
        wait_until(lambda: (target / "orders-0").exists())
        wait_until(lambda: not (source / "orders-0").exists())
        producer.send(b"after")
        assert read_all(cluster, 201)[-1] == b"after"


def ask_to_move(cluster, topic, target):
    r = m.AlterReplicaLogDirsRequest
    asked = r.AlterReplicaLogDir(
        path=str(target), topics=[r.AlterReplicaLogDirTopic(name=topic, partitions=[0])]
    )
    with RawClient(cluster.bootstrap_servers) as client:
        answer = client.ask(ApiKey.ALTER_REPLICA_LOG_DIRS, 2, r(dirs=[asked]))
    assert [p.error_code for t in answer.results for p in t.partitions] == [0]


def test_a_topic_deleted_while_a_broker_is_away_is_deleted_there_when_it_returns(cluster):
    create(cluster)
    Acknowledged(cluster).send(b"x")
    away = next(i for i in cluster.brokers if i != cluster.controller_id)
    cluster.kill(away)
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    admin.delete_topics(["orders"], operation_timeout=1)
    wait_until(lambda: cluster.state("orders") is None)
    cluster.start(away)
    wait_until(lambda: cluster.brokers[away].services.replicas.get("orders", 0) is None)
    wait_until(lambda: cluster.state("orders", broker_id=away) is None)
    session = cluster.sessions[away]
    wait_until(lambda: not cluster.run(session.children(paths.DELETE_TOPICS)))
    create(cluster)
    Acknowledged(cluster).send(b"new")
    assert read_all(cluster, 1) == [b"new"]


def test_a_directory_that_the_cluster_does_not_know_is_set_aside(cluster, tmp_path):
    create(cluster)
    Acknowledged(cluster).send(b"x")
    broker_id = next(i for i in cluster.brokers if i != cluster.controller_id)
    cluster.stop(broker_id)
    directory = tmp_path / str(broker_id)
    (directory / "orders-0").rename(directory / "unknown-0")
    cluster.start(broker_id)
    assert len(list(directory.glob("unknown-0.*-stray"))) == 1
    wait_until(lambda: len(cluster.state("orders").isr) == 3)


def test_a_broker_may_come_back_with_another_address(cluster):
    create(cluster)
    moved = next(i for i in cluster.brokers if i != cluster.controller_id)
    before = cluster.brokers[moved].addresses
    cluster.stop(moved)
    cluster.start(moved, listeners="PLAINTEXT://127.0.0.1:0")
    after = cluster.brokers[moved].addresses
    assert after != before
    for broker in cluster.brokers.values():
        wait_until(
            lambda b=broker: (
                (entry := b.services.metadata.brokers.get(moved)) is not None
                and entry.endpoints["PLAINTEXT"][:2] == after["PLAINTEXT"]
            )
        )
    wait_until(lambda: len(cluster.state("orders").isr) == 3)


def test_settings_that_one_broker_changes_hold_on_all(cluster):
    create(cluster)
    other = next(i for i in cluster.brokers if i != cluster.controller_id)
    ((host, port),) = cluster.brokers[other].addresses.values()
    admin = AdminClient({"bootstrap.servers": f"{host}:{port}"})
    entry = ConfigEntry("segment.bytes", "1048577", incremental_operation=AlterConfigOpType.SET)
    topic = ConfigResource(ConfigResource.Type.TOPIC, "orders", incremental_configs=[entry])
    admin.incremental_alter_configs([topic])[topic].result(30)
    # As another program would, such as Kafka's own tools.
    configs = Registry(cluster.sessions[other], 99).configs
    cluster.run(configs.store("brokers", "<default>", {"log.retention.ms": "12345"}))
    for broker in cluster.brokers.values():
        replica = broker.services.replicas.get("orders", 0)
        wait_until(lambda r=replica: r.log.config.segment_bytes == 1048577)
        wait_until(lambda r=replica: r.log.config.retention_ms == 12345)


def test_the_settings_of_another_broker_are_described_by_that_broker_only(cluster):
    with RawClient(cluster.bootstrap_servers.partition(",")[0]) as client:
        r = m.DescribeConfigsRequest
        resource = r.DescribeConfigsResource(
            resource_type=ResourceType.BROKER, resource_name="1", configuration_keys=None
        )
        answer = client.ask(ApiKey.DESCRIBE_CONFIGS, 4, r(resources=[resource]))
        assert [each.error_code for each in answer.results] == [ErrorCode.INVALID_REQUEST]


def test_requests_for_the_controller_are_refused_elsewhere(cluster):
    other = next(i for i in cluster.brokers if i != cluster.controller_id)
    ((host, port),) = cluster.brokers[other].addresses.values()
    r = m.CreateTopicsRequest
    topic = r.CreatableTopic(name="t", num_partitions=1, replication_factor=1)
    with RawClient(f"{host}:{port}") as client:
        answer = client.ask(ApiKey.CREATE_TOPICS, 7, r(topics=[topic], timeout_ms=1000))
        assert [each.error_code for each in answer.topics] == [ErrorCode.NOT_CONTROLLER]


def test_without_its_session_a_broker_serves_what_it_leads(cluster):
    create(cluster)
    producer = Acknowledged(cluster)
    producer.send(b"first")
    cut = cluster.state("orders").leader
    cluster.sessions[cut].disconnect()
    producer.send(b"second")
    cluster.sessions[cut].reconnect()
    producer.send(b"third")
    assert read_all(cluster, 3) == producer.values


def test_a_request_that_needs_the_tree_is_retried_after_a_lost_session(cluster):
    """A client sees no unknown error while the controller's session ends."""
    for number in range(5):
        controller = cluster.controller_id
        if controller >= 0:
            cluster.tree.expire(cluster.sessions[controller].session_id)
        wait_until(lambda name=f"topic-{number}": created(cluster, name))
    for broker in cluster.brokers.values():
        assert not broker.bugs


def created(cluster, name):
    try:
        create(cluster, name, partitions=2)
    except KafkaException as refused:
        code = refused.args[0].code()
        assert code in (KafkaError.NOT_CONTROLLER, KafkaError.TOPIC_ALREADY_EXISTS), refused
        return code == KafkaError.TOPIC_ALREADY_EXISTS
    return True


def test_the_cluster_id_is_checked_against_the_log_directories(cluster, tmp_path):
    cluster.stop(2)
    properties = tmp_path / "2" / "meta.properties"
    lines = properties.read_text().splitlines()
    lines = ["cluster.id=another" if line.startswith("cluster.id=") else line for line in lines]
    properties.write_text("\n".join(lines) + "\n")
    with pytest.raises(Exception, match="belong to another cluster: cluster.id is another"):
        cluster.start(2)


def test_partitions_are_not_set_aside_because_of_a_wrong_address(tmp_path, caplog):
    with ClusterOnOneLoop(tmp_path, 1) as cluster:
        create(cluster, replicas=1)
    with (
        pytest.raises(Exception, match="there is no cluster at the address"),
        ClusterOnOneLoop(tmp_path, 1),  # its tree is empty
    ):
        pass
    assert (tmp_path / "0" / "orders-0").exists()


def test_the_data_of_a_standalone_node_is_not_forgotten(cluster, tmp_path):
    cluster.stop(2)
    (tmp_path / "2" / "headrace.sqlite").write_bytes(b"")
    with pytest.raises(Exception, match="migrate-to-zookeeper"):
        cluster.start(2)


@pytest.mark.parametrize("has_led", [False, True])
def test_a_lone_leader_without_a_log_creates_it_only_if_there_never_was_one(tmp_path, has_led):
    with ClusterOnOneLoop(tmp_path, 1) as cluster:
        cluster.stop(0)
        cluster.run(_elect_while_it_is_away(cluster.tree_session(), has_changed_isr=has_led))
        cluster.start(0)
        if has_led:
            wait_until(lambda: 0 in cluster.state("orders").offline)
            assert not (tmp_path / "0" / "orders-0").exists()
        else:
            wait_until(lambda: cluster.state("orders").leader == 0)
            Acknowledged(cluster).send(b"first")
            assert read_all(cluster, 1) == [b"first"]


async def _elect_while_it_is_away(session, *, has_changed_isr):
    """Broker 0 leads alone, and did not live to hear of it."""
    state = PartitionState(
        topic="orders",
        partition=0,
        topic_id=TopicId(b"o" * 16),
        leader=0,
        leader_epoch=0,
        isr=(0,),
        replicas=(0, 1),
        partition_epoch=0,
    )
    topic = TopicState("orders", state.topic_id, (state,), False)
    await session.create(paths.topic("orders"), values.encode_topic(topic))
    await session.create(paths.partitions("orders"))
    await session.create(paths.partition("orders", 0))
    path, value = paths.state("orders", 0), values.encode_state(state, 1)
    await session.create(path, value)
    if has_changed_isr:
        await session.set(path, value, 0)
