"""``kafka-replica-verification`` as a ``headrace`` command line."""

import pytest

from headrace.cli.kafka_scripts.translation import translate
from tests.unit.cli.kafka_scripts.command_lines import check_translated


@pytest.mark.parametrize(
    ("line", "translated"),
    [
        (
            "kafka-replica-verification.sh --bootstrap-server h:1 --topics-include orders,users",
            "verify-replicas orders users -b h:1",
        ),
        (
            "kafka-replica-verification.sh --broker-list h:1 --topic-white-list .*",
            "verify-replicas -b h:1",
        ),
        (
            "kafka-run-class.sh kafka.tools.ReplicaVerificationTool --broker-list h:1",
            "verify-replicas -b h:1",
        ),
        (
            "kafka-replica-verification.sh -b h:1 --topics-include 'ord.*|users'",
            "verify-replicas --matching 'ord.*|users' -b h:1",
        ),
        ("kafka-replica-verification.sh --version", "version"),
        ("kafka-replica-verification.sh", "verify-replicas --help"),
    ],
)
def test_a_command_line_is_translated(line, translated):
    check_translated(line, translated)


def test_options_without_effect_are_noted():
    line = ["kafka-replica-verification", "-b", "h:1", "--fetch-size", "1000"]
    assert any("--fetch-size has no effect" in note for note in translate(line).notes)
