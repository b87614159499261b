"""``kafka-reassign-partitions`` as a ``headrace`` command line."""

import pytest

from headrace.cli.kafka_scripts.translation import translate
from tests.unit.cli.kafka_scripts.command_lines import check_refused, check_translated

SCRIPT = "kafka-reassign-partitions.sh"


@pytest.mark.parametrize(
    ("line", "translated"),
    [
        (
            "--bootstrap-server h:1 --generate --topics-to-move-json-file t.json --broker-list 1,2",
            "reassign generate --topics-file t.json --brokers 1,2 -b h:1",
        ),
        (
            "--bootstrap-server h:1 --execute --reassignment-json-file m.json --throttle 1000 "
            "--additional",
            "reassign execute --file m.json --throttle 1000 --no-wait --additional -b h:1",
        ),
        (
            "-b h:1 --execute --reassignment-json-file m --disallow-replication-factor-change",
            "reassign execute --file m --no-wait --disallow-replication-factor-change -b h:1",
        ),
        (
            "-b h:1 --verify --reassignment-json-file m.json --preserve-throttles",
            "reassign verify --file m.json --preserve-throttles -b h:1",
        ),
        (
            "-b h:1 --cancel --reassignment-json-file m.json",
            "reassign cancel --file m.json -b h:1",
        ),
        ("-b h:1 --list", "reassign list -b h:1"),
        ("", "reassign --help"),
    ],
)
def test_a_command_line_is_translated(line, translated):
    check_translated(f"{SCRIPT} {line}".strip(), translated)


def test_the_form_with_zookeeper_is_understood():
    line = (
        f"{SCRIPT} --zookeeper zk:2181 --execute --reassignment-json-file partitions-to-move.json"
    )
    translated = translate(line.split())
    assert translated.zookeeper == "zk:2181"
    assert translated.arguments == [
        "reassign", "execute", "--file", "partitions-to-move.json", "--no-wait",
    ]  # fmt: skip
    check_translated(
        "kafka-run-class.sh kafka.admin.ReassignPartitionsCommand -b h:1 --list",
        "reassign list -b h:1",
    )


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("-b h:1", "give one of --generate"),
        ("-b h:1 --execute", "--reassignment-json-file is missing"),
        ("-b h:1 --generate --broker-list 1", "are needed"),
    ],
)
def test_a_command_line_is_refused(line, said):
    check_refused(f"{SCRIPT} {line}", said)
