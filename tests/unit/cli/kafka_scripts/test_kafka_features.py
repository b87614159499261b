"""``kafka-features`` as a ``headrace`` command line."""

import pytest

from tests.unit.cli.kafka_scripts.command_lines import check_refused, check_translated


@pytest.mark.parametrize(
    ("line", "translated"),
    [
        ("kafka-features.sh --bootstrap-server h:1 describe", "features describe -b h:1"),
        (
            "kafka-features.sh upgrade --feature transaction.version=2,group.version=1 --dry-run",
            "features upgrade transaction.version=2 group.version=1 --dry-run",
        ),
        (
            "kafka-features.sh downgrade --feature transaction.version=1 --unsafe",
            "features downgrade transaction.version=1 --unsafe",
        ),
        ("kafka-features.sh disable --feature group.version", "features downgrade group.version=0"),
        ("kafka-features.sh", "features --help"),
    ],
)
def test_a_command_line_is_translated(line, translated):
    check_translated(line, translated)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("kafka-features.sh upgrade", "with --feature"),
        ("kafka-features.sh version-mapping", "expected describe"),
    ],
)
def test_a_command_line_without_a_translation_is_refused_with_advice(line, message):
    check_refused(line, message)
