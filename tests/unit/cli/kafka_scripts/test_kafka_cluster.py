"""``kafka-cluster`` as a ``headrace`` command line."""

import pytest

from tests.unit.cli.kafka_scripts.command_lines import check_refused, check_translated


@pytest.mark.parametrize(
    ("line", "translated"),
    [
        ("kafka-cluster.sh cluster-id --bootstrap-server h:1", "cluster id -b h:1"),
        ("kafka-cluster.sh cluster-id --config c", "cluster id --client-config c"),
        ("kafka-cluster.sh", "cluster --help"),
    ],
)
def test_a_command_line_is_translated(line, translated):
    check_translated(line, translated)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("kafka-cluster.sh unregister", "unregister is not supported"),
        ("kafka-cluster.sh --bootstrap-server h:1", "no action"),
    ],
)
def test_a_command_line_without_a_translation_is_refused_with_advice(line, message):
    check_refused(line, message)
