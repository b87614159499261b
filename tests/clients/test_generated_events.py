"""Generated events in topics, as a stock consumer reads them."""

import json
import threading
import time
from collections import Counter
from datetime import UTC, date, datetime

import pytest
from confluent_kafka import TIMESTAMP_CREATE_TIME, Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.model.audit import AUDIT_TOPIC, AuditMessage
from headrace.pipeline.events import SCHEMAS
from headrace.pipeline.generate.sending import generate_day, generate_live
from headrace.testing import Broker

DAY = date(2024, 2, 29)  # long ago: neither the broker's limits nor retention may drop it
START = int(datetime(2024, 2, 29, tzinfo=UTC).timestamp() * 1000)


@pytest.fixture
def broker():
    with Broker() as running:
        yield running


def consumed(broker, *topics, partitions=2):
    """All records of these topics, by topic."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": "reader",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    places = [TopicPartition(topic, n, 0) for topic in topics for n in range(partitions)]
    found = {topic: [] for topic in topics}
    try:
        consumer.assign(places)
        ended = 0
        give_up_at = time.monotonic() + 60
        while ended < len(places):
            assert time.monotonic() < give_up_at, f"{topics} did not end"
            for message in consumer.consume(1000, 0.1):
                if message.error():
                    ended += 1
                else:
                    found[message.topic()].append(message)
        return found
    finally:
        consumer.close()


def test_a_day_arrives_as_counted(broker):
    said = []
    done = generate_day(
        broker.bootstrap_servers, DAY, events=5_000, members=100, progress=said.append
    )
    assert done.sent == 5_000 == said[-1]
    assert list(done.topics) == list(SCHEMAS)
    found = consumed(broker, *done.topics)
    for topic, count in done.topics.items():
        records = found[topic]
        assert len(records) == count.sent
        ids = Counter()
        for record in records:
            kind, timestamp = record.timestamp()
            assert kind == TIMESTAMP_CREATE_TIME and timestamp >= START
            try:
                event = json.loads(record.value())
                at = datetime.fromisoformat(event["at"])
            except ValueError:
                continue
            if at.year == 2024:
                ids[event["event_id"]] += 1
                assert at.timestamp() * 1000 <= timestamp
        assert (len(ids), ids.total() - len(ids)) == (count.unique, count.doubled)
    said_sent = Counter()
    for record in consumed(broker, AUDIT_TOPIC, partitions=1)[AUDIT_TOPIC]:
        for topic, minutes in AuditMessage.parse(record.value()).counts.items():
            said_sent[topic] += sum(minutes.values())
    assert said_sent == {topic: count.sent for topic, count in done.topics.items()}
    crawlers = [json.loads(r.value()) for r in found["page-views"] if b"Bot" in r.value()]
    assert crawlers and {view["client"] for view in crawlers} <= set(done.bots["crawler"])


def test_a_day_is_the_same_again(broker):
    with Broker() as another:
        for one in (broker, another):
            generate_day(one.bootstrap_servers, DAY, events=2_000, members=100, partitions=1)
        first, second = (
            [
                (r.key(), r.value(), r.timestamp())
                for r in consumed(one, "posts", partitions=1)["posts"]
            ]
            for one in (broker, another)
        )
        assert first == second


def test_live_events_happen_now(broker):
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.create_topics([NewTopic("requests", 3, 1)])["requests"].result(30)
    began_ms = time.time() * 1000
    done = generate_live(
        broker.bootstrap_servers, 2_000, threading.Event(), events=1_000, members=100
    )
    assert done.sent >= 1_000
    records = consumed(broker, "requests", partitions=3)["requests"]
    assert len(records) == done.topics["requests"].sent
    assert len({record.partition() for record in records}) > 1, "an existing topic is kept"
    for record in records:
        assert began_ms - 1 <= record.timestamp()[1] <= time.time() * 1000


def test_live_events_end_when_they_are_stopped(broker):
    stop = threading.Event()

    def seen(sent):
        if sent >= 100:
            stop.set()

    done = generate_live(broker.bootstrap_servers, 1_000, stop, members=100, progress=seen)
    assert 100 <= done.sent == sum(len(records) for records in consumed(broker, *SCHEMAS).values())


def test_live_events_are_in_the_topics_when_they_are_told(broker):
    told = []

    def seen(sent):
        if sent > (told[-1][0] if told else 0):
            told.append((sent, sum(map(len, consumed(broker, *SCHEMAS).values()))))
        if len(told) == 3:
            stop.set()

    stop = threading.Event()
    generate_live(broker.bootstrap_servers, 1_000, stop, members=100, progress=seen)
    assert told == [(sent, sent) for sent, _ in told]
