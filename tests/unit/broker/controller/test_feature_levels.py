"""Feature levels of a cluster: the first ones, and brokers that do not support them."""

from headrace.coordination import paths
from headrace.coordination.registry import Registry
from headrace.coordination.tree import ANY_VERSION
from headrace.coordination.watched import WatchedNodes
from headrace.model.cluster_metadata import BrokerEntry, Endpoint
from headrace.model.ids import BrokerId
from tests.fakes.standin import in_loop
from tests.fakes.told_brokers import (
    make_topic,
    told_cluster,
    until,
)


@in_loop
async def test_a_broker_that_does_not_support_the_clusters_features_is_reported(caplog):
    async with told_cluster(1, 2) as cluster:
        await cluster.start(1)
        found = await cluster.session().get(paths.FEATURE)
        assert found.value == b'{"features":{},"version":2,"status":1}'
        old = BrokerEntry(BrokerId(39), {"PLAINTEXT": Endpoint("told", 2)}, None, -1)
        await Registry(cluster.session(), BrokerId(39)).register(old, 1)
        await until(lambda: "Broker 39 does not support level 2 of feature" in caplog.text)
        assert "headrace features downgrade" in caplog.text


@in_loop
async def test_a_cluster_of_kafka_keeps_level_0_while_its_last_broker_is_away():
    async with told_cluster() as cluster:
        controller = await cluster.start(1)
        await make_topic(controller)
        await cluster.kill_controller()
        session = cluster.session()
        # Kafka's controllers write no levels.
        await session.delete(paths.FEATURE_LEVELS, ANY_VERSION)
        await session.close()
        cluster.crash(1)
        await cluster.start(2)
        found = await WatchedNodes(cluster.session()).features()
        assert (found.levels["transaction.version"], found.levels["group.version"]) == (0, 0)


@in_loop
async def test_a_new_cluster_takes_the_levels_that_all_brokers_support():
    async with told_cluster(1) as cluster:
        old = BrokerEntry(BrokerId(39), {"PLAINTEXT": Endpoint("told", 1)}, None, -1)
        await Registry(cluster.session(), BrokerId(39)).register(old, 1)
        await cluster.start(1)
        found = await WatchedNodes(cluster.session()).features()
        assert (found.levels["transaction.version"], found.levels["group.version"]) == (0, 0)
