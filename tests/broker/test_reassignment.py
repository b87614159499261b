"""Partitions that move between brokers of a cluster, under load and under failures."""

import shutil

import pytest
from confluent_kafka import Consumer, ElectionType, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from headrace.coordination import paths, values
from headrace.model.errors import ErrorCode
from headrace.testing.disk_faults import FillableFiles
from headrace.wire import messages as m
from headrace.wire.api import ApiKey
from headrace.world.world import World
from tests.broker.test_cluster import Acknowledged, create, read_all
from tests.fakes.clusters import ClusterOnOneLoop
from tests.fakes.raw_client import RawClient
from tests.fakes.waiting import wait_until


@pytest.fixture
def cluster(tmp_path):
    with ClusterOnOneLoop(tmp_path, 4) as running:
        yield running


def controller_address(cluster):
    ((host, port),) = cluster.brokers[cluster.controller_id].addresses.values()
    return f"{host}:{port}"


def reassign(cluster, targets, api_version=1, **fields):
    """Ask for new replicas by topic and partition; returns the error codes by these."""
    r = m.AlterPartitionReassignmentsRequest
    topics = {}
    for (name, partition), replicas in targets.items():
        topic = topics.setdefault(name, r.ReassignableTopic(name=name, partitions=[]))
        topic.partitions.append(
            r.ReassignablePartition(partition_index=partition, replicas=replicas)
        )
    with RawClient(controller_address(cluster)) as client:
        answer = client.ask(
            ApiKey.ALTER_PARTITION_REASSIGNMENTS,
            api_version,
            r(timeout_ms=10_000, topics=list(topics.values()), **fields),
        )
    assert answer.error_code == 0
    return {
        (topic.name, each.partition_index): each.error_code
        for topic in answer.responses
        for each in topic.partitions
    }


def in_progress(cluster):
    with RawClient(controller_address(cluster)) as client:
        answer = client.ask(
            ApiKey.LIST_PARTITION_REASSIGNMENTS,
            0,
            m.ListPartitionReassignmentsRequest(timeout_ms=10_000, topics=None),
        )
    assert answer.error_code == 0
    return {
        (topic.name, each.partition_index): (
            each.replicas,
            each.adding_replicas,
            each.removing_replicas,
        )
        for topic in answer.topics
        for each in topic.partitions
    }


def is_assigned(cluster, topic, partition, replicas):
    """Whether all brokers know that these are the replicas, all in sync, and host no others."""
    for broker_id, broker in cluster.brokers.items():
        state = broker.services.metadata.partition(topic, partition)
        if state.replicas != tuple(replicas) or set(state.isr) != set(replicas):
            return False
        hosted = broker.services.replicas.get(topic, partition) is not None
        if hosted is not (broker_id in replicas):
            return False
    return True


def node(cluster, path):
    found = cluster.run(cluster.tree_session().get(path))
    return None if found is None else found.value


def others(cluster, topic):
    return [each for each in cluster.brokers if each not in cluster.state(topic).replicas]


def test_a_partition_moves_to_other_brokers_with_all_its_records(cluster, tmp_path):
    create(cluster, replicas=2)
    producer = Acknowledged(cluster)
    producer.send(*(b"%d" % number for number in range(50)))
    source = cluster.state("orders").replicas
    target = others(cluster, "orders")
    assert reassign(cluster, {("orders", 0): target}) == {("orders", 0): 0}
    producer.send(*(b"later %d" % number for number in range(50)))
    wait_until(lambda: is_assigned(cluster, "orders", 0, target))
    assert in_progress(cluster) == {}
    assert cluster.state("orders").leader == target[0]
    stored = values.decode_topic("orders", node(cluster, paths.topic("orders")))
    assert (stored.replicas, stored.adding, stored.removing) == ([tuple(target)], {}, {})
    for broker_id in source:
        assert not (tmp_path / str(broker_id) / "orders-0").exists()
        assert (tmp_path / str(broker_id)).exists()
    producer.send(b"last")
    assert read_all(cluster, 101) == producer.values


