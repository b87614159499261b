"""A controller that dies between any two writes of a reassignment: the next term goes on with it.

The stories are told by fake brokers. Whoever leads lets all replicas join the ISR, as real leaders
do, so every move that was begun must end.
"""

import asyncio

import pytest

from headrace.coordination import paths, term_store, values
from headrace.coordination.memory import Delivery
from headrace.core.elections import IsrProposal
from headrace.core.topics import NewTopic
from headrace.model.errors import Rejected
from headrace.model.ids import TopicPartition
from tests.broker.test_controller_crashes import DiesAt, states_of
from tests.fakes.standin import in_loop
from tests.fakes.told_brokers import LIMIT_S, told_cluster, until

MOVED = TopicPartition("t", 0)


async def alter(controller, target):
    await controller.reassignments.alter(
        {MOVED: target, TopicPartition("t", 1): target}, may_change_factor=True
    )


async def join(cluster, controller):
    """The leaders of partitions that are reassigned propose the ISR with all live replicas."""
    for state in controller.reassignments.in_progress:
        live = [each for each in state.replicas if each in controller.metadata.brokers]
        wanted = IsrProposal(
            state.topic_id,
            state.partition,
            state.leader_epoch,
            state.partition_epoch,
            tuple(live),
            {},
        )
        if state.leader in cluster.entries:
            epoch = cluster.entries[state.leader].broker_epoch
            await controller.alter_isr(state.leader, epoch, [wanted])


async def end_all(cluster, controller):
    while controller.reassignments.in_progress and not controller.has_ended:
        before = controller.reassignments.in_progress
        await join(cluster, controller)
        await until(
            lambda b=before: controller.has_ended or controller.reassignments.in_progress != b
        )


async def move(cluster, controller):
    await alter(controller, [3, 2])
    await end_all(cluster, controller)


async def add_replicas(cluster, controller):
    await alter(controller, [1, 2, 3, 4])
    await end_all(cluster, controller)


async def remove_replicas(cluster, controller):
    await alter(controller, [2])
    await end_all(cluster, controller)


async def cancel(cluster, controller):
    await alter(controller, [3, 4])
    await alter(controller, None)


async def cancel_while_a_new_replica_leads(cluster, controller):
    await alter(controller, [3, 4])
    state = controller.metadata.partition(*MOVED)
    epoch = cluster.entries[state.leader].broker_epoch
    isr = (1, 2, 3)
    proposal = IsrProposal(state.topic_id, 0, state.leader_epoch, state.partition_epoch, isr, {})
    await controller.alter_isr(state.leader, epoch, [proposal])
    await controller.elect_leaders([MOVED], unclean=False)
    await alter(controller, None)


async def move_elsewhere(cluster, controller):
    await alter(controller, [3, 2])
    await alter(controller, [4, 1])
    await end_all(cluster, controller)


async def ask_in_the_tree(cluster, controller):
    session = cluster.session()
    value = values.encode_reassignment({MOVED: (3, 4), TopicPartition("t", 1): (2, 1)})
    await session.create(paths.REASSIGN_PARTITIONS, value)
    await until(lambda: controller.has_ended or controller.reassignments.in_progress)
    await end_all(cluster, controller)


async def lose_the_target(cluster, controller):
    await alter(controller, [3, 4])
    cluster.crash(3)
    await until(lambda: controller.has_ended or 3 not in controller.metadata.brokers)
    cluster.brokers[3].roles.clear()
    await cluster.register(3)
    await until(lambda: controller.has_ended or 3 in controller.metadata.brokers)
    await end_all(cluster, controller)


STORIES = {
    move: {(1, 2), (3, 2)},
    add_replicas: {(1, 2), (1, 2, 3, 4)},
    remove_replicas: {(1, 2), (2,)},
    cancel: {(1, 2), (3, 4)},
    cancel_while_a_new_replica_leads: {(1, 2), (3, 4)},
    move_elsewhere: {(1, 2), (3, 2), (4, 1)},
    ask_in_the_tree: {(1, 2), (3, 4), (2, 1)},
    lose_the_target: {(1, 2), (3, 4)},
}


@pytest.mark.parametrize("delivery", [Delivery.REQUEST_LOST, Delivery.ANSWER_LOST])
@pytest.mark.parametrize("story", STORIES)
@in_loop
async def test_the_next_term_goes_on_with_the_moves_of_a_dead_controller(
    story, delivery, monkeypatch
):
    monkeypatch.setattr(term_store, "OPERATIONS_PER_WRITE_MAX", 1)
    number = 0
    while await dies_at(story, number := number + 1, delivery):
        pass
    assert number > 1, "the controller wrote and survived to the end"


async def dies_at(story, number, delivery) -> bool:
    """Whether the controller died; the cluster is whole in any case."""
    async with told_cluster(1, 2, 3, 4) as cluster:
        first = await cluster.start()
        assigned = [(0, (1, 2)), (1, (1, 2))]
        await first.create_topics([NewTopic("t", assignments=assigned)], timeout_s=5)
        await cluster.kill_controller()
        faults = DiesAt(0, delivery)
        second = await cluster.elect(2, faults)
        session = cluster.controller_session
        faults.end = lambda: cluster.tree.expire(session.session_id)
        await second.start()
        faults.left = number
        try:
            await story(cluster, second)
        except Rejected:
            assert second.has_ended
        died = second.has_ended
        await second.stop()
        cluster.tree.expire(session.session_id)
        third = await cluster.start(1)
        await end_all(cluster, third)
        await check_whole(cluster, third, {frozenset(each) for each in STORIES[story]})
        return died


async def check_whole(cluster, controller, allowed):
    session = cluster.session()
    async with asyncio.timeout(LIMIT_S):
        while await session.get(paths.REASSIGN_PARTITIONS) is not None:
            await join(cluster, controller)
    assert await controller.term.channels.acknowledged(5)
    node = await session.get(paths.topic("t"))
    topic = values.decode_topic("t", node.value)
    assert (topic.adding, topic.removing) == ({}, {})
    for (_, partition), (_, replicas, state, version) in (await states_of(cluster)).items():
        assert frozenset(replicas) in allowed
        assert state.leader in state.isr and state.isr, state
        assert set(state.isr) <= set(replicas)
        each = TopicPartition("t", partition)
        for broker in cluster.brokers.values():
            told = broker.topics["t"][partition]
            assert (told.leader, told.leader_epoch, tuple(told.isr)) == state
            assert (tuple(told.replicas), told.zk_version) == (replicas, version)
            if broker.broker_id in replicas:
                role = broker.roles[each]
                assert role.leader_epoch == state.leader_epoch
                assert tuple(role.replicas) == replicas
            elif each in broker.roles:
                # No StopReplica came, but the news does: a newer epoch, without this broker.
                assert broker.roles[each].leader_epoch < told.leader_epoch
