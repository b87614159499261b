"""``kafka-log-dirs`` as a ``headrace`` command line."""

import pytest

from tests.unit.cli.kafka_scripts.command_lines import check_translated


@pytest.mark.parametrize(
    ("line", "translated"),
    [
        ("kafka-log-dirs --describe", "log-dirs --internal --format json"),
        (
            "kafka-log-dirs.sh --bootstrap-server h:1 --describe --broker-list 1,2 "
            "--topic-list t,u",
            "log-dirs t u --broker 1 --broker 2 --format json -b h:1",
        ),
    ],
)
def test_a_command_line_is_translated(line, translated):
    check_translated(line, translated)
