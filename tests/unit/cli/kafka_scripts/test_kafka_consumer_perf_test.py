"""``kafka-consumer-perf-test`` as a ``headrace`` command line."""

import pytest

from tests.unit.cli.kafka_scripts.command_lines import check_translated


@pytest.mark.parametrize(
    ("line", "translated"),
    [
        (
            "kafka-consumer-perf-test --bootstrap-server localhost:9092 --topic t --messages 10",
            "perf consume t --records 10 -b localhost:9092",
        ),
    ],
)
def test_a_command_line_is_translated(line, translated):
    check_translated(line, translated)
