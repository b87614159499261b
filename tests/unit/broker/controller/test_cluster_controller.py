"""The controller of a cluster: takes over, answers requests, and is fenced."""

import asyncio

import pytest

from headrace.coordination import paths
from headrace.coordination.tree import ANY_VERSION
from headrace.core.topics import NewTopic
from headrace.model.errors import ErrorCode, Rejected
from headrace.model.ids import TopicPartition
from headrace.wire import messages as m
from tests.fakes.standin import in_loop
from tests.fakes.told_brokers import (
    make_topic,
    proposal,
    state_in_tree,
    told_cluster,
    until,
)
from tests.fakes.trees import dump

T0 = TopicPartition("t", 0)


@in_loop
async def test_a_created_topic_is_known_to_every_live_broker_when_the_request_is_answered():
    async with told_cluster() as cluster:
        controller = await cluster.start()
        await make_topic(controller)
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
        await make_topic(controller)
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
        await make_topic(controller)
        epoch = cluster.entries[1].broker_epoch
        (state,) = await controller.alter_isr(1, epoch, [proposal(controller, "t", (1, 2))])
        assert (state.isr, state.partition_epoch, state.leader_epoch) == ((1, 2), 1, 0)
        assert await state_in_tree(cluster) == (1, 0, (1, 2))
        await until(lambda: cluster.brokers[3].topics["t"][0].isr == [1, 2])
        assert cluster.brokers[1].count(m.LeaderAndIsrRequest) == 1


# --- the end of a term


@in_loop
async def test_an_old_controller_that_wakes_up_writes_nothing_and_is_told():
    async with told_cluster() as cluster:
        old = await cluster.start(1)
        await make_topic(old)
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
        await make_topic(old, (1, 2))
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
        await make_topic(controller)
        cluster.tree.expire(cluster.controller_session.session_id)
        with pytest.raises(Rejected) as refused:
            await controller.create_partitions("t", 2, timeout_s=1)
        assert refused.value.code == ErrorCode.NOT_CONTROLLER
        assert cluster.fenced == [controller]


@in_loop
async def test_a_new_term_sends_everything_with_stored_epochs_and_rewrites_nothing():
    async with told_cluster() as cluster:
        first = await cluster.start(1)
        await make_topic(first, (1, 2, 3), (1, 2, 3))
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
