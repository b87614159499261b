"""The controller of a cluster: takes over, follows brokers and the tree, and is fenced."""

import asyncio

import pytest

from headrace.coordination import paths, values
from headrace.coordination.registry import Registry
from headrace.coordination.tree import ANY_VERSION
from headrace.coordination.watched import WatchedNodes
from headrace.core.controller import CreateTopic
from headrace.core.topics import NewTopic
from headrace.model.cluster_metadata import BrokerEntry, Endpoint
from headrace.model.errors import ErrorCode, Rejected
from headrace.model.ids import BrokerId, TopicPartition
from headrace.wire import messages as m
from tests.fakes.standin import in_loop
from tests.fakes.told_brokers import proposal, told_cluster, until
from tests.fakes.trees import dump

T0 = TopicPartition("t", 0)


async def make(controller, name="t", replicas=(1, 2, 3), count=1):
    assignments = [(partition, replicas) for partition in range(count)]
    wanted = NewTopic(name, assignments=assignments)
    (answer,) = await controller.create_topics([wanted], timeout_s=5)
    assert isinstance(answer, CreateTopic), answer
    return answer.topic


async def state_in_tree(cluster, topic="t", partition=0):
    session = cluster.session()
    node = await session.get(paths.state(topic, partition))
    await session.close()
    return values.decode_state(topic, partition, node.value)


@in_loop
async def test_a_created_topic_is_known_to_every_live_broker_when_the_request_is_answered():
    async with told_cluster() as cluster:
        controller = await cluster.start()
        await make(controller)
        for broker in cluster.brokers.values():
            assert broker.roles[T0].leader == 1
            assert broker.new == [T0]
            assert broker.leader_of("t") == 1
            assert broker.live_brokers == [1, 2, 3]
            kinds = [type(each) for each in broker.requests]
            assert kinds == [
                m.UpdateMetadataRequest,
                m.LeaderAndIsrRequest,
                m.UpdateMetadataRequest,
            ]
        assert await state_in_tree(cluster) == (1, 0, (1, 2, 3))


@in_loop
async def test_the_death_of_a_leader_elects_the_next_in_sync_and_tells_the_others():
    async with told_cluster() as cluster:
        controller = await cluster.start(2)
        await make(controller)
        cluster.crash(1)
        await until(lambda: cluster.brokers[3].leader_of("t") == 2)
        assert await state_in_tree(cluster) == (2, 1, (2, 3))
        assert cluster.brokers[2].roles[T0].leader_epoch == 1
        assert cluster.brokers[3].topics["t"][0].offline_replicas == [1]
        await cluster.register(1)
        await until(
            lambda: T0 in cluster.brokers[1].roles and cluster.brokers[1].roles[T0].leader == 2
        )
        assert cluster.brokers[1].roles[T0].isr == [2, 3]
        await until(lambda: cluster.brokers[3].topics["t"][0].offline_replicas == [])


@in_loop
async def test_a_leader_changes_its_isr_and_all_brokers_hear_of_it():
    async with told_cluster() as cluster:
        controller = await cluster.start()
        await make(controller)
        epoch = cluster.entries[1].broker_epoch
        (state,) = await controller.alter_isr(1, epoch, [proposal(controller, "t", (1, 2))])
        assert (state.isr, state.partition_epoch, state.leader_epoch) == ((1, 2), 1, 0)
        assert await state_in_tree(cluster) == (1, 0, (1, 2))
        await until(lambda: cluster.brokers[3].topics["t"][0].isr == [1, 2])
        assert cluster.brokers[1].count(m.LeaderAndIsrRequest) == 1


# --- brokers


