"""Groups of the consumer protocol with stock clients: assignments, restarts, mixed protocols."""

import contextlib
import re
import time

import pytest
from confluent_kafka import Consumer, ConsumerGroupState, ConsumerGroupType, Producer
from confluent_kafka.admin import AdminClient
from kafka import KafkaConsumer

from headrace.core.groups.consumer import heartbeat as heartbeat_module
from headrace.model.errors import ErrorCode
from headrace.model.settings.resources import ResourceType
from headrace.testing import Broker
from headrace.wire import messages as m
from headrace.wire.api import ApiKey
from tests.fakes.raw_client import RawClient

LIMIT_S = 30
RECORDS_PER_PARTITION = 25


class Reader:
    """A consumer that records its assignments and values."""

    def __init__(self, bootstrap, group, topics, *, protocol="consumer", **settings):
        if protocol == "classic":
            settings = {"session.timeout.ms": 6_000, "heartbeat.interval.ms": 200} | settings
        self.consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "group.protocol": protocol,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "topic.metadata.refresh.interval.ms": 1_000,
                **settings,
            }
        )
        self.values = []
        self.moves = []
        self.consumer.subscribe(
            topics,
            on_assign=lambda _, partitions: self.moves.append(("+", len(partitions))),
            on_revoke=lambda _, partitions: self.moves.append(("-", len(partitions))),
        )

    def poll(self):
        record = self.consumer.poll(0.05)
        if record is not None and record.error() is None:
            self.values.append(record.value())
            self.consumer.commit(record, asynchronous=False)

    @property
    def partitions(self):
        return {(found.topic, found.partition) for found in self.consumer.assignment()}


@pytest.fixture
def readers(headrace_broker):
    """Create readers of the session's broker; close them at the end."""
    with contextlib.ExitStack() as stack:

        def make(*args, **how):
            reader = Reader(headrace_broker.bootstrap_servers, *args, **how)
            stack.callback(reader.consumer.close)
            return reader

        yield make


def poll_until(condition, *readers):
    give_up_at = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < give_up_at, [reader.partitions for reader in readers]
        for reader in readers:
            reader.poll()


def shared(topic_partitions, *readers):
    """Whether the readers have all partitions, each about as many as the others."""
    had = [reader.partitions for reader in readers]
    counts = [len(partitions) for partitions in had]
    return (
        set().union(*had) == topic_partitions
        and sum(counts) == len(topic_partitions)
        and max(counts) - min(counts) <= 1
    )


def partitions_of(topic, count):
    return {(topic, partition) for partition in range(count)}


def fill(bootstrap, topic, partition_count, prefix=b""):
    """Produce values and return them."""
    producer = Producer({"bootstrap.servers": bootstrap})
    values = []
    for number in range(RECORDS_PER_PARTITION):
        for partition in range(partition_count):
            values.append(prefix + b"%d-%d" % (partition, number))
            producer.produce(topic, values[-1], partition=partition)
    assert producer.flush(LIMIT_S) == 0
    return values


def a_topic(broker, request, partition_count):
    name = re.sub(r"[^a-z-]", "-", request.node.name)
    broker.create_topics({name: partition_count})
    return name


@pytest.mark.parametrize("assignor", ["uniform", "range"])
def test_members_share_and_take_over_without_losing_or_duplicating_records(
    headrace_broker, readers, request, assignor
):
    topic = a_topic(headrace_broker, request, 6)
    everything = partitions_of(topic, 6)
    how = {"group.remote.assignor": assignor}
    first = readers(topic, [topic], **how)
    poll_until(lambda: shared(everything, first), first)
    second, third = readers(topic, [topic], **how), readers(topic, [topic], **how)
    all_three = (first, second, third)
    poll_until(lambda: shared(everything, *all_three), *all_three)
    produced = fill(headrace_broker.bootstrap_servers, topic, 6)
    poll_until(lambda: sum(len(r.values) for r in all_three) == len(produced), *all_three)
    assert all(reader.values for reader in all_three)

    second.consumer.close()
    poll_until(lambda: shared(everything, first, third), first, third)
    more = fill(headrace_broker.bootstrap_servers, topic, 6, b"more-")
    total = len(produced) + len(more)
    poll_until(lambda: sum(len(r.values) for r in all_three) == total, first, third)
    got = [value for reader in all_three for value in reader.values]
    assert sorted(got) == sorted(produced + more)


@pytest.mark.parametrize("large_from", [500, 0], ids=["small", "large"])
def test_a_pattern_includes_topics_that_are_created_later(
    headrace_broker, readers, request, monkeypatch, large_from
):
    # A group with so many topics is served in a thread.
    monkeypatch.setattr(heartbeat_module, "LARGE_TOPIC_COUNT", large_from)
    first = a_topic(headrace_broker, request, 2)
    reader = readers(first, [f"^{first}.*"])
    poll_until(lambda: reader.partitions == partitions_of(first, 2), reader)
    second = f"{first}-2"
    headrace_broker.create_topics({second: 3})
    everything = partitions_of(first, 2) | partitions_of(second, 3)
    poll_until(lambda: reader.partitions == everything, reader)


