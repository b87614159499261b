"""``kafka-leader-election`` as a ``headrace`` command line."""

import pytest

from tests.unit.cli.kafka_scripts.command_lines import check_refused, check_translated


@pytest.mark.parametrize(
    ("line", "translated"),
    [
        (
            "kafka-leader-election.sh --bootstrap-server h:1 --election-type preferred "
            "--all-topic-partitions",
            "elect-leaders --type preferred --all -b h:1",
        ),
        (
            "kafka-leader-election.sh -b h:1 --election-type UNCLEAN --topic t --partition 1",
            "elect-leaders --type unclean --topic t --partition 1 -b h:1",
        ),
        (
            "kafka-leader-election.sh --election-type preferred --path-to-json-file p.json "
            "--admin.config a",
            "elect-leaders --type preferred --path-to-json-file p.json --client-config a",
        ),
        ("kafka-leader-election.sh", "elect-leaders --help"),
    ],
)
def test_a_command_line_is_translated(line, translated):
    check_translated(line, translated)


@pytest.mark.parametrize(
    ("line", "message"),
    [("kafka-leader-election.sh --all", "headrace elect-leaders --help")],
)
def test_a_command_line_without_a_translation_is_refused_with_advice(line, message):
    check_refused(line, message)