@in_loop
async def test_a_newcomer_gets_all_metadata_then_its_roles_with_epochs_unchanged():
    async with told_cluster(1, 2, 3) as cluster:
        controller = await cluster.start(1)
        await make(controller)
        cluster.crash(3)
        await until(lambda: cluster.brokers[1].topics["t"][0].isr == [1, 2])
        cluster.brokers[3].requests.clear()
        await cluster.register(3)
        await until(lambda: len(cluster.brokers[3].requests) == 3)
        first, roles, second = cluster.brokers[3].requests
        assert isinstance(first, m.UpdateMetadataRequest)
        assert [topic.topic_name for topic in first.topic_states] == ["t"]
        (state,) = roles.topic_states[0].partition_states
        assert (state.is_new, state.leader_epoch, state.isr) == (False, 1, [1, 2])
        assert isinstance(second, m.UpdateMetadataRequest)
        epochs = {each.broker_epoch for each in cluster.brokers[3].requests}
        assert epochs == {cluster.entries[3].broker_epoch}
        await until(lambda: cluster.brokers[1].live_brokers == [1, 2, 3])


@in_loop
async def test_a_quick_restart_is_a_departure_and_an_arrival():
    async with told_cluster() as cluster:
        controller = await cluster.start(2)
        await make(controller)
        cluster.crash(1)
        await cluster.register(1)
        await until(lambda: cluster.brokers[1].leader_of("t") == 2)
        assert await state_in_tree(cluster) == (2, 1, (2, 3))


@in_loop
async def test_the_death_of_all_replicas_keeps_the_isr_and_the_first_to_return_leads():
    async with told_cluster(1, 2, 3) as cluster:
        controller = await cluster.start(3)
        await make(controller, replicas=(1, 2))
        cluster.crash(1)
        await until(lambda: cluster.brokers[3].leader_of("t") == 2)
        cluster.crash(2)
        await until(lambda: cluster.brokers[3].leader_of("t") == -1)
        assert await state_in_tree(cluster) == (-1, 2, (2,))
        await cluster.register(1)
        await until(lambda: cluster.brokers[3].live_brokers == [1, 3])
        assert await state_in_tree(cluster) == (-1, 2, (2,)), "broker 1 was out of sync"
        await cluster.register(2)
        await until(lambda: cluster.brokers[3].leader_of("t") == 2)
        assert await state_in_tree(cluster) == (2, 3, (2,))


@in_loop
async def test_requests_to_a_broker_that_does_not_answer_wait_and_are_merged():
    async with told_cluster() as cluster:
        controller = await cluster.start(1)
        await make(controller, "a")
        cluster.brokers[3].reachable = False
        epoch = cluster.entries[1].broker_epoch
        for isr in ((1, 2), (1, 2, 3), (1, 3)):
            await controller.alter_isr(1, epoch, [proposal(controller, "a", isr)])
        await until(lambda: cluster.brokers[2].topics["a"][0].isr == [1, 3])
        before = len(cluster.brokers[3].requests)
        cluster.brokers[3].reachable = True
        await until(lambda: cluster.brokers[3].topics["a"][0].isr == [1, 3])
        assert len(cluster.brokers[3].requests) - before <= 2


@in_loop
async def test_a_paused_broker_does_not_hold_up_changes_of_isrs():
    async with told_cluster() as cluster:
        controller = await cluster.start(1)
        await make(controller)
        cluster.brokers[3].answers = False
        creation = asyncio.ensure_future(make(controller, "slow", (1, 2, 3), count=3))
        await until(lambda: cluster.brokers[2].leader_of("slow") is not None)
        assert not creation.done()
        epoch = cluster.entries[1].broker_epoch
        (state,) = await controller.alter_isr(1, epoch, [proposal(controller, "t", (1, 2))])
        assert state.isr == (1, 2)
        cluster.crash(3)
        assert (await creation).name == "slow"


@in_loop
async def test_a_broker_that_changes_its_address_without_leaving_is_announced():
    async with told_cluster() as cluster:
        await cluster.start(1)
        await until(lambda: cluster.brokers[2].live_brokers == [1, 2, 3])
        session = cluster.sessions[3]
        moved = cluster.entries[3]._replace(endpoints={"PLAINTEXT": Endpoint("moved", 3)})
        await session.set(paths.broker(3), values.encode_broker(moved, 1), ANY_VERSION)
        await until(
            lambda: (
                [each.endpoints[0].host for each in last_update(cluster, 2).live_brokers][2]
                == "moved"
            )
        )


