"""``kafka-configs`` as a ``headrace`` command line."""

import pytest

from tests.unit.cli.kafka_scripts.command_lines import check_refused, check_translated


@pytest.mark.parametrize(
    ("line", "translated"),
    [
        (
            "kafka-configs.sh --bootstrap-server localhost:9092 --alter --entity-type topics "
            "--entity-name my-topic --add-config max.message.bytes=128000",
            "configs set topic my-topic max.message.bytes=128000 -b localhost:9092",
        ),
        (
            "kafka-configs.sh --bootstrap-server localhost:9092 --alter --entity-type topics "
            "--entity-name my-topic --delete-config max.message.bytes",
            "configs unset topic my-topic max.message.bytes -b localhost:9092",
        ),
        ("kafka-configs.sh", "configs --help"),
        ("kafka-configs --broker-defaults --describe", "configs get broker default --changed"),
        (
            "kafka-configs --entity-type brokers --entity-default --alter --add-config a=1,b=[x,y]",
            "configs set broker default a=1 b=x,y",
        ),
        (
            "kafka-configs --topic t --alter --add-config a=1 --delete-config b,c",
            "configs set topic t a=1 --unset b --unset c",
        ),
        (
            "kafka-configs --topic t --alter --add-config-file new.properties --delete-config b",
            "configs set topic t --file new.properties --unset b",
        ),
        ("kafka-configs.sh --version", "version"),
        ("kafka-configs --broker-logger 1 --describe --all", "configs get broker-logger 1"),
    ],
)
def test_a_command_line_is_translated(line, translated):
    check_translated(line, translated)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "kafka-configs --topic t --alter --add-config a=1 --add-config-file f",
            "give --add-config or --add-config-file",
        ),
        ("kafka-configs.sh --describe --entity-type users", "--entity-type users is not supported"),
    ],
)
def test_a_command_line_without_a_translation_is_refused_with_advice(line, message):
    check_refused(line, message)
