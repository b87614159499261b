"""A controller that dies between any two writes: the next term finishes what it began."""

import asyncio
from collections.abc import Sequence

import pytest

from headrace.coordination import paths, term_store, values
from headrace.coordination.memory import Delivery, Faults
from headrace.coordination.tree import Create, Operation
from headrace.core.topics import NewTopic
from headrace.model.errors import Rejected
from headrace.model.ids import TopicPartition
from tests.fakes.standin import in_loop
from tests.fakes.told_brokers import proposal, told_cluster, until

REPLICAS = [(0, (1, 2, 3)), (1, (2, 3, 1)), (2, (3, 1, 2))]


class DiesAt(Faults):
    """The session ends at a write, which happens before that or does not."""

    def __init__(self, number: int, delivery: Delivery) -> None:
        self.left = number
        self.delivery = delivery
        self.end = lambda: None

    def write(self, operations: Sequence[Operation]) -> Delivery:
        self.left -= 1
        if self.left:
            return Delivery.ANSWERED
        asyncio.get_running_loop().call_soon(self.end)
        return self.delivery


async def create(cluster, controller):
    await controller.create_topics([NewTopic("new", assignments=REPLICAS)], timeout_s=5)


async def grow(cluster, controller):
    await controller.create_partitions("t", 5, timeout_s=5)


async def delete(cluster, controller):
    await controller.delete_topics(["t"], timeout_s=5)


async def lose_a_broker(cluster, controller):
    cluster.crash(3)
    await until(lambda: 3 not in controller.metadata.brokers or controller.has_ended)


async def restart_a_broker(cluster, controller):
    cluster.crash(3)
    await cluster.register(3)
    epoch = cluster.entries[3].broker_epoch
    await until(
        lambda: controller.metadata.brokers[3].broker_epoch == epoch or controller.has_ended
    )


async def shut_a_broker_down(cluster, controller):
    await controller.shut_down(3, cluster.entries[3].broker_epoch)


async def change_an_isr(cluster, controller):
    epoch = cluster.entries[1].broker_epoch
    await controller.alter_isr(1, epoch, [proposal(controller, "t", (1, 2))])


async def lose_a_disk(cluster, controller):
    cluster.brokers[1].offline.add(TopicPartition("t", 0))
    session = cluster.session()
    value = values.encode_log_dir_event(1)
    await session.create(paths.LOG_DIR_EVENT_PREFIX, value, sequential=True)
    await until(lambda: controller.has_ended or controller.metadata.partition("t", 0).leader == 2)


async def write_requests(cluster, controller):
    """As other programs do."""
    session = cluster.session()
    auto = values.encode_topic(controller.metadata.topics["t"])
    await session.multi(
        [
            Create(paths.delete_topic("t")),
            Create(paths.delete_topic("never-existed")),
            Create(paths.topic("auto"), auto.replace(b'"topic_id":"', b'"x":"')),
            Create(paths.PREFERRED_REPLICA_ELECTION, values.encode_partitions([("u", 0)])),
        ]
    )
    await until(
        lambda: (
            controller.has_ended
            or (
                "t" not in controller.controller.pending_deletion
                and "auto" in controller.metadata.topics
            )
        )
    )


STORIES = (
    create,
    grow,
    delete,
    lose_a_broker,
    restart_a_broker,
    shut_a_broker_down,
    change_an_isr,
    lose_a_disk,
    write_requests,
)


@pytest.mark.parametrize("delivery", [Delivery.REQUEST_LOST, Delivery.ANSWER_LOST])
@pytest.mark.parametrize("story", STORIES)
@in_loop
async def test_the_next_term_finishes_what_a_dead_controller_began(story, delivery, monkeypatch):
    monkeypatch.setattr(term_store, "OPERATIONS_PER_WRITE_MAX", 1)
    number = 0
    while await dies_at(story, number := number + 1, delivery):
        pass
    assert number > 1, "the controller wrote and survived to the end"


async def dies_at(story, number, delivery) -> bool:
    """Whether the controller died; the cluster is whole in any case."""
    async with told_cluster() as cluster:
        first = await cluster.start()
        for topic in ("t", "u"):
            await first.create_topics([NewTopic(topic, assignments=REPLICAS)], timeout_s=5)
        await cluster.kill_controller()
        faults = DiesAt(0, delivery)
        second = await cluster.elect(2, faults)
        session = cluster.controller_session
        faults.end = lambda: cluster.tree.expire(session.session_id)
        faults.left = number
        before = await states_of(cluster)
        await second.start()
        try:
            if not second.has_ended:
                await story(cluster, second)
        except Rejected:
            assert second.has_ended
        if not second.has_ended:
            await until(lambda: idle(second) or second.has_ended)
        died = second.has_ended
        if died:
            assert cluster.fenced == [second]
        await second.stop()
        cluster.tree.expire(session.session_id)
        third = await cluster.start(1)
        await check_whole(cluster, third, before)
        return died


def idle(controller):
    return not controller.controller.pending_deletion


async def states_of(cluster):
    """Leader epoch and partition epoch of every partition, by its topic's id."""
    session = cluster.session()
    found = {}
    for name in await session.children(paths.BROKER_TOPICS):
        node = await session.get(paths.topic(name))
        topic = values.decode_topic(name, node.value)
        for partition, replicas in enumerate(topic.replicas):
            state = await session.get(paths.state(name, partition))
            assert state is not None, f"{name}-{partition} has a state"
            decoded = values.decode_state(name, partition, state.value)
            found[topic.topic_id, partition] = (name, replicas, decoded, state.zk_version)
    await session.close()
    return found


async def check_whole(cluster, controller, before):
    await until(lambda: not controller.controller.pending_deletion)
    await until(lambda: all(state.partition_epoch >= 0 for state in controller.controller.states()))
    assert await controller.term.channels.acknowledged(5)
    session = cluster.session()
    assert await session.children(paths.DELETE_TOPICS) == []
    stored = await states_of(cluster)
    live = await session.children(paths.BROKER_IDS)
    brokers = [cluster.brokers[int(broker)] for broker in live]
    for broker in brokers:
        known = {name for name, *_ in stored.values()}
        assert broker.topics.keys() == known
    for (topic_id, partition), (name, replicas, state, version) in stored.items():
        assert state.leader in state.isr and str(state.leader) in live
        assert set(state.isr) <= set(replicas)
        if (topic_id, partition) in before:
            _, _, earlier, _ = before[topic_id, partition]
            assert state.leader_epoch >= earlier.leader_epoch
            assert state.leader in earlier.isr, "no election was unclean"
        for broker in brokers:
            told = broker.topics[name][partition]
            assert (told.leader, told.leader_epoch, tuple(told.isr)) == state
            assert told.zk_version == version
            each = TopicPartition(name, partition)
            if broker.broker_id in replicas and each not in broker.offline:
                assert broker.roles[each].leader_epoch == state.leader_epoch, (name, partition)