def test_each_partition_of_a_request_gets_kafkas_code(cluster):
    create(cluster, partitions=6, replicas=2)
    source = list(cluster.state("orders").replicas)
    target = others(cluster, "orders")
    assert reassign(
        cluster,
        {
            ("orders", 0): [],
            ("orders", 1): [*source, source[0]],
            ("orders", 2): [9],
            ("orders", 3): None,
            ("orders", 7): [0],
            ("other", 0): [0],
        },
    ) == {
        ("orders", 0): ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        ("orders", 1): ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        ("orders", 2): ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        ("orders", 3): ErrorCode.NO_REASSIGNMENT_IN_PROGRESS,
        ("orders", 7): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ("other", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    same_factor = {"allow_replication_factor_change": False}
    for wanted, code in (([*source, *target], 38), (target, 0)):
        assert reassign(cluster, {("orders", 0): wanted}, **same_factor) == {("orders", 0): code}


def test_a_broker_that_is_not_the_controller_lists_nothing(cluster):
    other = next(each for each in cluster.brokers if each != cluster.controller_id)
    ((host, port),) = cluster.brokers[other].addresses.values()
    with RawClient(f"{host}:{port}") as client:
        answer = client.ask(
            ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, m.ListPartitionReassignmentsRequest()
        )
    assert answer.error_code == ErrorCode.NOT_CONTROLLER


def hold_back(cluster, broker_id):
    """Let a broker take no request of the controller, until the returned function is called."""
    membership = cluster.brokers[broker_id].services.membership

    async def let_go():
        membership.applying.release()

    cluster.run(membership.applying.acquire())
    return lambda: cluster.run(let_go())


def test_a_move_is_listed_until_it_is_cancelled_and_partitions_are_not_added(cluster):
    create(cluster, partitions=2, replicas=2)
    Acknowledged(cluster).send(b"x")
    source = cluster.state("orders").replicas
    target = [each for each in others(cluster, "orders") if each != cluster.controller_id][0]
    let_go = hold_back(cluster, target)  # it cannot follow
    try:
        assert reassign(cluster, {("orders", 0): [target]}) == {("orders", 0): 0}
        expected = ([target, *source], [target], list(source))
        assert in_progress(cluster) == {("orders", 0): expected}
        known = cluster.brokers[cluster.controller_id].services.metadata
        wait_until(lambda: known.partition("orders", 0).replicas == tuple(expected[0]))
        with RawClient(controller_address(cluster)) as client:
            r = m.ListPartitionReassignmentsRequest
            for partitions, count in (([1], 0), ([0, 1], 1)):
                wanted = r.ListPartitionReassignmentsTopics(
                    name="orders", partition_indexes=partitions
                )
                answer = client.ask(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, r(topics=[wanted]))
                assert len(answer.topics) == count
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
        with pytest.raises(KafkaException) as refused:
            admin.create_partitions([NewPartitions("orders", 3)])["orders"].result(30)
        assert refused.value.args[0].code() == ErrorCode.REASSIGNMENT_IN_PROGRESS
        assert reassign(cluster, {("orders", 0): None}) == {("orders", 0): 0}
        assert in_progress(cluster) == {}
    finally:
        let_go()
    wait_until(lambda: is_assigned(cluster, "orders", 0, source))


def test_a_topic_can_be_deleted_while_it_moves(cluster, tmp_path):
    create(cluster, replicas=2)
    Acknowledged(cluster).send(b"x")
    target = [each for each in others(cluster, "orders") if each != cluster.controller_id][0]
    let_go = hold_back(cluster, target)
    try:
        reassign(cluster, {("orders", 0): [target]})
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
        deleted = admin.delete_topics(["orders"])["orders"]
    finally:
        let_go()
    deleted.result(30)
    wait_until(lambda: not list(tmp_path.glob("*/orders-0")))
    assert in_progress(cluster) == {}
    create(cluster)
    Acknowledged(cluster).send(b"again")


def test_a_topic_gets_more_replicas_without_refusing_records_and_fewer_again(tmp_path):
    """With min.insync.replicas=2 a partition of one replica serves until it has more."""
    with ClusterOnOneLoop(tmp_path, 3, **{"min.insync.replicas": "2"}) as cluster:
        create(cluster, replicas=1)
        producer = Acknowledged(cluster)
        producer.send(*(b"%d" % number for number in range(20)))
        (first,) = cluster.state("orders").replicas
        target = [first, *(each for each in range(3) if each != first)]
        late = next(each for each in target[1:] if each != cluster.controller_id)
        let_go = hold_back(cluster, late)
        try:
            reassign(cluster, {("orders", 0): target})
            led = cluster.brokers[first].services.replicas.get("orders", 0)
            wait_until(lambda: len(led.leadership.followers) == 2)
            producer.send(b"during")
        finally:
            let_go()
        wait_until(lambda: is_assigned(cluster, "orders", 0, target))
        producer.send(b"with three")
        reassign(cluster, {("orders", 0): target[2:0:-1]})
        wait_until(lambda: is_assigned(cluster, "orders", 0, target[2:0:-1]))
        assert cluster.state("orders").leader == target[2]
        assert read_all(cluster, 22) == producer.values


def test_the_order_of_replicas_changes_the_preferred_leader(cluster):
    create(cluster, replicas=2)
    first, second = cluster.state("orders").replicas
    reassign(cluster, {("orders", 0): [second, first]})
    wait_until(lambda: is_assigned(cluster, "orders", 0, [second, first]))
    assert cluster.state("orders").leader == first
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    admin.elect_leaders(ElectionType.PREFERRED, [TopicPartition("orders", 0)]).result(30)
    wait_until(lambda: cluster.state("orders").leader == second)


def test_what_another_program_writes_into_the_tree_is_carried_out(cluster):
    create(cluster, replicas=2)
    Acknowledged(cluster).send(b"x")
    target = others(cluster, "orders")
    value = values.encode_reassignment({("orders", 0): target, ("none", 0): [0]})
    cluster.run(cluster.tree_session().create(paths.REASSIGN_PARTITIONS, value))
    wait_until(lambda: is_assigned(cluster, "orders", 0, target))
    wait_until(lambda: node(cluster, paths.REASSIGN_PARTITIONS) is None)
    assert read_all(cluster, 1) == [b"x"]


@pytest.mark.parametrize("who", ["target", "source", "controller"])
def test_a_move_goes_on_when_a_broker_dies_and_returns(cluster, who):
    create(cluster, replicas=2, min_insync_replicas="1")
    producer = Acknowledged(cluster)
    producer.send(*(b"%d" % number for number in range(50)))
    source = list(cluster.state("orders").replicas)
    target = others(cluster, "orders")
    victim = {"target": target[0], "source": source[0], "controller": cluster.controller_id}[who]
    blocked = next(each for each in target if each != victim)
    let_go = hold_back(cluster, blocked)
    try:
        reassign(cluster, {("orders", 0): target})
        cluster.kill(victim)
    finally:
        let_go()
    wait_until(lambda: cluster.controller_id >= 0)
    cluster.start(victim)
    wait_until(lambda: is_assigned(cluster, "orders", 0, target))
    producer.send(b"after")
    assert read_all(cluster, 51) == producer.values


def test_a_full_disk_of_the_target_stops_the_move_and_loses_nothing(cluster, tmp_path):
    create(cluster, replicas=2)
    producer = Acknowledged(cluster)
    producer.send(b"first")
    target = [each for each in others(cluster, "orders") if each != cluster.controller_id][0]
    world = World()
    world.files = FillableFiles()
    cluster.stop(target)
    cluster.start(target, world)
    known = cluster.brokers[cluster.controller_id].services.metadata_cache
    wait_until(lambda: target in known.current.brokers)
    world.files.fill()
    reassign(cluster, {("orders", 0): [target]})
    wait_until(lambda: target in known.current.partition("orders", 0).offline)
    producer.send(b"second")
    assert in_progress(cluster).keys() == {("orders", 0)}
    assert target not in cluster.state("orders").isr
    cluster.stop(target)
    cluster.start(target)
    wait_until(lambda: is_assigned(cluster, "orders", 0, [target]))
    assert read_all(cluster, 2) == [b"first", b"second"]


def committed(consumer, place):
    """None while the client looks for the coordinator."""
    try:
        (found,) = consumer.committed([place], 30)
    except KafkaException as refused:
        assert refused.args[0].retriable() or refused.args[0].code() == ErrorCode.NOT_COORDINATOR
        return None
    return found.offset


def test_a_move_takes_the_coordinator_of_a_group_along(cluster):
    create(cluster)
    Acknowledged(cluster).send(b"x")
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap_servers, "group.id": "g"})
    place = TopicPartition("orders", 0, 1)
    try:
        consumer.commit(offsets=[place], asynchronous=False)
        topic = "__consumer_offsets"
        moves = {}
        for partition in range(2):
            state = cluster.state(topic, partition)
            free = [each for each in cluster.brokers if each not in state.replicas]
            kept = [each for each in state.replicas if each != state.leader]
            moves[topic, partition] = [*free, *kept]
        reassign(cluster, moves)
        for (_, partition), target in moves.items():
            wait_until(lambda p=partition, t=target: is_assigned(cluster, topic, p, t))
        wait_until(lambda: committed(consumer, place) == 1)
        for broker in cluster.brokers.values():
            led = [
                each.topic_partition.partition
                for each in broker.services.replicas.of_topic(topic)
                if each.leadership is not None
            ]
            wait_until(lambda b=broker, p=led: b.services.groups.shards.loaded_partitions() == p)
    finally:
        consumer.close()


