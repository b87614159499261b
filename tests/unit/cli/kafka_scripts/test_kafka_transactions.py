"""``kafka-transactions`` as a ``headrace`` command line."""

import pytest

from tests.unit.cli.kafka_scripts.command_lines import check_refused, check_translated


@pytest.mark.parametrize(
    ("line", "translated"),
    [
        (
            "kafka-transactions.sh --bootstrap-server localhost:9092 list --duration-filter 9000",
            "transactions list --longer-than 9000ms -b localhost:9092",
        ),
        ("kafka-transactions describe --transactional-id tx", "transactions describe tx"),
        (
            "kafka-transactions find-hanging --topic t --partition 0 --max-transaction-timeout 20",
            "transactions find-hanging t:0 --older-than 20m",
        ),
        (
            "kafka-transactions abort --topic t --partition 0 --start-offset 7",
            "transactions abort t:0 --start-offset 7 --yes",
        ),
    ],
)
def test_a_command_line_is_translated(line, translated):
    check_translated(line, translated)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("kafka-transactions.sh describe-producers --topic t --partition 0", "find-hanging"),
        ("kafka-transactions.sh abort --topic t --partition 0", "--start-offset"),
    ],
)
def test_a_command_line_without_a_translation_is_refused_with_advice(line, message):
    check_refused(line, message)
