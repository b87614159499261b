"""``kafka-get-offsets`` as a ``headrace`` command line."""

import pytest

from tests.unit.cli.kafka_scripts.command_lines import check_refused, check_translated


@pytest.mark.parametrize(
    ("line", "translated"),
    [
        (
            "kafka-get-offsets --broker-list h:1 --topic t",
            "topics offsets t --time latest --plain -b h:1",
        ),
        (
            "kafka-get-offsets --topic t --partitions 0,2 --time -2",
            "topics offsets t:0,2 --time earliest --plain",
        ),
        ("kafka-get-offsets.sh", "topics offsets --help"),
        ("kafka-get-offsets --time -1", "topics offsets --internal --time latest --plain"),
        ("kafka-get-offsets --exclude-internal-topics", "topics offsets --time latest --plain"),
    ],
)
def test_a_command_line_is_translated(line, translated):
    check_translated(line, translated)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("kafka-get-offsets.sh --topic t --time -4", "tiered"),
    ],
)
def test_a_command_line_without_a_translation_is_refused_with_advice(line, message):
    check_refused(line, message)
