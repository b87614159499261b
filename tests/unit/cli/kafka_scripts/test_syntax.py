"""What all scripts share: how the broker is named, client settings, and notes on old options."""

import shlex

import pytest

from headrace.cli.kafka_scripts.translation import translate


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


@pytest.mark.parametrize(
    "line",
    [
        "kafka-topics.sh --delete --topic t",
        "consume t",
        "kafka-preferred-replica-election.sh",
        "kafka-run-class.sh kafka.admin.ShutdownBroker --broker 1",
    ],
)
def test_a_zookeeper_is_kept_to_be_asked_for_the_brokers(line):
    zookeeper = "prod-1:2181,prod-2:2181/kafka"
    translated = translate([*shlex.split(line), "--zookeeper", zookeeper])
    assert translated.zookeeper == zookeeper and "-b" not in translated.arguments
    translated = translate([*shlex.split(line), "--zookeeper", zookeeper, "-b", "h:1"])
    assert translated.zookeeper is None and translated.arguments[-2:] == ["-b", "h:1"]
