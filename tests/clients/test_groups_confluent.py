"""confluent-kafka in groups: rebalances, cooperative and static members, broker restarts."""

import itertools
import threading
import time

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from headrace.testing import Broker

LIMIT_S = 30
_numbers = itertools.count(1)


@pytest.fixture
def group():
    return f"confluent-{next(_numbers)}"


def until(condition, *polled):
    """Poll the consumers until the condition holds."""
    give_up_at = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < give_up_at, "it did not come to that"
        for consumer in polled:
            consumer.poll(0.05)


class Member:
    """A consumer that records its assigned, revoked and read partitions and values."""

    def __init__(self, bootstrap, group, topic, **settings):
        self.assigned = set()
        self.revocations = []
        self.read = []
        self.consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "session.timeout.ms": 6000,
                "heartbeat.interval.ms": 100,
                "topic.metadata.refresh.interval.ms": 500,
                **settings,
            }
        )
        self._is_cooperative = "cooperative" in settings.get("partition.assignment.strategy", "")
        self.consumer.subscribe(
            [topic], on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
        )

    def _on_assign(self, consumer, partitions):
        given = {x.partition for x in partitions}
        self.assigned = self.assigned | given if self._is_cooperative else given

    def _on_revoke(self, consumer, partitions):
        lost = {x.partition for x in partitions}
        self.revocations.append(lost)
        self.assigned -= lost

    def _on_lost(self, consumer, partitions):
        self._on_revoke(consumer, partitions)

    def poll(self, timeout):
        record = self.consumer.poll(timeout)
        if record is not None and record.error() is None:
            self.read.append((record.partition(), record.offset()))
            return record
        return None

    def close(self):
        self.consumer.close()


@pytest.fixture
def member(headrace_broker):
    """Create members; close all at the end."""
    made = []

    def make(group, topic, bootstrap=headrace_broker.bootstrap_servers, **settings):
        made.append(Member(bootstrap, group, topic, **settings))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def topic(headrace_broker):
    name = f"confluent-groups-{next(_numbers)}"
    headrace_broker.create_topics({name: 4})
    return name


def produce(bootstrap, topic, count, start=0):
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(start, start + count):
        producer.produce(topic, str(number), partition=number % 4)
    assert producer.flush(LIMIT_S) == 0


def parted(*members):
    """Whether each of the four partitions is assigned to exactly one member."""
    shares = [member.assigned for member in members]
    return all(shares) and sorted(itertools.chain(*shares)) == [0, 1, 2, 3]


@pytest.mark.parametrize("strategy", ["range", "roundrobin", "cooperative-sticky"])
def test_members_share_the_partitions_and_take_over_from_a_leaving_member(
    member, topic, group, strategy
):
    how = {"partition.assignment.strategy": strategy}
    first = member(group, topic, **how)
    until(lambda: first.assigned == {0, 1, 2, 3}, first)
    second = member(group, topic, **how)
    until(lambda: parted(first, second), first, second)
    third = member(group, topic, **how)
    until(lambda: parted(first, second, third), first, second, third)
    first.close()
    until(lambda: parted(second, third), second, third)


def test_a_cooperative_member_keeps_the_partitions_that_stay_assigned(member, topic, group):
    how = {"partition.assignment.strategy": "cooperative-sticky"}
    first = member(group, topic, **how)
    until(lambda: first.assigned == {0, 1, 2, 3}, first)
    second = member(group, topic, **how)
    until(lambda: parted(first, second), first, second)
    assert all(len(lost) <= 2 for lost in first.revocations), "never all of it at once"
    assert len(first.assigned) == len(second.assigned) == 2


def test_records_are_read_once_by_a_group_that_commits(headrace_broker, member, topic, group):
    produce(headrace_broker.bootstrap_servers, topic, 200)
    first = member(group, topic)
    until(lambda: len(first.read) == 200, first)
    first.consumer.commit(asynchronous=False)
    first.close()
    produce(headrace_broker.bootstrap_servers, topic, 40, start=200)
    second = member(group, topic)
    until(lambda: len(second.read) >= 40, second)
    assert not set(first.read) & set(second.read)
    assert len(set(first.read) | set(second.read)) == 240


def test_a_static_member_returns_without_a_rebalance(member, topic, group):
    first = member(group, topic, **{"group.instance.id": "one"})
    second = member(group, topic, **{"group.instance.id": "two"})
    until(lambda: parted(first, second), first, second)
    held = second.assigned
    first_held, disturbances = first.assigned, len(first.revocations)
    second.close()  # a static member does not leave the group
    again = member(group, topic, **{"group.instance.id": "two"})
    until(lambda: again.assigned == held, again, first)
    assert first.assigned == first_held and len(first.revocations) == disturbances