def last_update(cluster, broker_id):
    return [
        each
        for each in cluster.brokers[broker_id].requests
        if isinstance(each, m.UpdateMetadataRequest)
    ][-1]


@in_loop
async def test_a_registration_that_cannot_be_read_is_ignored(caplog):
    async with told_cluster(1, 2) as cluster:
        session = cluster.session()
        await session.create(paths.broker(9), b"{", ephemeral=True)
        controller = await cluster.start(1)
        assert list(controller.metadata.brokers) == [1, 2]
        assert "Ignoring the registration of broker 9" in caplog.text


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
        await make(controller)
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


# --- the end of a term


@in_loop
async def test_an_old_controller_that_wakes_up_writes_nothing_and_is_told():
    async with told_cluster() as cluster:
        old = await cluster.start(1)
        await make(old)
        session = cluster.session()
        await session.delete(paths.CONTROLLER, ANY_VERSION)
        await cluster.start(2)
        before = await dump(session)
        epoch = cluster.entries[1].broker_epoch
        for attempt in (
            lambda: old.alter_isr(1, epoch, [proposal(old, "t", (1, 2))]),
            lambda: old.shut_down(2, cluster.entries[2].broker_epoch),
            lambda: old.create_partitions("t", 2, timeout_s=1),
            lambda: old.delete_topics(["t"], timeout_s=1),
            lambda: old.create_topics([NewTopic("u", 1, 1)], timeout_s=1),
        ):
            with pytest.raises(Rejected) as refused:
                await attempt()
            assert refused.value.code == ErrorCode.NOT_CONTROLLER
        assert await dump(session) == before
        assert cluster.fenced == [old]
        assert old.has_ended


@in_loop
async def test_brokers_refuse_what_an_old_controller_still_sends(caplog):
    async with told_cluster(1, 2) as cluster:
        old = await cluster.start(1)
        await make(old, replicas=(1, 2))
        await cluster.session().delete(paths.CONTROLLER, ANY_VERSION)
        await cluster.start(2)
        await until(lambda: cluster.brokers[1].controller_epoch == 2)
        state = old.metadata.topics["t"].partitions[0]
        old.term.tell([state._replace(leader=2, leader_epoch=9)])
        await until(lambda: "refused LeaderAndIsrRequest of controller epoch 1" in caplog.text)
        assert cluster.brokers[1].roles[T0].leader == 1


@in_loop
async def test_the_end_of_the_session_ends_the_term():
    async with told_cluster() as cluster:
        controller = await cluster.start(1)
        await make(controller)
        cluster.tree.expire(cluster.controller_session.session_id)
        with pytest.raises(Rejected) as refused:
            await controller.create_partitions("t", 2, timeout_s=1)
        assert refused.value.code == ErrorCode.NOT_CONTROLLER
        assert cluster.fenced == [controller]


@in_loop
async def test_a_new_term_sends_everything_with_stored_epochs_and_rewrites_nothing():
    async with told_cluster() as cluster:
        first = await cluster.start(1)
        await make(first, count=2)
        await cluster.kill_controller()
        before = await dump(cluster.session(), paths.BROKER_TOPICS)
        for broker in cluster.brokers.values():
            broker.requests.clear()
        second = await cluster.start(2)
        assert await second.term.channels.acknowledged(5)
        assert await dump(cluster.session(), paths.BROKER_TOPICS) == before
        for broker in cluster.brokers.values():
            empty, roles, full = broker.requests
            assert empty.topic_states == []
            assert len(roles.topic_states[0].partition_states) == 2
            assert len(full.topic_states[0].partition_states) == 2
            assert broker.controller_id == 2


@in_loop
async def test_a_stopped_term_sends_nothing_more():
    async with told_cluster() as cluster:
        controller = await cluster.start(1)
        await controller.stop()
        counts = [len(broker.requests) for broker in cluster.brokers.values()]
        cluster.crash(3)
        await asyncio.sleep(0.01)
        assert [len(broker.requests) for broker in cluster.brokers.values()] == counts
        assert cluster.fenced == []