def test_a_replica_whose_broker_was_not_told_goes_when_the_next_controller_tells_the_metadata(
    cluster, tmp_path
):
    """The controller dies after it wrote the end of a move, and before it told anybody."""
    dead = cluster.controller_id
    leader, removed, added = (each for each in cluster.brokers if each != dead)
    target = [added, dead]
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    new = NewTopic("orders", 1, replica_assignment=[[leader, removed]])
    admin.create_topics([new])["orders"].result(30)
    producer = Acknowledged(cluster)
    producer.send(b"x")
    let_go = hold_back(cluster, removed)
    try:
        reassign(cluster, {("orders", 0): target})
        topic = paths.topic("orders")
        wait_until(
            lambda: values.decode_topic("orders", node(cluster, topic)).replicas == [tuple(target)]
        )
        cluster.kill(dead)
    finally:
        let_go()
    cluster.start(dead)
    wait_until(lambda: is_assigned(cluster, "orders", 0, target))
    assert not (tmp_path / str(removed) / "orders-0").exists()
    producer.send(b"y")
    assert read_all(cluster, 2) == [b"x", b"y"]


def test_a_broker_that_was_away_sets_its_old_replica_aside(cluster, tmp_path):
    create(cluster, replicas=2, min_insync_replicas="1")
    Acknowledged(cluster).send(b"x")
    source, target = list(cluster.state("orders").replicas), others(cluster, "orders")
    away = next(each for each in source if each != cluster.controller_id)
    cluster.stop(away)
    reassign(cluster, {("orders", 0): target})
    wait_until(lambda: is_assigned(cluster, "orders", 0, target))
    cluster.start(away)
    assert len(list((tmp_path / str(away)).glob("orders-0.*-stray"))) == 1
    wait_until(lambda: is_assigned(cluster, "orders", 0, target))


