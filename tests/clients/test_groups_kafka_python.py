"""kafka-python in groups: assignments, static members, offsets, a broker that restarts."""

import itertools
import threading
import time
from contextlib import suppress

import pytest
from kafka import KafkaConsumer, KafkaProducer, OffsetAndMetadata, TopicPartition
from kafka.errors import KafkaConnectionError

from headrace.testing import Broker

LIMIT_S = 30
_numbers = itertools.count(1)


class Member(threading.Thread):
    """A consumer that polls in a thread; kafka-python sends heartbeats only while it polls."""

    def __init__(self, bootstrap, group, topic, **settings):
        super().__init__(name=f"member of {group}")
        self.consumer = KafkaConsumer(
            topic,
            bootstrap_servers=bootstrap,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=6000,
            heartbeat_interval_ms=100,
            **settings,
        )
        self.read = []
        self.assigned = set()
        self._stop_wanted = threading.Event()
        self._commit_wanted = threading.Event()
        self.start()

    def run(self):
        while not self._stop_wanted.is_set():
            # This client raises while the broker is down, and must be called again.
            with suppress(KafkaConnectionError):
                self._take_turn()
        self.consumer.close()

    def _take_turn(self):
        # Long enough for a rebalance: if the poll ends while a sync is in flight, this client drops
        # the response and sends no more heartbeats.
        for records in self.consumer.poll(timeout_ms=1000).values():
            self.read += [(record.partition, record.offset) for record in records]
        self.assigned = {x.partition for x in self.consumer.assignment()}
        if self._commit_wanted.is_set():
            self.consumer.commit()
            self._commit_wanted.clear()

    def commit(self):
        self._commit_wanted.set()
        until(lambda: not self._commit_wanted.is_set())

    def close(self):
        self._stop_wanted.set()
        self.join()


def until(condition):
    give_up_at = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < give_up_at, "it did not come to that"
        time.sleep(0.01)


def parted(*members):
    shares = [member.assigned for member in members]
    return all(shares) and sorted(itertools.chain(*shares)) == [0, 1, 2, 3]


@pytest.fixture
def member():
    made = []

    def make(*arguments, **settings):
        made.append(Member(*arguments, **settings))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def group():
    return f"kafka-python-{next(_numbers)}"


@pytest.fixture
def topic(headrace_broker):
    name = f"kafka-python-groups-{next(_numbers)}"
    headrace_broker.create_topics({name: 4})
    return name


def produce(bootstrap, topic, count):
    producer = KafkaProducer(bootstrap_servers=bootstrap)
    for number in range(count):
        producer.send(topic, b"%d" % number, partition=number % 4)
    producer.flush()
    producer.close()


def test_members_share_the_partitions_and_take_over(headrace_broker, member, topic, group):
    bootstrap = headrace_broker.bootstrap_servers
    first = member(bootstrap, group, topic)
    until(lambda: first.assigned == {0, 1, 2, 3})
    second = member(bootstrap, group, topic)
    until(lambda: parted(first, second))
    produce(bootstrap, topic, 80)
    until(lambda: len(first.read) + len(second.read) == 80)
    second.commit()
    second.close()
    until(lambda: first.assigned == {0, 1, 2, 3})
    produce(bootstrap, topic, 40)
    until(lambda: len(first.read) + len(second.read) >= 120)
    assert sorted(set(first.read) | set(second.read)) == [
        (partition, offset) for partition in range(4) for offset in range(30)
    ]


def test_a_static_member_keeps_its_assignment(headrace_broker, member, topic, group):
    bootstrap = headrace_broker.bootstrap_servers
    first = member(bootstrap, group, topic, group_instance_id="one")
    second = member(bootstrap, group, topic, group_instance_id="two")
    until(lambda: parted(first, second))
    held = second.assigned
    second.close()
    again = member(bootstrap, group, topic, group_instance_id="two")
    until(lambda: again.assigned == held)
    assert parted(first, again)


def test_offsets_are_committed_and_read(headrace_broker, topic, group):
    bootstrap = headrace_broker.bootstrap_servers
    consumer = KafkaConsumer(bootstrap_servers=bootstrap, group_id=group)
    partition = TopicPartition(topic, 2)
    consumer.assign([partition])
    assert consumer.committed(partition) is None
    consumer.commit({partition: OffsetAndMetadata(9, "note", -1)})
    assert consumer.committed(partition) == 9
    assert consumer.committed(partition, metadata=True).metadata == "note"
    consumer.close()


@pytest.mark.parametrize("how", ["restart", "kill"])
def test_a_group_continues_after_a_restart_of_the_broker(member, group, how):
    with Broker(topics={"t": 4}) as broker:
        bootstrap = broker.bootstrap_servers
        first, second = (member(bootstrap, group, "t") for _ in range(2))
        until(lambda: parted(first, second))
        produce(bootstrap, "t", 80)
        until(lambda: len(first.read) + len(second.read) == 80)
        first.commit()
        second.commit()
        if how == "restart":
            broker.restart()
        else:
            broker.kill()
            broker.start()
        produce(bootstrap, "t", 80)
        until(lambda: len(first.read) + len(second.read) >= 160)
        assert sorted(first.read + second.read) == [
            (partition, offset) for partition in range(4) for offset in range(40)
        ]
        first.close()
        second.close()