def test_added_partitions_are_read(headrace_broker, readers, request):
    topic = a_topic(headrace_broker, request, 1)
    reader = readers(topic, [topic])
    poll_until(lambda: reader.partitions == partitions_of(topic, 1), reader)
    with RawClient(headrace_broker.bootstrap_servers) as client:
        grow = m.CreatePartitionsRequest
        answer = client.ask(
            ApiKey.CREATE_PARTITIONS,
            3,
            grow(
                topics=[grow.CreatePartitionsTopic(name=topic, count=3, assignments=None)],
                timeout_ms=10_000,
            ),
        )
        assert answer.results[0].error_code == ErrorCode.NONE
    poll_until(lambda: reader.partitions == partitions_of(topic, 3), reader)


def test_a_static_member_that_restarts_gets_its_partitions_back_without_a_rebalance(
    headrace_broker, readers, request
):
    topic = a_topic(headrace_broker, request, 4)
    everything = partitions_of(topic, 4)
    first = readers(topic, [topic], **{"group.instance.id": "one"})
    second = readers(topic, [topic], **{"group.instance.id": "two"})
    poll_until(lambda: shared(everything, first, second), first, second)
    had, moves = first.partitions, list(second.moves)
    first.consumer.close()
    back = readers(topic, [topic], **{"group.instance.id": "one"})
    poll_until(lambda: back.partitions, back, second)
    assert back.partitions == had
    assert second.moves == moves


def heartbeat(client, group, member_id, member_epoch, **fields):
    return client.ask(
        ApiKey.CONSUMER_GROUP_HEARTBEAT,
        1,
        m.ConsumerGroupHeartbeatRequest(
            group_id=group, member_id=member_id, member_epoch=member_epoch, **fields
        ),
    )


JOINING = {"rebalance_timeout_ms": 60_000, "topic_partitions": []}


def test_a_member_that_goes_silent_loses_its_partitions_to_the_others():
    config = {
        "group.consumer.min.session.timeout.ms": 1_000,
        "group.consumer.session.timeout.ms": 1_000,
    }
    with (
        Broker(topics={"t": 4}, config=config) as broker,
        RawClient(broker.bootstrap_servers) as silent,
    ):
        reader = Reader(broker.bootstrap_servers, "g", ["t"])
        poll_until(lambda: shared(partitions_of("t", 4), reader), reader)
        answer = heartbeat(silent, "g", "silent", 0, subscribed_topic_names=["t"], **JOINING)
        assert answer.error_code == ErrorCode.NONE
        poll_until(lambda: len(reader.partitions) == 2, reader)  # the other member has the rest
        poll_until(lambda: shared(partitions_of("t", 4), reader), reader)
        assert (
            heartbeat(silent, "g", "silent", answer.member_epoch).error_code
            == ErrorCode.UNKNOWN_MEMBER_ID
        )
        reader.consumer.close()


@pytest.mark.parametrize("how", ["restart", "kill"])
def test_a_group_continues_after_a_restart_of_the_broker(how):
    with Broker(topics={"t": 4}) as broker:
        first, second = (Reader(broker.bootstrap_servers, "g", ["t"]) for _ in range(2))
        everything = partitions_of("t", 4)
        poll_until(lambda: shared(everything, first, second), first, second)
        produced = fill(broker.bootstrap_servers, "t", 4)
        got = lambda: len(first.values) + len(second.values)  # noqa: E731
        poll_until(lambda: got() == len(produced), first, second)
        moves = [list(first.moves), list(second.moves)]
        if how == "restart":
            broker.restart()
        else:
            broker.kill()
            broker.start()
        more = fill(broker.bootstrap_servers, "t", 4, b"more-")
        poll_until(lambda: got() == len(produced) + len(more), first, second)
        assert sorted(first.values + second.values) == sorted(produced + more)
        assert [first.moves, second.moves] == moves  # both only had to reconnect
        first.consumer.close()
        second.consumer.close()


def test_a_group_changes_its_protocol_and_back_while_it_reads(headrace_broker, readers, request):
    topic = a_topic(headrace_broker, request, 4)
    everything = partitions_of(topic, 4)
    bootstrap = headrace_broker.bootstrap_servers
    # Not librdkafka's cooperative-sticky: it stores its own data in the assignment, and Kafka
    # refuses the change too.
    how = {"protocol": "classic", "partition.assignment.strategy": "range"}
    old = [readers(topic, [topic], **how) for _ in range(2)]
    poll_until(lambda: shared(everything, *old), *old)
    produced = fill(bootstrap, topic, 4, b"classic-")

    new = readers(topic, [topic])
    poll_until(lambda: shared(everything, *old, new), *old, new)
    assert kind_of(bootstrap, topic) == ConsumerGroupType.CONSUMER
    produced += fill(bootstrap, topic, 4, b"mixed-")
    total = lambda: sum(len(reader.values) for reader in (*old, new))  # noqa: E731
    poll_until(lambda: total() == len(produced), *old, new)

    new.consumer.close()
    poll_until(lambda: shared(everything, *old), *old)
    assert kind_of(bootstrap, topic) == ConsumerGroupType.CLASSIC
    produced += fill(bootstrap, topic, 4, b"back-")
    poll_until(lambda: total() == len(produced), *old)
    got = [value for reader in (*old, new) for value in reader.values]
    assert sorted(got) == sorted(produced)


