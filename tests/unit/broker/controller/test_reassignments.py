"""The nodes and the requests of a reassignment, step by step, as Kafka 3.9 has them."""

import asyncio
import logging

import pytest

from headrace.coordination import paths, values
from headrace.coordination.tree import ANY_VERSION
from headrace.model.errors import ErrorCode, Rejected
from headrace.model.ids import TopicPartition
from headrace.wire import messages as m
from tests.fakes.standin import in_loop
from tests.fakes.told_brokers import (
    LIMIT_S,
    make_topic,
    proposal,
    told_cluster,
    until,
)

T0 = TopicPartition("t", 0)


async def alter(controller, target, each=T0, **options):
    options.setdefault("may_change_factor", True)
    answers = await controller.reassignments.alter({each: target}, **options)
    return answers[each]


async def join(cluster, controller, isr):
    """The leader reports that replicas have caught up."""
    leader = controller.metadata.topics["t"].partitions[0].leader
    (answer,) = await controller.alter_isr(
        leader, cluster.entries[leader].broker_epoch, [proposal(controller, "t", isr)]
    )
    assert not isinstance(answer, Rejected), answer


async def stored(cluster):
    session = cluster.session()
    topic = values.decode_topic("t", (await session.get(paths.topic("t"))).value)
    state = values.decode_state("t", 0, (await session.get(paths.state("t", 0))).value)
    await session.close()
    return topic, state


async def gone(session):
    """Wait until the request in the tree is deleted."""
    async with asyncio.timeout(LIMIT_S):
        while await session.get(paths.REASSIGN_PARTITIONS) is not None:
            pass


async def settled(controller):
    await until(lambda: not controller.reassignments.in_progress)
    assert await controller.term.channels.acknowledged(5)


@in_loop
async def test_a_partition_moves_in_kafkas_steps():
    async with told_cluster() as cluster:
        controller = await cluster.start(1)
        await make_topic(controller, (1, 2))
        assert await alter(controller, [3, 2]) is None
        topic, state = await stored(cluster)
        assert (topic.replicas, topic.adding, topic.removing) == ([(3, 2, 1)], {0: (3,)}, {0: (1,)})
        assert state == (1, 1, (1, 2))
        assert await controller.term.channels.acknowledged(5)
        for broker_id in (1, 2, 3):
            role = cluster.brokers[broker_id].roles[T0]
            assert (role.leader, role.leader_epoch, role.replicas) == (1, 1, [3, 2, 1])
            assert (role.adding_replicas, role.removing_replicas) == ([3], [1])
            assert cluster.brokers[broker_id].topics["t"][0].replicas == [3, 2, 1]
        assert cluster.brokers[3].new == [T0]
        (shown,) = controller.reassignments.in_progress
        assert (shown.replicas, shown.adding, shown.removing) == ((3, 2, 1), (3,), (1,))

        await join(cluster, controller, (1, 2, 3))
        await settled(controller)
        topic, state = await stored(cluster)
        assert (topic.replicas, topic.adding, topic.removing) == ([(3, 2)], {}, {})
        assert (state.leader, state.leader_epoch, set(state.isr)) == (3, 2, {2, 3})
        for broker_id in (2, 3):
            role = cluster.brokers[broker_id].roles[T0]
            assert (role.leader, role.leader_epoch, role.replicas) == (3, 2, [3, 2])
            assert (role.adding_replicas, role.removing_replicas) == ([], [])
        removed = cluster.brokers[1]
        assert removed.deleted == [T0]
        assert removed.topics["t"][0].replicas == [3, 2]
        told = [each for each in removed.requests if isinstance(each, m.LeaderAndIsrRequest)]
        last = told[-1].topic_states[0].partition_states[0]
        assert last.leader_epoch == 1, "the removed leader learns it from StopReplica only"


@in_loop
async def test_replicas_are_removed_at_once_if_the_others_are_in_sync():
    async with told_cluster() as cluster:
        controller = await cluster.start(1)
        await make_topic(controller, (1, 2, 3))
        assert await alter(controller, [2]) is None
        await settled(controller)
        topic, state = await stored(cluster)
        assert topic.replicas == [(2,)] and (state.leader, state.isr) == (2, (2,))
        assert [cluster.brokers[each].deleted for each in (1, 2, 3)] == [[T0], [], [T0]]


