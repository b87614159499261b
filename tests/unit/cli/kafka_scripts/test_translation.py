"""Which script a command line names, and which scripts have no command."""

import shlex

import pytest

from headrace.cli.kafka_scripts.syntax import Translation
from headrace.cli.kafka_scripts.translation import translate
from tests.unit.cli.kafka_scripts.command_lines import check_refused, check_translated


@pytest.mark.parametrize(
    ("line", "translated"),
    [
        ("topics --create --topic X", "topics create X"),
        ("topics --describe --topic X", "topics describe X"),
        ("topics --list", "topics list --names"),
        ("topics --delete --topic a,b --if-exists", "topics delete a b --yes --if-exists"),
        ("produce --broker-list h:1 --topic X", "produce X -b h:1"),
        ("consume X --zookeeper localhost:2181", "consume X"),
        ("consume X --consumer-property group.id=g", "consume X --group g"),
        (
            "configs --describe --entity-type brokers --entity-name 1",
            "configs get broker 1 --changed",
        ),
        ("groups --describe --group g", "groups describe g"),
    ],
)
def test_a_headrace_noun_takes_the_options_of_its_script(line, translated):
    check_translated(line, translated)


def test_a_script_is_known_by_its_path():
    check_translated("/opt/kafka/bin/kafka-topics.sh --list", "topics list --names")


@pytest.mark.parametrize(
    ("line", "translated"),
    [
        (
            "kafka-run-class.sh kafka.tools.GetOffsetShell --topic t --time -1",
            "topics offsets t --time latest --plain",
        ),
        (
            "kafka-run-class kafka.tools.DumpLogSegments --deep-iteration --files a.log",
            "dump-log a.log --deep",
        ),
        (
            "kafka-run-class.sh kafka.admin.ShutdownBroker --zookeeper z:2181 --broker 1 "
            "--num.retries 3 --retry.interval.ms 60",
            "brokers shutdown 1 --num-retries 3 --retry-interval-ms 60",
        ),
    ],
)
def test_a_java_class_is_known_by_its_script(line, translated):
    check_translated(line, translated)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("zookeeper-security-migration.sh --zookeeper.acl secure", "no Headrace command"),
        ("kafka-acls.sh --list", "no Headrace command ('headrace --help'"),
        ("connect-standalone.sh worker.properties", "no Headrace command"),
        ("kafka-run-class.sh kafka.Kafka", "Java class"),
        ("kafka-run-class.sh", "class is missing"),
        ("kafka-storage.sh random-uuid", "no formatting"),
        ("kafka-e2e-latency.sh localhost:9092 orders 1000 1 100", "headrace perf latency"),
        ("kafka-groups.sh --list", "headrace groups list"),
    ],
)
def test_a_script_without_a_command_is_refused_with_advice(line, message):
    check_refused(line, message)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "topics create orders --config a=1 -b h:1",
        "topics list --names",
        "consume orders --from-beginning --partition 0 --offset 4 --group g",
        "produce orders --headers a=b",
        "configs set topic orders a=1 --unset b",
        "serve server.properties -daemon",
        "nonsense --topic t",
    ],
)
def test_a_headrace_command_line_is_unchanged(line):
    assert translate(shlex.split(line)) == Translation(shlex.split(line))
