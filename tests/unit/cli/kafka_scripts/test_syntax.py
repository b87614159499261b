"""What all scripts share: how the broker is named, client settings, and notes on old options."""

import shlex

import pytest

from headrace.cli.kafka_scripts.translation import translate
from tests.unit.cli.kafka_scripts.command_lines import check_refused


@pytest.mark.parametrize(
    ("line", "note"),
    [
        ("kafka-topics --list --zookeeper localhost:2181", "--zookeeper was removed"),
        ("kafka-console-producer --topic t --broker-list h:1", "--broker-list is now"),
        (
            "kafka-console-producer --topic t --producer-property serializer.class=x.Y",
            "serializer.class has no effect",
        ),
        ("kafka-topics --alter --topic t --config a=1", "headrace configs set"),
    ],
)
def test_a_replaced_option_gets_a_note(line, note):
    assert any(note in text for text in translate(shlex.split(line)).notes)


def test_a_zookeeper_on_another_machine_is_refused_with_the_whole_command():
    check_refused(
        "kafka-topics.sh --delete --topic t --zookeeper prod-1:2181,prod-2:2181/kafka",
        "'headrace topics delete t --yes -b HOST:9092'",
    )