@in_loop
async def test_another_order_only_changes_the_preferred_leader():
    async with told_cluster() as cluster:
        controller = await cluster.start(1)
        await make_topic(controller, (1, 2))
        assert await alter(controller, [2, 1]) is None
        await settled(controller)
        topic, state = await stored(cluster)
        assert topic.replicas == [(2, 1)] and (state.leader, state.isr) == (1, (1, 2))
        assert await controller.elect_leaders([T0], unclean=False) == [None]
        assert (await stored(cluster))[1].leader == 2
        before = await stored(cluster)
        assert await alter(controller, [2, 1]) is None
        assert await stored(cluster) == before, "the same again changes nothing"


@in_loop
async def test_a_cancelled_move_leaves_the_old_replicas():
    async with told_cluster(1, 2, 3, 4) as cluster:
        controller = await cluster.start(1)
        await make_topic(controller, (1, 2))
        await alter(controller, [3, 4])
        await join(cluster, controller, (1, 2, 3))
        assert (await alter(controller, None)) is None
        await settled(controller)
        topic, state = await stored(cluster)
        assert (topic.replicas, topic.adding, topic.removing) == ([(1, 2)], {}, {})
        assert (state.leader, state.isr) == (1, (1, 2))
        assert [cluster.brokers[each].deleted for each in (1, 2, 3, 4)] == [[], [], [T0], [T0]]
        assert (await alter(controller, None)).code == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS


@in_loop
async def test_a_cancelled_move_takes_leadership_from_the_new_replica():
    async with told_cluster(1, 2, 3, 4) as cluster:
        controller = await cluster.start(4)
        await make_topic(controller, (1, 2))
        await alter(controller, [3, 4, 2])
        await join(cluster, controller, (1, 2, 3))
        await controller.elect_leaders([T0], unclean=False)
        assert (await stored(cluster))[1].leader == 3
        assert await alter(controller, None) is None
        topic, state = await stored(cluster)
        assert topic.replicas == [(2, 1)]
        assert (state.leader, state.isr) == (2, (1, 2))


@in_loop
async def test_a_second_move_of_a_partition_replaces_the_first():
    async with told_cluster(1, 2, 3, 4) as cluster:
        controller = await cluster.start(1)
        await make_topic(controller, (1, 2))
        await alter(controller, [3, 2])
        await join(cluster, controller, (1, 2))
        assert await alter(controller, [4, 2]) is None
        assert await controller.term.channels.acknowledged(5)
        topic, _ = await stored(cluster)
        assert (topic.replicas, topic.adding, topic.removing) == ([(4, 2, 1)], {0: (4,)}, {0: (1,)})
        assert cluster.brokers[3].deleted == [T0] and T0 not in cluster.brokers[3].roles
        await join(cluster, controller, (1, 2, 4))
        await settled(controller)
        assert (await stored(cluster))[0].replicas == [(4, 2)]


@in_loop
async def test_each_partition_of_a_request_has_its_own_answer():
    async with told_cluster() as cluster:
        controller = await cluster.start(1)
        await make_topic(controller, (1, 2), (2, 1))
        answers = await controller.reassignments.alter(
            {T0: [3], TopicPartition("t", 1): [9], TopicPartition("no", 0): [3]},
            may_change_factor=True,
        )
        codes = [None if each is None else each.code for each in answers.values()]
        assert codes == [
            None,
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ]
        assert [each.topic_partition for each in controller.reassignments.in_progress] == [T0]


@in_loop
async def test_a_target_that_is_not_alive_does_not_end_the_move_until_it_returns():
    async with told_cluster() as cluster:
        controller = await cluster.start(1)
        await make_topic(controller, (1, 2))
        await alter(controller, [3])
        cluster.crash(3)
        await until(lambda: 3 not in controller.metadata.brokers)
        assert len(controller.reassignments.in_progress) == 1
        cluster.brokers[3].roles.clear()
        await cluster.register(3)
        await until(lambda: T0 in cluster.brokers[3].roles)
        await join(cluster, controller, (1, 2, 3))
        await settled(controller)
        assert (await stored(cluster))[0].replicas == [(3,)]


@in_loop
async def test_a_source_may_die_during_the_move():
    async with told_cluster() as cluster:
        controller = await cluster.start(2)
        await make_topic(controller, (1, 2))
        await alter(controller, [3, 2])
        cluster.crash(1)
        await until(lambda: (controller.metadata.partition(*T0)).leader == 2)
        await join(cluster, controller, (2, 3))
        await settled(controller)
        topic, state = await stored(cluster)
        assert topic.replicas == [(3, 2)] and state.leader == 2


