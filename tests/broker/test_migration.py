"""A standalone node becomes a member of a cluster with everything it had."""

import asyncio

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource

from headrace.broker.migration import MIGRATED_NAME, migrate_node
from headrace.coordination import paths, values
from headrace.coordination.zookeeper import ZooKeeperTree
from headrace.model.config import BrokerConfig
from headrace.model.errors import ConfigError
from headrace.model.ids import id_from_text
from headrace.testing import Broker
from headrace.world.world import World
from tests.broker.test_cluster import Acknowledged, create, read_all
from tests.fakes.clusters import ClusterOnOneLoop

pytestmark = pytest.mark.usefixtures("zookeeper_or_none")


def migrated(data, connect):
    settings = {"log.dirs": str(data), "zookeeper.connect": connect}
    return asyncio.run(migrate_node(BrokerConfig.parse(settings), World()))


def with_tree(connect, work):
    async def run():
        tree = await ZooKeeperTree.open(
            connect, session_timeout_ms=6000, connection_timeout_ms=6000
        )
        try:
            return await work(tree)
        finally:
            await tree.close()

    return asyncio.run(run())


def filled_node(data):
    """A node with records and a setting; returns its cluster id."""
    with Broker(data=data, config={"node.id": 0}) as node:
        create(node, replicas=1, retention_ms="777000")
        Acknowledged(node).send(b"before")
        admin = AdminClient({"bootstrap.servers": node.bootstrap_servers})
        return admin.describe_cluster().result(30).cluster_id


def test_a_node_keeps_its_records_settings_and_id_in_a_cluster(tmp_path, zookeeper):
    connect = f"{zookeeper.connect}/migrated"
    cluster_id = filled_node(tmp_path / "0")
    log_dir = tmp_path / "0"
    topic_id = (log_dir / "orders-0" / "partition.metadata").read_text().split()[-1]
    answer = migrated(log_dir, connect)
    assert answer.cluster_id == cluster_id and "orders" in answer.topics
    assert (log_dir / MIGRATED_NAME).exists()
    assert "version=0" in (log_dir / "meta.properties").read_text()
    settings = {"zookeeper.connect": connect, "zookeeper.session.timeout.ms": "6000"}
    with ClusterOnOneLoop(tmp_path, 1, **settings) as cluster:
        assert read_all(cluster, 1) == [b"before"]
        producer = Acknowledged(cluster)
        producer.send(b"after")
        assert read_all(cluster, 2) == [b"before", b"after"]
        assert cluster.state("orders").topic_id == id_from_text(topic_id)
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
        assert admin.describe_cluster().result(30).cluster_id == cluster_id
        resource = ConfigResource(ConfigResource.Type.TOPIC, "orders")
        described = admin.describe_configs([resource])[resource].result(30)
        assert described["retention.ms"].value == "777000"


def test_a_leader_epoch_is_never_below_the_one_in_the_log(tmp_path, zookeeper):
    filled_node(tmp_path)
    epochs = tmp_path / "orders-0" / "leader-epoch-checkpoint"
    epochs.write_text("0\n1\n41 0\n")
    connect = f"{zookeeper.connect}/epochs"
    migrated(tmp_path, connect)

    async def read(tree):
        node = await tree.get(paths.state("orders", 0))
        return values.decode_state("orders", 0, node.value)

    assert with_tree(connect, read).leader_epoch == 41


def test_the_cluster_of_another_node_is_not_touched(tmp_path, zookeeper):
    connect = f"{zookeeper.connect}/other"

    async def take(tree):
        await tree.create("/cluster")
        await tree.create(paths.CLUSTER_ID, values.encode_cluster_id("another"))

    with_tree(connect, take)
    filled_node(tmp_path)
    with pytest.raises(ConfigError, match="has cluster another there"):
        migrated(tmp_path, connect)
    assert (tmp_path / "headrace.sqlite").exists()


def test_a_migration_can_be_repeated_until_it_is_complete(tmp_path, zookeeper):
    connect = f"{zookeeper.connect}/repeated"
    filled_node(tmp_path)
    first = migrated(tmp_path, connect)
    (tmp_path / MIGRATED_NAME).rename(tmp_path / "headrace.sqlite")
    assert migrated(tmp_path, connect) == first
    with pytest.raises(ConfigError, match="no data of a standalone node"):
        migrated(tmp_path, connect)


def test_a_node_with_several_log_directories_can_start_in_its_cluster(tmp_path, zookeeper):
    connect = f"{zookeeper.connect}/several"
    log_dirs = f"{tmp_path / 'a'},{tmp_path / 'b'}"
    with Broker(data=tmp_path / "a", config={"node.id": 0, "log.dirs": log_dirs}) as node:
        create(node, partitions=4, replicas=1)
    migrated(log_dirs, connect)
    settings = {"zookeeper.connect": connect, "log.dirs": log_dirs}
    for _ in range(2):
        with ClusterOnOneLoop(tmp_path, 1, **settings) as cluster:
            assert all(cluster.state("orders", n).leader == 0 for n in range(4))


def test_without_an_address_nothing_is_migrated(tmp_path):
    with pytest.raises(ConfigError, match="zookeeper.connect is not set"):
        migrated(tmp_path, "")
