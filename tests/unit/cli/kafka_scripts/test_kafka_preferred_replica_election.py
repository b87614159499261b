"""``kafka-preferred-replica-election`` as a ``headrace`` command line."""

import pytest

from tests.unit.cli.kafka_scripts.command_lines import check_refused, check_translated


@pytest.mark.parametrize(
    ("line", "translated"),
    [
        ("kafka-preferred-replica-election.sh --zookeeper localhost:2181", "elect-leaders --all"),
        (
            "kafka-preferred-replica-election.sh --zookeeper z:2181 "
            "--path-to-json-file topic-partition-list.json",
            "elect-leaders --path-to-json-file topic-partition-list.json",
        ),
        (
            "kafka-preferred-replica-election.sh --bootstrap-server h:1",
            "elect-leaders --all -b h:1",
        ),
        ("kafka-preferred-replica-election.sh", "elect-leaders --help"),
    ],
)
def test_a_command_line_is_translated(line, translated):
    check_translated(line, translated)


@pytest.mark.parametrize(
    ("line", "message"),
    [("kafka-preferred-replica-election.sh --path-to-json-file", "needs a value")],
)
def test_a_command_line_without_a_translation_is_refused_with_advice(line, message):
    check_refused(line, message)
