"""``kafka-producer-perf-test`` as a ``headrace`` command line."""

import pytest

from tests.unit.cli.kafka_scripts.command_lines import check_translated


@pytest.mark.parametrize(
    ("line", "translated"),
    [
        (
            "kafka-producer-perf-test --topic t --num-records 10 --record-size 100 "
            "--throughput -1 --producer-props bootstrap.servers=h:1 acks=all linger.ms=1",
            "perf produce t --records 10 --size 100 --acks all -X linger.ms=1 -b h:1",
        ),
        ("kafka-producer-perf-test.sh", "perf produce --help"),
    ],
)
def test_a_command_line_is_translated(line, translated):
    check_translated(line, translated)
