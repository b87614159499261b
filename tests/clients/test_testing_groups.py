"""The groups of the test kit, with stock clients of both protocols."""

import time

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from headrace.testing import Broker

pytestmark = pytest.mark.slow

PROTOCOLS = ["classic", "consumer"]
RECORD_COUNT = 20
LIMIT_S = 60


@pytest.fixture(scope="module", params=[False, True], ids=["thread", "process"])
def broker(request):
    with Broker(process=request.param) as broker:
        yield broker


class Members:
    """Consumers of one group, polled together, and the rebalance callbacks that they got."""

    def __init__(self, broker, topic, protocol, count):
        self.group = broker.group(topic)
        self.callbacks = []
        self.consumers = [
            Consumer(
                {
                    "bootstrap.servers": broker.bootstrap_servers,
                    "group.id": topic,
                    "group.protocol": protocol,
                    "auto.offset.reset": "earliest",
                    "enable.auto.commit": False,
                    **({"heartbeat.interval.ms": 100} if protocol == "classic" else {}),
                }
            )
            for _ in range(count)
        ]
        described = self.consumers[0].list_topics(topic, LIMIT_S).topics[topic]
        self.partition_count = len(described.partitions)
        for consumer in self.consumers:
            consumer.subscribe(
                [topic],
                on_assign=lambda _, partitions: self.callbacks.append("assigned"),
                on_revoke=lambda _, partitions: self.callbacks.append("revoked"),
                on_lost=lambda _, partitions: self.callbacks.append("lost"),
            )

    def poll(self):
        return [record for one in self.consumers if (record := one.poll(0)) is not None]

    def poll_until(self, condition):
        give_up_at = time.monotonic() + LIMIT_S
        while not condition():
            assert time.monotonic() < give_up_at, self.callbacks
            self.poll()

    def wait_until_stable(self):
        return self.group.wait_until_stable(len(self.consumers), while_waiting=self.poll)

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        # librdkafka 2.16 hangs if a consumer is closed in the middle of a rebalance, such as when
        # another member has just left. So each one closes when all have their partitions.
        while self.consumers:
            if kind is None:
                self.poll_until(lambda: self.owned() == self.partition_count)
            self.consumers.pop().close()

    def owned(self):
        return sum(len(consumer.assignment()) for consumer in self.consumers)


@pytest.fixture
def topic(broker, request):
    name = "".join(c if c.isalnum() else "-" for c in request.node.name)
    broker.create_topics({name: 4})
    return name


def send(broker, topic):
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for number in range(RECORD_COUNT):
        producer.produce(topic, str(number), partition=number % 4)
    assert producer.flush(30) == 0


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_stable_group_has_all_members_and_each_partition_once(broker, topic, protocol):
    with Members(broker, topic, protocol, 2) as members:
        stable = members.wait_until_stable()
        assert members.group.state() == "Stable"
        assert {one.member_id for one in stable} == {c.memberid() for c in members.consumers}
        owned = sorted(one for member in stable for one in member.assignment)
        assert owned == [(topic, number) for number in range(4)]


def test_a_group_that_does_not_exist_is_never_stable_and_has_no_lag(broker):
    group = broker.group("missing")
    with pytest.raises(TimeoutError, match="missing is Dead with 0 members"):
        group.wait_until_stable(timeout_s=0)
    assert group.lag() is None and group.lag_by_partition() == {}


def commit_to(members, partition, offset):
    places = [TopicPartition(members.group.name, partition, offset)]
    members.consumers[0].commit(offsets=places, asynchronous=False)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_lag_is_unknown_where_nothing_is_committed_as_in_kafkas_tools(broker, topic, protocol):
    send(broker, topic)
    with Members(broker, topic, protocol, 1) as members:
        members.wait_until_stable()
        assert members.group.lag_by_partition() == {(topic, number): None for number in range(4)}
        assert members.group.lag() is None
        commit_to(members, 2, 3)
        assert members.group.lag_by_partition()[topic, 2] == 2
        assert members.group.lag_by_partition()[topic, 3] is None
        assert members.group.lag() is None
        for partition in (0, 1, 3):
            commit_to(members, partition, 1)
        assert members.group.lag() == 4 + 4 + 2 + 4
    assert members.group.lag() == 14  # without members, the committed offsets still count


def test_an_empty_partition_adds_nothing_to_the_lag(broker, topic):
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    producer.produce(topic, "only", partition=1)
    assert producer.flush(30) == 0
    with Members(broker, topic, "classic", 1) as members:
        members.wait_until_stable()
        commit_to(members, 1, 0)
        assert members.group.lag() == 1
        assert members.group.lag_by_partition()[topic, 0] is None


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_forced_rebalance_revokes_partitions_and_assigns_them_again(broker, topic, protocol):
    with Members(broker, topic, protocol, 1) as members:
        (before,) = members.wait_until_stable()
        members.poll_until(lambda: members.callbacks)
        (after,) = members.group.rebalance(while_waiting=members.poll)
        assert after.member_id == before.member_id
        assert sorted(after.assignment) == sorted(before.assignment)
        members.poll_until(
            lambda: members.callbacks[-1] == "assigned" and "revoked" in members.callbacks
        )
        assert "lost" not in members.callbacks


def test_a_rebalance_without_a_partition_to_move_is_refused(broker):
    broker.create_topics({"single": 1})
    with Members(broker, "single", "consumer", 1) as members:
        members.wait_until_stable()
        with pytest.raises(ValueError, match="no partition to move"):
            members.group.rebalance(while_waiting=members.poll)
        assert len(members.wait_until_stable()) == 1  # the guest is gone


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_an_expired_member_loses_its_partitions_until_it_joins_again(broker, topic, protocol):
    with Members(broker, topic, protocol, 2) as members:
        members.wait_until_stable()
        expired, other = members.consumers
        members.group.expire(expired.memberid())
        # Its next heartbeat is refused, and it joins again.
        members.poll_until(lambda: "lost" in members.callbacks)
        back = members.wait_until_stable()
        assert other.memberid() in {one.member_id for one in back}
        assert sorted(one for member in back for one in member.assignment) == [
            (topic, number) for number in range(4)
        ]


def test_only_a_member_can_expire(broker, topic):
    with pytest.raises(LookupError, match="stranger is not a member"):
        broker.group(topic).expire("stranger")
