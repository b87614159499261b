"""Apache Kafka's consumers, with both group protocols, and its programs for groups."""

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from bench import apache_kafka, topics
from bench.node import Node

pytestmark = pytest.mark.usefixtures("kafka_jars")

VERSIONS = (apache_kafka.LAST_WITH_ZOOKEEPER, apache_kafka.NEWEST)
# The broker decides the heartbeat interval of the new protocol.
QUICK = {
    "group.consumer.heartbeat.interval.ms": "200",
    "group.consumer.min.heartbeat.interval.ms": "200",
}


def run(program: str, *arguments: str, kafka_version: str = apache_kafka.NEWEST) -> str:
    done = apache_kafka.tool(
        f"org.apache.kafka.tools.{program}", *arguments, kafka_version=kafka_version
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def put(node: Node, topic: str, count: int, *, partitions: int = 1, first: int = 0) -> None:
    producer = Producer({"bootstrap.servers": node.address})
    for number in range(first, first + count):
        producer.produce(topic, b"%d" % number, partition=number % partitions)
    assert producer.flush(30) == 0


def table(said: str) -> list[dict[str, str]]:
    """The rows of a table without empty cells."""
    lines = [line.split() for line in said.splitlines() if line.strip()]
    at = next(index for index, line in enumerate(lines) if line[0] in ("GROUP", "TOPIC"))
    return [dict(zip(lines[at], line, strict=False)) for line in lines[at + 1 :]]


def groups(node: Node, *arguments: str, kafka_version: str = apache_kafka.NEWEST) -> str:
    return run(
        "consumer.group.ConsumerGroupCommand",
        *("--bootstrap-server", node.address),
        *arguments,
        kafka_version=kafka_version,
    )


class VerifiableConsumer:
    """A Java consumer in the background that prints its events, one JSON line each."""

    def __init__(self, node: Node, log: Path, *arguments: str) -> None:
        self._log = log
        with log.open("wb") as file:
            self._process = subprocess.Popen(
                apache_kafka.tool_command(
                    "org.apache.kafka.tools.VerifiableConsumer",
                    *("--bootstrap-server", node.address),
                    *arguments,
                ),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
            )

    def events(self, name: str) -> list[dict[str, Any]]:
        whole = [line for line in self._log.read_text().splitlines() if line.endswith("}")]
        return [event for line in whole if (event := json.loads(line))["name"] == name]

    def assigned(self) -> set[int]:
        """The partitions that it owns now."""
        held: set[int] = set()
        for line in self._log.read_text().splitlines():
            event = json.loads(line) if line.endswith("}") else {"name": "unfinished"}
            named = {place["partition"] for place in event.get("partitions", ())}
            if event["name"] == "partitions_assigned":
                held |= named
            elif event["name"] == "partitions_revoked":
                held -= named
        return held

    def consumed(self) -> int:
        return sum(event["count"] for event in self.events("records_consumed"))

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(30)


@contextmanager
def verifiable_consumers(
    node: Node, directory: Path, *each: tuple[str, ...]
) -> Iterator[list[VerifiableConsumer]]:
    started: list[VerifiableConsumer] = []
    try:
        for number, arguments in enumerate(each):
            log = directory / f"consumer-{len(list(directory.glob('consumer-*')))}-{number}.jsonl"
            started.append(VerifiableConsumer(node, log, *arguments))
        yield started
    finally:
        for one in started:
            one.stop()


def wait_until(condition: Callable[[], object], what: str) -> None:
    give_up_at = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < give_up_at, what
        time.sleep(0.1)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_two_java_consumers_share_a_topic_and_one_takes_over(
    start_headrace: Callable[..., Node], tmp_path: Path, protocol: str
) -> None:
    node = start_headrace(QUICK)
    topics.create(node.address, "shared", 6)
    put(node, "shared", 600, partitions=6)
    member = ("--topic", "shared", "--group-id", "g", "--group-protocol", protocol)
    with verifiable_consumers(node, tmp_path, member, member) as (first, second):
        wait_until(
            lambda: len(first.assigned()) == len(second.assigned()) == 3,
            "two consumers, three partitions each",
        )
        assert first.assigned() | second.assigned() == set(range(6))
        wait_until(lambda: first.consumed() + second.consumed() >= 600, "all records")
        described = table(groups(node, "--describe", "--group", "g", "--state"))
        assert (described[0]["STATE"], described[0]["#MEMBERS"]) == ("Stable", "2")
        second.stop()
        wait_until(lambda: len(first.assigned()) == 6, "the partitions of the other consumer")
        put(node, "shared", 60, partitions=6, first=600)
        wait_until(lambda: first.consumed() + second.consumed() >= 660, "the later records")
    rows = table(groups(node, "--describe", "--group", "g", "--offsets"))
    assert {row["PARTITION"]: (row["CURRENT-OFFSET"], row["LAG"]) for row in rows} == {
        str(partition): ("110", "0") for partition in range(6)
    }
    # No record was read twice: both committed before they left.
    assert first.consumed() + second.consumed() == 660


def test_a_java_group_changes_to_the_new_protocol_while_it_runs(
    start_headrace: Callable[..., Node], tmp_path: Path
) -> None:
    node = start_headrace({**QUICK, "group.consumer.migration.policy": "bidirectional"})
    topics.create(node.address, "shared", 4)
    put(node, "shared", 40, partitions=4)
    old, new = (
        ("--topic", "shared", "--group-id", "g", "--group-protocol", protocol)
        for protocol in ("classic", "consumer")
    )
    kind = lambda: groups(node, "--list", "--type")  # noqa: E731 - asked three times
    with verifiable_consumers(node, tmp_path, old) as (first,):
        wait_until(lambda: first.consumed() >= 40, "the classic member reads")
        assert "Classic" in kind()
        with verifiable_consumers(node, tmp_path, new) as (second,):
            wait_until(
                lambda: len(first.assigned()) == len(second.assigned()) == 2, "two of each kind"
            )
            assert "Consumer" in kind()
            put(node, "shared", 40, partitions=4, first=40)
            wait_until(lambda: first.consumed() + second.consumed() >= 80, "both read on")
        wait_until(lambda: len(first.assigned()) == 4, "the new one has left")
        assert "Classic" in kind()


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_the_console_consumer_continues_at_the_committed_offsets(
    headrace_node: Node, protocol: str
) -> None:
    topics.create(headrace_node.address, "numbers")
    read: list[str] = []
    for first in (0, 100):
        put(headrace_node, "numbers", 100, first=first)
        said = run(
            "consumer.ConsoleConsumer",
            *("--bootstrap-server", headrace_node.address, "--topic", "numbers"),
            *("--group", "console", "--from-beginning"),
            *("--command-property", f"group.protocol={protocol}"),
            *("--max-messages", "100", "--timeout-ms", "30000"),
        )
        read += said.split()
    assert read == [str(number) for number in range(200)]


def test_the_console_consumer_subscribes_by_a_pattern_that_the_broker_evaluates(
    headrace_node: Node,
) -> None:
    for topic in ("orders-eu", "orders-us", "invoices"):
        topics.create(headrace_node.address, topic)
        put(headrace_node, topic, 10)
    said = run(
        "consumer.ConsoleConsumer",
        *("--bootstrap-server", headrace_node.address, "--include", "orders-.*"),
        *("--group", "by-pattern", "--from-beginning"),
        *("--command-property", "group.protocol=consumer"),
        *("--max-messages", "20", "--timeout-ms", "30000"),
    )
    assert sorted(said.split()) == sorted([str(number) for number in range(10)] * 2)


@pytest.mark.parametrize("kafka_version", VERSIONS)
def test_kafka_consumer_groups_lists_resets_and_deletes(
    headrace_node: Node, tmp_path: Path, kafka_version: str
) -> None:
    def ask(*arguments: str) -> str:
        return groups(headrace_node, *arguments, kafka_version=kafka_version)

    topics.create(headrace_node.address, "t", 2)
    put(headrace_node, "t", 20, partitions=2)
    run(
        "consumer.ConsoleConsumer",
        *("--bootstrap-server", headrace_node.address, "--topic", "t", "--from-beginning"),
        *("--group", "g", "--max-messages", "20", "--timeout-ms", "30000"),
    )
    assert ask("--list").split() == ["g"]
    assert "Empty" in ask("--list", "--state")

    def committed() -> dict[str, str]:
        rows = table(ask("--describe", "--group", "g"))
        return {row["PARTITION"]: row["CURRENT-OFFSET"] for row in rows}

    assert committed() == {"0": "10", "1": "10"}
    one = ("--group", "g", "--topic", "t:0")
    ask("--reset-offsets", *one, "--to-earliest", "--dry-run")
    assert committed() == {"0": "10", "1": "10"}
    ask("--reset-offsets", *one, "--to-offset", "4", "--execute")
    assert committed() == {"0": "4", "1": "10"}
    ask("--reset-offsets", *one, "--shift-by", "2", "--execute")
    exported = ask("--reset-offsets", *one, "--to-current", "--export", "--dry-run")
    assert exported.split() == ["t,0,6"]
    plan = tmp_path / "plan.csv"
    plan.write_text("t,0,1\nt,1,2\n")
    ask("--reset-offsets", "--group", "g", "--from-file", str(plan), "--execute")
    assert committed() == {"0": "1", "1": "2"}
    said = ask("--delete-offsets", "--group", "g", "--topic", "t:1")
    assert "Successful" in said
    assert committed()["0"] == "1" and committed().get("1", "-") == "-"
    assert "successful" in ask("--delete", "--group", "g")
    assert ask("--list").split() == []


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_kafkas_formatters_print_the_offsets_topic(headrace_node: Node, protocol: str) -> None:
    topics.create(headrace_node.address, "t")
    put(headrace_node, "t", 5)
    run(
        "consumer.ConsoleConsumer",
        *("--bootstrap-server", headrace_node.address, "--topic", "t", "--from-beginning"),
        *("--command-property", f"group.protocol={protocol}"),
        *("--group", "formatted", "--max-messages", "5", "--timeout-ms", "30000"),
    )

    def printed(formatter: str, patience_ms: int) -> list[dict[str, Any]]:
        done = apache_kafka.tool(
            "org.apache.kafka.tools.consumer.ConsoleConsumer",
            *("--bootstrap-server", headrace_node.address, "--topic", "__consumer_offsets"),
            *("--from-beginning", "--timeout-ms", str(patience_ms)),
            *("--formatter", f"org.apache.kafka.tools.consumer.{formatter}"),
        )
        shown, position, found = done.stdout.strip(), 0, []
        while position < len(shown):  # without separators
            one, position = json.JSONDecoder().raw_decode(shown, position)
            found.append(one)
        # The console consumer that prints is in a group, too.
        return [one for one in found if one["key"]["data"]["group"] == "formatted"]

    # The tool ends after this time without a record, its start included: too early if it is slow.
    for patience_ms in (5_000, 20_000, 60_000):
        offsets = [one for one in printed("OffsetsMessageFormatter", patience_ms) if one["value"]]
        if offsets:
            break
    last = offsets[-1]
    assert last["key"]["data"] == {"group": "formatted", "topic": "t", "partition": 0}
    assert last["value"]["data"]["offset"] == 5
    written = printed("GroupMetadataMessageFormatter", patience_ms)
    if protocol == "classic":
        first = written[0]["value"]["data"]
        assert (first["protocolType"], first["members"][0]["clientHost"]) == (
            "consumer",
            "/127.0.0.1",
        )
    else:
        assert written == [], "the new protocol has other record types"
