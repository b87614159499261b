"""Brokers join and leave: they are told their roles, and leaders are elected."""

import asyncio

from headrace.coordination import paths, values
from headrace.coordination.tree import ANY_VERSION
from headrace.model.cluster_metadata import Endpoint
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

T0 = TopicPartition("t", 0)


@in_loop
async def test_a_newcomer_gets_all_metadata_then_its_roles_with_epochs_unchanged():
    async with told_cluster(1, 2, 3) as cluster:
        controller = await cluster.start(1)
        await make_topic(controller)
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
        await make_topic(controller)
        cluster.crash(1)
        await cluster.register(1)
        await until(lambda: cluster.brokers[1].leader_of("t") == 2)
        assert await state_in_tree(cluster) == (2, 1, (2, 3))


@in_loop
async def test_the_death_of_all_replicas_keeps_the_isr_and_the_first_to_return_leads():
    async with told_cluster(1, 2, 3) as cluster:
        controller = await cluster.start(3)
        await make_topic(controller, (1, 2))
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
        await make_topic(controller, name="a")
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
        await make_topic(controller)
        cluster.brokers[3].answers = False
        creation = asyncio.ensure_future(make_topic(controller, *[(1, 2, 3)] * 3, name="slow"))
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