def test_a_new_broker_with_an_old_id_and_an_empty_disk_catches_up(tmp_path):
    with ClusterOnOneLoop(tmp_path, 3) as cluster:
        create(cluster, partitions=3, min_insync_replicas="2")
        producer = Acknowledged(cluster)
        producer.send(*(b"%d" % number for number in range(60)))
        lost = next(each for each in cluster.brokers if each != cluster.controller_id)
        cluster.kill(lost)
        shutil.rmtree(tmp_path / str(lost))
        cluster.start(lost)
        for partition in range(3):
            wait_until(lambda p=partition: len(cluster.state("orders", p).isr) == 3)
        hosted = cluster.brokers[lost].services.replicas
        ends = [hosted.get("orders", partition).log.log_end for partition in range(3)]
        assert sum(ends) == 60
        producer.send(b"after")


def test_disks_that_were_only_not_mounted_come_back_with_their_records(tmp_path):
    with ClusterOnOneLoop(tmp_path, 3) as cluster:
        create(cluster, partitions=3, min_insync_replicas="2")
        producer = Acknowledged(cluster)
        producer.send(*(b"%d" % number for number in range(60)))
        lost = next(each for each in cluster.brokers if each != cluster.controller_id)
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
        admin.create_topics([NewTopic("alone", 1, replica_assignment=[[lost]])])["alone"].result(30)
        producer.send(b"only copy", topic="alone")
        cluster.kill(lost)
        (tmp_path / str(lost)).rename(tmp_path / "unmounted")
        cluster.start(lost)
        for partition in range(3):
            wait_until(lambda p=partition: len(cluster.state("orders", p).isr) == 3)
        hosted = cluster.brokers[lost].services.replicas.get("alone", 0)
        assert hosted is None or hosted.log.log_end == 0
        assert cluster.state("alone").leader == -1  # an empty log may not take its place
        cluster.kill(lost)
        shutil.rmtree(tmp_path / str(lost))
        (tmp_path / "unmounted").rename(tmp_path / str(lost))
        cluster.start(lost)
        wait_until(lambda: cluster.state("alone").leader == lost)
        assert read_all(cluster, 1, topic="alone") == [b"only copy"]
