"""``kafka-dump-log`` as a ``headrace`` command line."""

import pytest

from tests.unit.cli.kafka_scripts.command_lines import check_translated


@pytest.mark.parametrize(
    ("line", "translated"),
    [
        ("kafka-dump-log --files a.log,b.log --print-data-log", "dump-log a.log b.log --deep"),
        ("kafka-dump-log --verify-index-only --files a.index", "dump-log a.index --verify-index"),
    ],
)
def test_a_command_line_is_translated(line, translated):
    check_translated(line, translated)
