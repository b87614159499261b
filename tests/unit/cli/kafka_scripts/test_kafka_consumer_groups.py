"""``kafka-consumer-groups`` as a ``headrace`` command line."""

import pytest

from tests.unit.cli.kafka_scripts.command_lines import check_refused, check_translated


@pytest.mark.parametrize(
    ("line", "translated"),
    [
        (
            "kafka-consumer-groups.sh --bootstrap-server localhost:9092 --describe "
            "--group testGroup",
            "groups describe testGroup -b localhost:9092",
        ),
        (
            "kafka-consumer-groups.sh --list --bootstrap-server localhost:9092",
            "groups list --names -b localhost:9092",
        ),
        ("kafka-consumer-groups --list --state", "groups list"),
        ("kafka-consumer-groups --describe --all-groups", "groups describe --all"),
        ("kafka-consumer-groups --describe --group g --members --verbose", "groups members g"),
        ("kafka-consumer-groups --delete --group g --group h", "groups delete g h"),
        (
            "kafka-consumer-groups --delete-offsets --group g --topic t:0,1",
            "groups delete-offsets g --topic t:0,1",
        ),
        (
            "kafka-consumer-groups --reset-offsets --group g --topic t:0 --to-earliest --execute",
            "groups reset g --topic t:0 --to earliest --execute",
        ),
        (
            "kafka-consumer-groups --reset-offsets --group g --all-topics --to-offset 4 --dry-run",
            "groups reset g --to 4",
        ),
        (
            "kafka-consumer-groups --reset-offsets --group g --all-topics --shift-by -10",
            "groups reset g --shift -10",
        ),
        (
            "kafka-consumer-groups --reset-offsets --group g --by-duration P1DT2H30M",
            "groups reset g --to 1d2h30m",
        ),
        (
            "kafka-consumer-groups --reset-offsets --group g --from-file plan.csv --execute",
            "groups reset g --from-file plan.csv --execute",
        ),
    ],
)
def test_a_command_line_is_translated(line, translated):
    check_translated(line, translated)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("kafka-consumer-groups.sh --describe", "--group is missing"),
        ("kafka-consumer-groups.sh --list --state Stable", "headrace groups list"),
        ("kafka-consumer-groups.sh --describe --group g --state", "headrace groups list"),
        ("kafka-consumer-groups.sh --delete --all-groups", "--group is missing"),
        ("kafka-consumer-groups.sh --group g --reset-offsets --execute", "headrace groups reset"),
        (
            "kafka-consumer-groups.sh --group g --reset-offsets --to-latest --shift-by 1",
            "give one target",
        ),
        ("kafka-consumer-groups.sh --group g --reset-offsets --by-duration 2h", "ISO 8601"),
        ("kafka-consumer-groups.sh --group g --group h --delete-offsets --topic t", "at a time"),
    ],
)
def test_a_command_line_without_a_translation_is_refused_with_advice(line, message):
    check_refused(line, message)
