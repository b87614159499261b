"""Topics are deleted on every replica, also on brokers that return later, then from the tree."""

import pytest

from headrace.coordination import paths, values
from headrace.core.topics import NewTopic
from headrace.model.cluster_metadata import TopicState
from headrace.model.errors import ErrorCode
from headrace.model.ids import TopicPartition
from headrace.wire import messages as m
from tests.fakes.standin import in_loop
from tests.fakes.told_brokers import told_cluster, until

T0 = TopicPartition("t", 0)
REPLICAS = [(0, (1, 2, 3))]


async def nodes_of(cluster, topic="t"):
    session = cluster.session()
    found = [
        path
        for path in (
            paths.topic(topic),
            paths.config("topics", topic),
            paths.delete_topic(topic),
        )
        if await session.get(path) is not None
    ]
    await session.close()
    return found


@in_loop
async def test_a_deleted_topic_leaves_nothing_and_its_name_is_free():
    async with told_cluster() as cluster:
        controller = await cluster.start(1)
        await controller.create_topics([NewTopic("t", assignments=REPLICAS)], timeout_s=5)
        (answer,) = await controller.delete_topics(["t"], timeout_s=5)
        assert isinstance(answer, TopicState)
        assert await nodes_of(cluster) == []
        for broker in cluster.brokers.values():
            assert broker.deleted == [T0]
            assert "t" not in broker.topics
            stops = [each for each in broker.requests if isinstance(each, m.StopReplicaRequest)]
            states = [each.topic_states[0].partition_states[0] for each in stops]
            assert [(s.leader_epoch, s.delete_partition) for s in states] == [
                (-2, False),
                (-2, True),
            ]
        (again,) = await controller.create_topics(
            [NewTopic("t", assignments=REPLICAS)], timeout_s=5
        )
        assert again.topic.topic_id != answer.topic_id
        assert cluster.brokers[2].leader_of("t") == 1


@in_loop
async def test_a_deletion_waits_for_a_dead_replica_and_goes_on_when_it_returns(caplog):
    async with told_cluster() as cluster:
        controller = await cluster.start(1)
        await controller.create_topics([NewTopic("t", assignments=REPLICAS)], timeout_s=5)
        cluster.crash(3)
        await until(lambda: 3 not in controller.metadata.brokers)
        (answer,) = await controller.delete_topics(["t"], timeout_s=5)
        assert isinstance(answer, TopicState)
        assert "will be completely deleted when these brokers are back: 3" in caplog.text
        assert cluster.brokers[2].deleted == [T0]
        assert await nodes_of(cluster) != []
        (refused,) = await controller.create_topics([NewTopic("t", 1, 1)], timeout_s=5)
        assert refused.code == ErrorCode.TOPIC_ALREADY_EXISTS
        # The next term does not forget it.
        await cluster.kill_controller()
        controller = await cluster.start(2)
        await cluster.register(3)
        await until(lambda: cluster.brokers[3].deleted == [T0])
        await until(lambda: not controller.controller.pending_deletion)
        assert await nodes_of(cluster) == []


@in_loop
async def test_a_replica_on_a_failed_disk_holds_the_deletion_until_its_broker_restarts(caplog):
    async with told_cluster() as cluster:
        controller = await cluster.start(1)
        await controller.create_topics([NewTopic("t", assignments=REPLICAS)], timeout_s=5)
        cluster.brokers[2].offline.add(T0)
        await controller.delete_topics(["t"], timeout_s=5)
        assert "Broker 2 could not delete t-0" in caplog.text
        assert await nodes_of(cluster) != []
        cluster.brokers[2].offline.clear()
        cluster.crash(2)
        await cluster.register(2)
        await until(lambda: not controller.controller.pending_deletion)
        assert await nodes_of(cluster) == []


@in_loop
async def test_a_tool_requests_a_deletion_and_one_of_no_topic_is_dropped():
    async with told_cluster() as cluster:
        controller = await cluster.start(1)
        await controller.create_topics([NewTopic("t", assignments=REPLICAS)], timeout_s=5)
        session = cluster.session()
        await session.create(paths.delete_topic("ghost"))
        await session.create(paths.delete_topic("t"))
        await until(lambda: cluster.brokers[3].deleted == [T0])
        await until(lambda: not controller.controller.pending_deletion)
        assert await session.children(paths.DELETE_TOPICS) == []


@in_loop
async def test_disabled_deletion_removes_the_request_with_a_warning(caplog):
    async with told_cluster(settings={"delete.topic.enable": "false"}) as cluster:
        controller = await cluster.start(1)
        await controller.create_topics([NewTopic("t", assignments=REPLICAS)], timeout_s=5)
        (answer,) = await controller.delete_topics(["t"], timeout_s=5)
        assert answer.code == ErrorCode.TOPIC_DELETION_DISABLED
        session = cluster.session()
        await session.create(paths.delete_topic("t"))
        await until(lambda: "Ignoring the request to delete topic t" in caplog.text)
        assert "t" in controller.metadata.topics
        assert await session.children(paths.DELETE_TOPICS) == []


@pytest.mark.parametrize("added", [1, 2])
@in_loop
async def test_partitions_that_a_tool_added_meanwhile_are_deleted_too(added):
    async with told_cluster() as cluster:
        controller = await cluster.start(1)
        await controller.create_topics([NewTopic("t", assignments=REPLICAS)], timeout_s=5)
        session = cluster.session()
        for number in range(1, added + 1):
            await session.create(paths.partition("t", number))
            state = values.encode_state(controller.metadata.topics["t"].partitions[0], 1)
            await session.create(paths.state("t", number), state)
        await controller.delete_topics(["t"], timeout_s=5)
        assert await nodes_of(cluster) == []
