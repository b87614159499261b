"""``kafka-console-producer`` as a ``headrace`` command line."""

import pytest

from tests.unit.cli.kafka_scripts.command_lines import check_translated


@pytest.mark.parametrize(
    ("line", "translated"),
    [
        (
            "kafka-console-producer.sh --broker-list localhost:9092 --topic test",
            "produce test -b localhost:9092",
        ),
        (
            "kafka-console-producer.sh --bootstrap-server localhost:9092 --topic test",
            "produce test -b localhost:9092",
        ),
        ("kafka-console-producer.sh", "produce --help"),
        (
            "kafka-console-producer --topic t --property parse.key=true --property key.separator=:",
            "produce t --key-separator :",
        ),
        (
            "kafka-console-producer --topic t --reader-property parse.headers=true",
            r"produce t --header-separator '\t' --header-pair-separator :",
        ),
        (
            "kafka-console-producer --topic t --request-required-acks -1 --compression-codec "
            "--sync",
            "produce t --acks all --compression gzip -X batch.num.messages=1",
        ),
        (
            "kafka-console-producer --topic t --producer-property metadata.broker.list=h:1 "
            "--producer-property request.required.acks=1 --producer-property linger.ms=7",
            "produce t --acks 1 -X linger.ms=7 -b h:1",
        ),
    ],
)
def test_a_command_line_is_translated(line, translated):
    check_translated(line, translated)
