"""Send records through the test kit and read them back."""

import pytest
from confluent_kafka import KafkaException, Producer

from headrace.testing import Broker, Record


@pytest.fixture(scope="module", params=[False, True], ids=["thread", "process"])
def broker(request):
    config = {"auto.create.topics.enable": False}
    with Broker(config=config, process=request.param) as broker:
        yield broker


@pytest.fixture
def topic(broker, request):
    name = "".join(c if c.isalnum() else "-" for c in request.node.name)
    broker.create_topics({name: 3})
    return name


def values(records):
    return [record.value for record in records]


def test_values_pairs_and_whole_records_are_sent(broker, topic):
    sent = Record(b"k", None, (("trace", b"7"), ("empty", None)), 1_700_000_000_000, 2)
    broker.produce(topic, [("a", "first"), (b"a", b"second"), ("a", None), sent])
    records = broker.records(topic)
    (received,) = (record for record in records if record.key == b"k")
    assert received == sent._replace(offset=received.offset)
    ordered = [record for record in records if record.key == b"a"]
    assert values(ordered) == [b"first", b"second", None]
    assert len({record.partition for record in ordered}) == 1
    assert all(record.timestamp for record in ordered)


def test_records_come_by_partition_and_offset(broker, topic):
    broker.produce(topic, [Record(value=b"%d" % n, partition=n % 3) for n in range(6)])
    assert [(r.partition, r.offset, r.value) for r in broker.records(topic)] == [
        (0, 0, b"0"),
        (0, 1, b"3"),
        (1, 0, b"1"),
        (1, 1, b"4"),
        (2, 0, b"2"),
        (2, 1, b"5"),
    ]


def test_values_alone_and_an_empty_topic(broker, topic):
    assert broker.records(topic) == []
    broker.produce(topic, ["a", b"b"])
    assert sorted(values(broker.records(topic))) == [b"a", b"b"]
    broker.produce(topic, [])


def test_records_of_one_topic_can_be_sent_to_another(broker, topic):
    broker.produce(topic, ["a", "b", "c"])
    other = f"{topic}-copy"
    broker.create_topics({other: 3})
    broker.produce(other, broker.records(topic))
    assert broker.records(other) == broker.records(topic)


def test_more_records_than_one_fetch_carries(broker, topic):
    broker.produce(topic, (f"{number:01000}" for number in range(5000)))
    assert len({record.value for record in broker.records(topic)}) == 5000


def test_only_committed_transactions_are_read(broker, topic):
    producer = Producer(
        {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": topic, "log_level": 0}
    )
    producer.init_transactions()
    for value, end in [
        ("committed", producer.commit_transaction),
        ("aborted", producer.abort_transaction),
        ("open", None),
    ]:
        producer.begin_transaction()
        producer.produce(topic, value, partition=0)
        assert producer.flush(10) == 0
        if end is not None:
            end()
    broker.produce(topic, [Record(value=b"after", partition=0), Record(value=b"x", partition=1)])
    assert values(broker.records(topic)) == [b"committed", b"x"]
    all_values = values(broker.records(topic, isolation_level="read_uncommitted"))
    assert all_values == [b"committed", b"aborted", b"open", b"after", b"x"]
    producer.abort_transaction()
    assert values(broker.records(topic)) == [b"committed", b"after", b"x"]


def test_a_topic_that_does_not_exist_is_refused(broker):
    with pytest.raises(KafkaException, match="UNKNOWN_TOPIC"):
        broker.records("missing")


def test_a_record_that_cannot_be_delivered_is_reported(broker, topic):
    with pytest.raises(KafkaException, match="_UNKNOWN_PARTITION"):
        broker.produce(topic, [Record(value=b"x", partition=7)])


@pytest.mark.parametrize("record", [5, ("key", 5), ("key", "value", "more"), {"value": "x"}])
def test_a_wrong_type_is_refused_before_anything_is_sent(broker, topic, record):
    with pytest.raises(TypeError, match=r"produce: expected a value, a \(key, value\) pair"):
        broker.produce(topic, ["first", record])
    assert broker.records(topic) == []


def test_one_value_is_not_taken_for_a_list_of_letters(broker, topic):
    with pytest.raises(TypeError, match=r"produce takes several records: \['orders'\]"):
        broker.produce(topic, "orders")
