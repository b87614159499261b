"""The controller of a cluster: takes over, follows brokers and the tree, and is fenced."""

from headrace.coordination import paths, values
from headrace.core.controller import CreateTopic
from headrace.core.topics import NewTopic
from headrace.model.ids import TopicPartition
from headrace.wire import messages as m
from tests.fakes.standin import in_loop
from tests.fakes.told_brokers import proposal, told_cluster, until

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