def test_two_members_cannot_have_one_instance_id(headrace_broker, member, topic, group):
    first = member(group, topic, **{"group.instance.id": "same"})
    until(lambda: first.assigned == {0, 1, 2, 3}, first)
    errors = []
    second = member(group, topic, **{"group.instance.id": "same"})

    def fenced():
        message = first.consumer.poll(0.05)
        if message is not None and message.error() is not None:
            errors.append(message.error().name())
        return "_FATAL" in errors or "FENCED_INSTANCE_ID" in errors

    until(fenced, second)
    until(lambda: second.assigned == {0, 1, 2, 3}, second)


def test_a_group_can_be_described_reset_and_deleted(headrace_broker, member, topic, group):
    bootstrap = headrace_broker.bootstrap_servers
    produce(bootstrap, topic, 40)
    one = member(group, topic)
    until(lambda: len(one.read) == 40, one)
    one.consumer.commit(asynchronous=False)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    described = admin.describe_consumer_groups([group])[group].result()
    assert described.state.name == "STABLE" and not described.is_simple_consumer_group
    (shown,) = described.members
    assert shown.client_id == "rdkafka" and shown.host == "/127.0.0.1"
    assert {x.partition for x in shown.assignment.topic_partitions} == {0, 1, 2, 3}
    listed = {x.group_id: x.state.name for x in admin.list_consumer_groups().result().valid}
    assert listed[group] == "STABLE"
    with pytest.raises(Exception, match="NON_EMPTY_GROUP"):
        admin.delete_consumer_groups([group])[group].result()
    one.close()
    wanted = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0, 3)])
    admin.alter_consumer_group_offsets([wanted])[group].result()
    found = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])
    offsets = {x.partition: x.offset for x in found[group].result().topic_partitions}
    assert offsets == {0: 3, 1: 10, 2: 10, 3: 10}
    admin.delete_consumer_groups([group])[group].result()
    with pytest.raises(Exception, match="GROUP_ID_NOT_FOUND"):
        admin.delete_consumer_groups([group])[group].result()


def test_offsets_keep_their_metadata_and_leader_epoch(headrace_broker, topic, group):
    bootstrap = headrace_broker.bootstrap_servers
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    offset = TopicPartition(topic, 1, 7, "where I was: ünder way", 0)
    consumer.commit(offsets=[offset], asynchronous=False)
    (found,) = consumer.committed([TopicPartition(topic, 1)], timeout=LIMIT_S)
    assert (found.offset, found.metadata, found.leader_epoch) == (7, offset.metadata, 0)
    (nothing,) = consumer.committed([TopicPartition(topic, 0)], timeout=LIMIT_S)
    assert nothing.offset < 0
    consumer.close()


@pytest.mark.parametrize("how", ["restart", "kill"])
def test_a_group_continues_after_a_restart_of_the_broker(how, group):
    """Members keep reading, and after the restart they read no committed record again."""
    with Broker(topics={"t": 4}) as broker:
        bootstrap = broker.bootstrap_servers
        settings = {"reconnect.backoff.max.ms": 200}
        members = [Member(bootstrap, group, "t", **settings) for _ in range(2)]
        try:
            until(lambda: parted(*members), *members)
            produce(bootstrap, "t", 100)
            until(lambda: sum(len(one.read) for one in members) == 100, *members)
            for one in members:
                one.consumer.commit(asynchronous=False)
            revoked = [len(one.revocations) for one in members]
            if how == "restart":
                broker.restart()
            else:
                broker.kill()
                broker.start()
            produce(bootstrap, "t", 100, start=100)
            until(lambda: sum(len(one.read) for one in members) >= 200, *members)
            for one in members:
                one.consumer.commit(asynchronous=False)
            # They are still the same members, so there was no rebalance.
            assert [len(one.revocations) for one in members] == revoked
            records = [position for one in members for position in one.read]
            assert sorted(records) == [(p, o) for p in range(4) for o in range(50)]
        finally:
            for one in members:
                one.close()


def test_a_group_survives_a_kill_of_the_broker_during_a_rebalance(group):
    with Broker(topics={"t": 4}) as broker:
        bootstrap = broker.bootstrap_servers
        settings = {"reconnect.backoff.max.ms": 200}
        members = [Member(bootstrap, group, "t", **settings)]
        try:
            until(lambda: members[0].assigned == {0, 1, 2, 3}, *members)
            for _ in range(3):
                members.append(Member(bootstrap, group, "t", **settings))
                stop = threading.Event()
                # The new member polls in a thread, so that the kill can hit any point of its join.
                polling = threading.Thread(target=_poll_until, args=(members[-1], stop))
                polling.start()
                for one in members[:-1]:
                    one.poll(0.05)
                broker.kill()
                broker.start()
                stop.set()
                polling.join()
                until(lambda: parted(*members), *members)
        finally:
            for one in members:
                one.close()


def _poll_until(member, stop):
    while not stop.is_set():
        member.poll(0.02)
