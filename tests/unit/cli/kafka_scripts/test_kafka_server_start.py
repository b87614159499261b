"""``kafka-server-start`` as a ``headrace`` command line."""

import pytest

from tests.unit.cli.kafka_scripts.command_lines import check_translated


@pytest.mark.parametrize(
    ("line", "translated"),
    [
        ("kafka-server-start.sh config/server.properties", "serve config/server.properties"),
        ("kafka-server-start.sh config/server-1.properties", "serve config/server-1.properties"),
        (
            "kafka-server-start.sh -daemon config/server.properties",
            "serve config/server.properties -daemon",
        ),
        (
            "kafka-server-start config/server.properties --override broker.id=2",
            "serve config/server.properties -X broker.id=2",
        ),
        ("kafka-server-start.sh", "serve --help"),
    ],
)
def test_a_command_line_is_translated(line, translated):
    check_translated(line, translated)
