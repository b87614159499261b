"""Topics of a cluster: created by requests and by others, grown, with racks and dead brokers."""

import asyncio

import pytest

from headrace.coordination import paths, term_store, values
from headrace.coordination.tree import ANY_VERSION, Create
from headrace.coordination.watches import Watches
from headrace.core.controller import CreateTopic
from headrace.core.topics import NewTopic
from headrace.model.errors import ErrorCode, Rejected
from headrace.model.ids import TopicPartition, id_to_text
from tests.fakes.standin import in_loop
from tests.fakes.told_brokers import told_cluster, until


def topic_value(replicas, topic_id="peu1MSP5RZO423dfJShKyQ"):
    """As Kafka's brokers and tools write it."""
    partitions = ",".join(f'"{number}":{list(each)}' for number, each in enumerate(replicas))
    own_id = f'"topic_id":"{topic_id}",' if topic_id else ""
    return (
        f'{{"partitions":{{{partitions}}},{own_id}"adding_replicas":{{}},'
        f'"removing_replicas":{{}},"version":3}}'
    ).encode()


@in_loop
async def test_a_topic_that_another_broker_wrote_gets_leaders():
    async with told_cluster() as cluster:
        controller = await cluster.start(1)
        session = cluster.session()
        config = values.encode_config({"unclean.leader.election.enable": "true"})
        await session.create(paths.config("topics", "auto"), config)
        await session.create(paths.topic("auto"), topic_value([(2, 3), (3, 1)]))
        await until(lambda: cluster.brokers[1].topics.get("auto", {}).keys() == {0, 1})
        assert [cluster.brokers[1].leader_of("auto", p) for p in (0, 1)] == [2, 3]
        both = [TopicPartition("auto", 0), TopicPartition("auto", 1)]
        await until(lambda: cluster.brokers[3].new == both)
        topic = controller.metadata.topics["auto"]
        assert id_to_text(topic.topic_id) == "peu1MSP5RZO423dfJShKyQ"


@in_loop
async def test_partitions_that_another_program_added_get_leaders():
    async with told_cluster() as cluster:
        await cluster.start(1)
        session = cluster.session()
        await session.create(paths.topic("t"), topic_value([(1, 2)]))
        await until(lambda: cluster.brokers[3].leader_of("t") == 1)
        await session.set(paths.topic("t"), topic_value([(1, 2), (2, 3)]), ANY_VERSION)
        await until(lambda: cluster.brokers[3].leader_of("t", 1) == 2)
        await session.set(paths.topic("t"), topic_value([(1, 2), (2, 3), (3,)]), ANY_VERSION)
        await until(lambda: cluster.brokers[3].leader_of("t", 2) == 3)


@in_loop
async def test_a_topic_without_an_id_gets_one():
    async with told_cluster() as cluster:
        controller = await cluster.start(1)
        session = cluster.session()
        await session.create(paths.topic("old"), topic_value([(1,)], topic_id=None))
        await until(lambda: cluster.brokers[1].leader_of("old") == 1)
        node = await session.get(paths.topic("old"))
        stored = values.decode_topic("old", node.value)
        assert stored.topic_id == controller.metadata.topics["old"].topic_id


@in_loop
async def test_a_topic_whose_node_cannot_be_read_is_ignored_until_it_is_corrected(caplog):
    async with told_cluster() as cluster:
        controller = await cluster.start(1)
        session = cluster.session()
        await session.create(paths.topic("bad"), b"{")
        await until(lambda: "Ignoring topic bad" in caplog.text)
        (answer,) = await controller.create_topics([NewTopic("good", 1, 1)], timeout_s=5)
        assert isinstance(answer, CreateTopic)


@in_loop
async def test_a_partition_whose_brokers_are_dead_gets_a_leader_as_new_when_one_comes():
    async with told_cluster() as cluster:
        cluster.crash(3)
        await cluster.start(1)
        session = cluster.session()
        await session.create(paths.topic("t"), topic_value([(3,)]))
        await until(lambda: cluster.brokers[1].leader_of("t") == -1)
        assert await session.get(paths.state("t", 0)) is None
        await cluster.register(3)
        await until(lambda: cluster.brokers[1].leader_of("t") == 3)
        await until(lambda: cluster.brokers[3].new == [TopicPartition("t", 0)])