def kind_of(bootstrap, group):
    admin = AdminClient({"bootstrap.servers": bootstrap})
    listed = admin.list_consumer_groups().result(LIMIT_S)
    return next(found.type for found in listed.valid if found.group_id == group)


def test_an_eager_classic_client_shares_with_a_new_one(headrace_broker, readers, request):
    topic = a_topic(headrace_broker, request, 4)
    everything = partitions_of(topic, 4)
    new = readers(topic, [topic])
    poll_until(lambda: shared(everything, new), new)
    old = KafkaConsumer(
        topic,
        bootstrap_servers=headrace_broker.bootstrap_servers,
        group_id=topic,
        auto_offset_reset="earliest",
        session_timeout_ms=6_000,
        heartbeat_interval_ms=200,
        request_timeout_ms=LIMIT_S * 1_000,
    )
    with contextlib.closing(old):
        give_up_at = time.monotonic() + LIMIT_S
        while not (
            len(new.partitions) == 2
            and new.partitions | {tuple(found) for found in old.assignment()} == everything
        ):
            assert time.monotonic() < give_up_at, (new.partitions, old.assignment())
            old.poll(50)
            new.poll()
    poll_until(lambda: shared(everything, new), new)


def test_a_group_is_described(headrace_broker, readers, request):
    topic = a_topic(headrace_broker, request, 2)
    reader = readers(topic, [topic], **{"client.id": "me", "group.instance.id": "one"})
    poll_until(lambda: reader.partitions == partitions_of(topic, 2), reader)
    admin = AdminClient({"bootstrap.servers": headrace_broker.bootstrap_servers})
    (found,) = admin.describe_consumer_groups([topic]).values()
    described = found.result(LIMIT_S)
    assert described.state == ConsumerGroupState.STABLE
    assert described.type == ConsumerGroupType.CONSUMER
    assert described.partition_assignor == "uniform"
    (member,) = described.members
    assert (member.client_id, member.group_instance_id) == ("me", "one")
    assert {(p.topic, p.partition) for p in member.assignment.topic_partitions} == (
        partitions_of(topic, 2)
    )


def test_without_the_feature_the_protocol_is_not_announced():
    with Broker(topics={"t": 1}) as broker, RawClient(broker.bootstrap_servers) as client:
        update = m.UpdateFeaturesRequest
        answer = client.ask(
            ApiKey.UPDATE_FEATURES,
            1,
            update(
                feature_updates=[
                    update.FeatureUpdateKey(
                        feature="group.version", max_version_level=0, upgrade_type=2
                    )
                ],
                timeout_ms=10_000,
            ),
        )
        assert answer.error_code == ErrorCode.NONE
        joined = heartbeat(client, "g", "a", 0, subscribed_topic_names=["t"], **JOINING)
        assert joined.error_code == ErrorCode.UNSUPPORTED_VERSION
        described = client.ask(
            ApiKey.CONSUMER_GROUP_DESCRIBE, 1, m.ConsumerGroupDescribeRequest(group_ids=["g"])
        )
        assert described.groups[0].error_code == ErrorCode.UNSUPPORTED_VERSION


def test_a_group_may_have_its_own_heartbeat_interval(headrace_broker, request):
    topic = a_topic(headrace_broker, request, 1)
    with RawClient(headrace_broker.bootstrap_servers) as client:
        alter = m.IncrementalAlterConfigsRequest
        answer = client.ask(
            ApiKey.INCREMENTAL_ALTER_CONFIGS,
            1,
            alter(
                resources=[
                    alter.AlterConfigsResource(
                        resource_type=ResourceType.GROUP,
                        resource_name=topic,
                        configs=[
                            alter.AlterableConfig(
                                name="consumer.heartbeat.interval.ms",
                                config_operation=0,
                                value="321",
                            )
                        ],
                    )
                ]
            ),
        )
        assert answer.responses[0].error_code == ErrorCode.NONE, answer
        client.ask(
            ApiKey.FIND_COORDINATOR,
            4,
            m.FindCoordinatorRequest(key_type=0, coordinator_keys=[topic]),
        )
        give_up_at = time.monotonic() + LIMIT_S
        while True:
            joined = heartbeat(client, topic, "a", 0, subscribed_topic_names=[topic], **JOINING)
            if joined.error_code == ErrorCode.NONE:
                break
            assert time.monotonic() < give_up_at, joined
        assert joined.heartbeat_interval_ms == 321
        assert heartbeat(client, topic, "a", -1).error_code == ErrorCode.NONE
