"""``kafka-topics`` as a ``headrace`` command line."""

import pytest

from tests.unit.cli.kafka_scripts.command_lines import check_refused, check_translated


@pytest.mark.parametrize(
    ("line", "translated"),
    [
        (
            "kafka-topics.sh --create --topic test --bootstrap-server localhost:9092",
            "topics create test -b localhost:9092",
        ),
        (
            "kafka-topics.sh --describe --topic test --bootstrap-server localhost:9092",
            "topics describe test -b localhost:9092",
        ),
        (
            "kafka-topics.sh --create --replication-factor 2 --partitions 4 --topic disTopic "
            "--bootstrap-server localhost:9092",
            "topics create disTopic --partitions 4 --replicas 2 -b localhost:9092",
        ),
        (
            "kafka-topics.sh --list --bootstrap-server localhost:9092",
            "topics list --names -b localhost:9092",
        ),
        (
            "kafka-topics.sh --create --zookeeper localhost:2181 --replication-factor 1 "
            "--partitions 1 --topic test",
            "topics create test --partitions 1 --replicas 1",
        ),
        (
            "kafka-topics.sh --create --zookeeper localhost:2181 --replication-factor 3 "
            "--partitions 1 --topic my-replicated-topic",
            "topics create my-replicated-topic --partitions 1 --replicas 3",
        ),
        (
            "kafka-topics.sh --create --zookeeper localhost:2181 --replication-factor 2 "
            "--partitions 12 --topic t",
            "topics create t --partitions 12 --replicas 2",
        ),
        ("kafka-topics.sh --list --zookeeper localhost:2181", "topics list --names"),
        (
            "kafka-topics.sh --describe --zookeeper localhost:2181 --topic test",
            "topics describe test",
        ),
        (
            "kafka-topics.sh --zookeeper localhost:2181/kafka --partitions 20 --alter "
            "--topic my-topic",
            "topics alter my-topic --partitions 20",
        ),
        (
            "kafka-topics.sh --bootstrap-server localhost:9092 --partitions 20 --alter "
            "--topic my-topic",
            "topics alter my-topic --partitions 20 -b localhost:9092",
        ),
        (
            "kafka-topics.sh --zookeeper localhost:2181 --create --topic my-topic "
            "--partitions 1 --replication-factor 1 --config max.message.bytes=64000 --config "
            "flush.messages=1",
            (
                "topics create my-topic --partitions 1 --replicas 1 --config "
                "max.message.bytes=64000 --config flush.messages=1"
            ),
        ),
        (
            "kafka-topics.sh --zookeeper localhost:2181 --alter --topic my-topic --config "
            "max.message.bytes=128000",
            "configs set topic my-topic max.message.bytes=128000",
        ),
        (
            "kafka-topics.sh --zookeeper localhost:2181 --alter --topic my-topic "
            "--delete-config max.message.bytes",
            "configs unset topic my-topic max.message.bytes",
        ),
        ("kafka-topics.sh", "topics --help"),
        ("kafka-topics --list --exclude-internal", "topics list --names --no-internal"),
        ("kafka-topics --list --topic orders", "topics list --names --matching orders"),
        (
            "kafka-topics --list --topic a.b,c-d --exclude-internal",
            r"topics list --names --matching 'a\.b|c-d' --no-internal",
        ),
        ("kafka-topics --describe --topic 'ord.*'", "topics describe --matching 'ord.*'"),
        ("kafka-topics --describe --topic 'ord.*,a.b'", r"topics describe --matching 'ord.*|a\.b'"),
        ("kafka-topics --delete --topic 'old-.*'", "topics delete --matching 'old-.*' --yes"),
        (
            "kafka-topics --create --topic t --replica-assignment 0:1,1:2",
            "topics create t --replica-assignment 0:1,1:2",
        ),
        (
            "kafka-topics --alter --topic t --partitions 2 --replica-assignment 0:1,1:2",
            "topics alter t --partitions 2 --replica-assignment 0:1,1:2",
        ),
        ("kafka-topics --version", "version"),
        ("kafka-topics --bootstrap-server=h:1 --list", "topics list --names -b h:1"),
        ("kafka-topics --create --if-not-exists --topic t", "topics create t --if-not-exists"),
        ("kafka-topics --describe", "topics describe --internal"),
        (
            "kafka-topics --describe --under-replicated-partitions --unavailable-partitions",
            "topics describe --internal --under-replicated --unavailable",
        ),
        (
            "kafka-topics --describe --topic t --under-min-isr-partitions --at-min-isr-partitions",
            "topics describe t --under-min-isr --at-min-isr",
        ),
    ],
)
def test_a_command_line_is_translated(line, translated):
    check_translated(line, translated)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "kafka-topics.sh --alter --topic t --partitions 3 --config a=1",
            "'headrace topics alter t",
        ),
        ("kafka-topics.sh --create --topic 'a.*|b'", "headrace topics list"),
        ("kafka-topics.sh --alter --partitions 3 --topic 'a.*'", "headrace topics list"),
        ("kafka-topics.sh --create --list --topic t", "give one of"),
        ("kafka-topics.sh --create", "--topic is missing"),
        ("kafka-topics.sh --topics-with-overrides --describe", "headrace topics --help"),
        ("kafka-topics.sh --create --topic", "needs a value"),
    ],
)
def test_a_command_line_without_a_translation_is_refused_with_advice(line, message):
    check_refused(line, message)
