"""``kafka-delete-records`` as a ``headrace`` command line."""

import pytest

from tests.unit.cli.kafka_scripts.command_lines import check_translated


@pytest.mark.parametrize(
    ("line", "translated"),
    [
        (
            "kafka-delete-records --bootstrap-server h:1 --offset-json-file f.json",
            "topics delete-records --file f.json --yes -b h:1",
        ),
    ],
)
def test_a_command_line_is_translated(line, translated):
    check_translated(line, translated)
