"""What the test kit does with groups, to stock clients of both protocols."""

import time

import pytest
from confluent_kafka import Consumer, Producer

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
    """Consumers of one group, polled together, and what they were told."""

    def __init__(self, broker, topic, protocol, count):
        self.group = broker.group(topic)
        self.told = []
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
                on_assign=lambda _, partitions: self.told.append("assigned"),
                on_revoke=lambda _, partitions: self.told.append("revoked"),
                on_lost=lambda _, partitions: self.told.append("lost"),
            )

    def poll(self):
        return [record for one in self.consumers if (record := one.poll(0)) is not None]

    def poll_until(self, condition):
        give_up_at = time.monotonic() + LIMIT_S
        while not condition():
            assert time.monotonic() < give_up_at, self.told
            self.poll()

    def wait_until_stable(self):
        return self.group.wait_until_stable(len(self.consumers), while_waiting=self.poll)

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        # librdkafka 2.16 waits without end if it is closed while it is told of partitions, as when
        # another member has just gone. So each goes when all have been told.
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
    group = broker.group("nobody")
    with pytest.raises(TimeoutError, match="nobody is Dead with 0 members"):
        group.wait_until_stable(timeout_s=0)
    assert group.lag() == 0 and group.lag_by_partition() == {}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_lag_is_what_is_not_committed_in_each_partition_and_in_all(broker, topic, protocol):
    send(broker, topic)
    with Members(broker, topic, protocol, 1) as members:
        members.wait_until_stable()
        assert members.group.lag_by_partition() == {(topic, number): 5 for number in range(4)}
        read = None
        while read is None or read.partition() != 2 or read.offset() != 2:
            read = members.consumers[0].poll(30)
            assert read is not None and read.error() is None
        members.consumers[0].commit(read, asynchronous=False)
        assert members.group.lag_by_partition()[topic, 2] == 2
        assert members.group.lag() == 17
    assert members.group.lag() == 2  # nobody is there any more: what was committed speaks


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_forced_rebalance_takes_partitions_away_and_brings_them_back(broker, topic, protocol):
    with Members(broker, topic, protocol, 1) as members:
        (before,) = members.wait_until_stable()
        members.poll_until(lambda: members.told)
        (after,) = members.group.rebalance(while_waiting=members.poll)
        assert after.member_id == before.member_id
        assert sorted(after.assignment) == sorted(before.assignment)
        members.poll_until(lambda: members.told[-1] == "assigned" and "revoked" in members.told)
        assert "lost" not in members.told


def test_a_rebalance_that_would_move_nothing_says_so(broker):
    broker.create_topics({"single": 1})
    with Members(broker, "single", "consumer", 1) as members:
        members.wait_until_stable()
        with pytest.raises(ValueError, match="no partition to move"):
            members.group.rebalance(while_waiting=members.poll)
        assert len(members.wait_until_stable()) == 1  # the guest is gone


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_an_expired_member_loses_all_and_the_other_gets_it_until_it_is_back(
    broker, topic, protocol
):
    with Members(broker, topic, protocol, 2) as members:
        members.wait_until_stable()
        gone, stays = members.consumers
        members.group.expire(gone.memberid())
        # It hears of it with its next heartbeat, and comes back.
        members.poll_until(lambda: "lost" in members.told)
        back = members.wait_until_stable()
        assert stays.memberid() in {one.member_id for one in back}
        assert sorted(one for member in back for one in member.assignment) == [
            (topic, number) for number in range(4)
        ]


def test_who_is_no_member_cannot_expire(broker, topic):
    with pytest.raises(LookupError, match="somebody is not a member"):
        broker.group(topic).expire("somebody")
