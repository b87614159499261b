"""``kafka-console-consumer`` as a ``headrace`` command line."""

import pytest

from tests.unit.cli.kafka_scripts.command_lines import check_refused, check_translated


@pytest.mark.parametrize(
    ("line", "translated"),
    [
        (
            "kafka-console-consumer.sh --bootstrap-server localhost:9092 --topic test",
            "consume test -b localhost:9092",
        ),
        (
            "kafka-console-consumer.sh --bootstrap-server localhost:9092 --topic test "
            "--from-beginning",
            "consume test --from-beginning -b localhost:9092",
        ),
        (
            "kafka-console-consumer.sh --bootstrap-server localhost:9092 --topic test "
            "--partition 0 --offset 4",
            "consume test --partition 0 --offset 4 -b localhost:9092",
        ),
        (
            "kafka-console-consumer.sh --bootstrap-server localhost:9092 --topic test "
            "--consumer-property group.id=testGroup",
            "consume test --group testGroup -b localhost:9092",
        ),
        (
            "kafka-console-consumer.sh --bootstrap-server localhost:9092 --topic test "
            "--consumer-property group.id=testGroup2",
            "consume test --group testGroup2 -b localhost:9092",
        ),
        (
            "kafka-console-consumer.sh --zookeeper localhost:2181 --from-beginning --topic test",
            "consume test --from-beginning",
        ),
        ("kafka-console-consumer.sh", "consume --help"),
        (
            "kafka-console-consumer --topic t --max-messages 5 --timeout-ms 1500 --group g",
            "consume t --max 5 --timeout 1.5 --group g",
        ),
        (
            "kafka-console-consumer --topic t --property print.key=true --property key.separator=:",
            r"consume t --format '%k:%s\n'",
        ),
        (
            "kafka-console-consumer --topic t --isolation-level read_committed "
            "--consumer.config c.properties",
            "consume t -X isolation.level=read_committed --client-config c.properties",
        ),
    ],
)
def test_a_command_line_is_translated(line, translated):
    check_translated(line, translated)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("kafka-console-consumer.sh --topic t --property schema.registry.url=x", "not supported"),
        ("kafka-console-consumer.sh --topic t --value-deserializer com.x.Avro", "Java class"),
    ],
)
def test_a_command_line_without_a_translation_is_refused_with_advice(line, message):
    check_refused(line, message)