@in_loop
async def test_a_topic_is_deleted_while_it_is_reassigned():
    async with told_cluster() as cluster:
        controller = await cluster.start(1)
        await make_topic(controller, (1, 2))
        session = cluster.session()
        await session.create(paths.REASSIGN_PARTITIONS, values.encode_reassignment({T0: (3,)}))
        await until(lambda: controller.reassignments.in_progress)
        (answer,) = await controller.delete_topics(["t"], timeout_s=5)
        assert not isinstance(answer, Rejected)
        assert await session.get(paths.topic("t")) is None
        assert controller.reassignments.in_progress == []
        assert all(T0 in cluster.brokers[each].deleted for each in (1, 2, 3))
        await gone(session)


# --- requests in the tree


@in_loop
async def test_a_request_in_the_tree_is_carried_out_and_deleted_in_the_end(caplog):
    async with told_cluster() as cluster:
        controller = await cluster.start(1)
        await make_topic(controller, (1, 2), (1, 2), (1, 2))
        session = cluster.session()
        targets = {
            T0: (3, 2),
            TopicPartition("t", 1): (2,),
            TopicPartition("t", 2): (8,),
            TopicPartition("no", 0): (1,),
        }
        await session.create(paths.REASSIGN_PARTITIONS, values.encode_reassignment(targets))
        await until(lambda: "Broker 8 cannot get a replica" in caplog.text)
        await until(lambda: len(controller.reassignments.in_progress) == 1)
        assert "Ignoring the reassignment of no-0 in /admin/reassign_partitions" in caplog.text
        async with asyncio.timeout(LIMIT_S):
            left = {}
            while left != {T0: (3, 2)}:
                node = await session.get(paths.REASSIGN_PARTITIONS)
                left = values.decode_reassignment(node.value)
        await join(cluster, controller, (1, 2, 3))
        await settled(controller)
        assert (await stored(cluster))[0].replicas == [(3, 2), (2,), (1, 2)]
        await gone(session)
        # The next request is noticed as well.
        await session.create(paths.REASSIGN_PARTITIONS, values.encode_reassignment({T0: (2, 3)}))
        await until(lambda: controller.metadata.partition(*T0).replicas == (2, 3))


@in_loop
async def test_a_request_by_api_replaces_one_in_the_tree():
    async with told_cluster() as cluster:
        controller = await cluster.start(1)
        await make_topic(controller, (1, 2))
        session = cluster.session()
        await session.create(paths.REASSIGN_PARTITIONS, values.encode_reassignment({T0: (3, 2)}))
        await until(lambda: controller.reassignments.in_progress)
        assert await alter(controller, None) is None
        await gone(session)
        assert (await stored(cluster))[0].replicas == [(2, 1)]


@in_loop
async def test_an_unreadable_request_in_the_tree_breaks_nothing(caplog):
    async with told_cluster() as cluster:
        controller = await cluster.start(1)
        await make_topic(controller, (1, 2))
        session = cluster.session()
        await session.create(paths.REASSIGN_PARTITIONS, b'{"partitions":[{"topic":"t"}]}')
        await until(lambda: "Correct or delete that node" in caplog.text)
        value = values.encode_reassignment({T0: (2,)})
        await session.set(paths.REASSIGN_PARTITIONS, value, ANY_VERSION)
        await until(lambda: controller.metadata.partition(*T0).replicas == (2,))


@pytest.mark.parametrize("dies", ["before it joins", "after it joined"])
@in_loop
async def test_the_next_controller_goes_on(dies, caplog):
    caplog.set_level(logging.INFO)
    async with told_cluster() as cluster:
        controller = await cluster.start(1)
        await make_topic(controller, (1, 2))
        session = cluster.session()
        await session.create(paths.REASSIGN_PARTITIONS, values.encode_reassignment({T0: (3, 2)}))
        await until(lambda: controller.reassignments.in_progress)
        if dies == "after it joined":
            state = controller.metadata.partition(*T0)._replace(isr=(1, 2, 3))
            await cluster.kill_controller()
            await session.set(paths.state("t", 0), values.encode_state(state, 1), ANY_VERSION)
            controller = await cluster.start(2)
        else:
            await cluster.kill_controller()
            controller = await cluster.start(2)
            await join(cluster, controller, (1, 2, 3))
        await settled(controller)
        assert (await stored(cluster))[0].replicas == [(3, 2)]
        assert T0 in cluster.brokers[1].deleted
        await gone(session)
