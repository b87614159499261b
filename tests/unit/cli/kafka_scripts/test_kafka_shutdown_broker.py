"""``kafka-shutdown-broker`` as a ``headrace`` command line."""

import pytest

from tests.unit.cli.kafka_scripts.command_lines import check_refused, check_translated


@pytest.mark.parametrize(
    ("line", "translated"),
    [
        (
            "kafka-run-class.sh kafka.admin.ShutdownBroker --zookeeper z:2181/kafka --broker 1 "
            "--num.retries 3 --retry.interval.ms 60",
            "brokers shutdown 1 --num-retries 3 --retry-interval-ms 60",
        ),
        (
            "kafka-run-class.sh kafka.admin.ShutdownBroker --zookeeper z:2181 --broker 2",
            "brokers shutdown 2 --num-retries 0",
        ),
        ("kafka-run-class.sh kafka.admin.ShutdownBroker", "brokers shutdown --help"),
    ],
)
def test_a_command_line_is_translated(line, translated):
    check_translated(line, translated)


@pytest.mark.parametrize(
    ("line", "message"),
    [("kafka-run-class.sh kafka.admin.ShutdownBroker --zookeeper z:2181", "--broker is missing")],
)
def test_a_command_line_without_a_translation_is_refused_with_advice(line, message):
    check_refused(line, message)