@in_loop
async def test_a_topic_created_by_a_controller_that_told_nobody_is_new_to_its_replicas():
    async with told_cluster() as cluster:
        for broker in cluster.brokers.values():
            broker.reachable = False
        first = await cluster.start(1)
        (answer,) = await first.create_topics([NewTopic("t", 1, 3)], timeout_s=0.01)
        assert isinstance(answer, (CreateTopic, Rejected))
        await until(lambda: first.metadata.topics["t"].partitions[0].partition_epoch == 0)
        await cluster.kill_controller()
        leader = first.metadata.topics["t"].partitions[0].leader
        for broker in cluster.brokers.values():
            broker.reachable = True
        cluster.crash(leader)
        survivors = [broker for broker in cluster.brokers.values() if broker.broker_id != leader]
        await cluster.start(survivors[0].broker_id)
        # Told to lead a partition that is not new and of which it has no log, a broker refuses.
        await until(lambda: all(TopicPartition("t", 0) in b.roles for b in survivors))
        assert survivors[0].roles[TopicPartition("t", 0)].leader_epoch == 1


@in_loop
async def test_creation_answers_each_request_and_the_first_broker_wins():
    async with told_cluster() as cluster:
        controller = await cluster.start(1)
        session = cluster.session()
        requests = [NewTopic("a", 1, 1), NewTopic("b", 1, 9), NewTopic("c", 1, 1)]
        # Another broker creates a topic that the controller has not heard of yet.
        writing = asyncio.ensure_future(session.create(paths.topic("c"), topic_value([(1,)])))
        answers = await controller.create_topics(requests, timeout_s=5)
        await writing
        codes = [each.code if isinstance(each, Rejected) else None for each in answers]
        assert codes == [
            None,
            ErrorCode.INVALID_REPLICATION_FACTOR,
            ErrorCode.TOPIC_ALREADY_EXISTS,
        ]
        again = await controller.create_topics([NewTopic("a", 1, 1)], timeout_s=5)
        assert again[0].code == ErrorCode.TOPIC_ALREADY_EXISTS


@in_loop
async def test_a_topic_grows_with_its_pattern_and_validation_changes_nothing():
    async with told_cluster() as cluster:
        controller = await cluster.start(1)
        await controller.create_topics([NewTopic("t", 1, 2)], timeout_s=5)
        await controller.create_partitions("t", 4, validate_only=True, timeout_s=5)
        assert len(controller.metadata.topics["t"].partitions) == 1
        await controller.create_partitions("t", 4, timeout_s=5)
        leaders = {cluster.brokers[1].leader_of("t", p) for p in range(4)}
        assert leaders == {1, 2, 3}
        with pytest.raises(Rejected) as refused:
            await controller.create_partitions("t", 2, timeout_s=5)
        assert refused.value.code == ErrorCode.INVALID_PARTITIONS


@in_loop
async def test_many_partitions_get_leaders_in_many_writes(monkeypatch):
    monkeypatch.setattr(term_store, "OPERATIONS_PER_WRITE_MAX", 7)
    async with told_cluster() as cluster:
        controller = await cluster.start(1)
        (answer,) = await controller.create_topics([NewTopic("t", 450, 3)], timeout_s=30)
        assert isinstance(answer, CreateTopic)
        assert len(cluster.brokers[2].topics["t"]) == 450


@in_loop
async def test_replicas_are_spread_over_racks():
    async with told_cluster(1, 2, 3, 4) as cluster:
        for broker_id in (1, 2, 3, 4):
            cluster.crash(broker_id)
        cluster.racks = {1: "a", 2: "a", 3: "b", 4: "b"}
        await cluster.register()
        controller = await cluster.start(1)
        await controller.create_topics([NewTopic("t", 8, 2)], timeout_s=5)
        for state in controller.metadata.topics["t"].partitions:
            assert {cluster.racks[broker] for broker in state.replicas} == {"a", "b"}


@in_loop
async def test_a_topic_that_another_program_removed_is_forgotten(caplog):
    async with told_cluster() as cluster:
        await cluster.start(1)
        session = cluster.session()
        await session.multi([Create(paths.topic("t"), topic_value([(1,)]))])
        await until(lambda: cluster.brokers[2].leader_of("t") == 1)
        for path in (
            paths.state("t", 0),
            paths.partition("t", 0),
            paths.partitions("t"),
            paths.topic("t"),
        ):
            await session.delete(path, ANY_VERSION)
        await until(lambda: "t" not in cluster.brokers[2].topics)
        assert "Another program deleted topic t" in caplog.text


@in_loop
async def test_watches_do_not_grow_with_partitions(monkeypatch):
    watched = set()
    add = Watches.add

    def note_and_add(self, aspect, path, watch):
        watched.add(path)
        add(self, aspect, path, watch)

    monkeypatch.setattr(Watches, "add", note_and_add)
    async with told_cluster() as cluster:
        controller = await cluster.start(1)
        await controller.create_topics([NewTopic("t", 50, 1)], timeout_s=5)
        await controller.create_partitions("t", 150, timeout_s=5)
        await cluster.kill_controller()
        await cluster.start(2)
    assert paths.topic("t") in watched
    assert [path for path in watched if path.startswith(paths.partitions("t"))] == []
