"""``kafka-broker-api-versions`` as a ``headrace`` command line."""

import pytest

from tests.unit.cli.kafka_scripts.command_lines import check_refused, check_translated


@pytest.mark.parametrize(
    ("line", "translated"),
    [
        (
            "kafka-broker-api-versions.sh --bootstrap-server h:1",
            "brokers api-versions --plain -b h:1",
        ),
        ("kafka-broker-api-versions.sh", "brokers api-versions --help"),
    ],
)
def test_a_command_line_is_translated(line, translated):
    check_translated(line, translated)


@pytest.mark.parametrize(
    ("line", "message"),
    [("kafka-broker-api-versions.sh --versions", "headrace brokers api-versions --help")],
)
def test_a_command_line_without_a_translation_is_refused_with_advice(line, message):
    check_refused(line, message)
