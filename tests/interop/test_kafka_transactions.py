"""Apache Kafka's transactional programs, with both versions of the protocol, unchanged."""

import json
import re
from collections.abc import Callable

import pytest
from confluent_kafka import Producer

from bench import apache_kafka, topics
from bench.node import Node
from headrace.model.errors import ErrorCode
from tests.fakes.transactional_client import TransactionalClient

pytestmark = pytest.mark.usefixtures("kafka_jars")

# 3.9 uses the first version of the protocol, the newest the second (KIP-890).
VERSIONS = (apache_kafka.LAST_WITH_ZOOKEEPER, apache_kafka.NEWEST)
COUNT = 1_000


def run(program: str, *arguments: str, kafka_version: str = apache_kafka.NEWEST) -> str:
    done = apache_kafka.tool(
        f"org.apache.kafka.tools.{program}", *arguments, kafka_version=kafka_version
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def transactions(node: Node, *arguments: str) -> list[list[str]]:
    """The rows of a table that kafka-transactions prints, without its heading."""
    said = run("TransactionsCommand", "--bootstrap-server", node.address, *arguments)
    return [line.split() for line in said.splitlines()[1:] if line.strip()]


@pytest.mark.parametrize("kafka_version", VERSIONS)
@pytest.mark.parametrize("mode", ["by-partition", "by-group"])
def test_the_transactional_message_copier_copies_exactly_once(
    headrace_node: Node, kafka_version: str, mode: str
) -> None:
    for topic in ("in", "out"):
        topics.create(headrace_node.address, topic)
    producer = Producer({"bootstrap.servers": headrace_node.address})
    for number in range(COUNT):
        producer.produce("in", b"%d" % number)
    assert producer.flush(30) == 0
    group = ("--group-mode", "--use-group-metadata") if mode == "by-group" else ()
    said = run(
        "TransactionalMessageCopier",
        *("--input-topic", "in", "--input-partition", "0", "--output-topic", "out"),
        *("--broker-list", headrace_node.address, "--consumer-group", "copiers"),
        *("--transactional-id", "copier", "--transaction-size", "50"),
        *("--max-messages", str(COUNT), "--enable-random-aborts"),
        *group,
        kafka_version=kafka_version,
    )
    last = json.loads(said.strip().splitlines()[-1])
    assert last["remaining"] == 0, said
    shown = run(
        "consumer.ConsoleConsumer",
        *("--bootstrap-server", headrace_node.address, "--topic", "out"),
        *("--partition", "0", "--offset", "earliest"),
        *("--isolation-level", "read_committed"),
        *("--max-messages", str(COUNT), "--timeout-ms", "20000"),
    )
    assert shown.split() == [str(number) for number in range(COUNT)]
    with TransactionalClient(headrace_node.address) as client:
        found = client.partition_of("out")
        assert found.last_stable_offset == found.high_watermark


def test_kafka_transactions_lists_and_describes(headrace_node: Node) -> None:
    topics.create(headrace_node.address, "t")
    with TransactionalClient(headrace_node.address) as client:
        producer = client.start("tx")
        client.add("tx", producer, "t", 0)
        client.put("tx", producer, "t", b"a")
        rows = transactions(headrace_node, "list", "--transactional-id-pattern", "t.")
        assert rows == [["tx", "1", str(producer[0]), "Ongoing"]]
        assert transactions(headrace_node, "list", "--duration-filter", "3600000") == []
        (row,) = transactions(headrace_node, "describe", "--transactional-id", "tx")
        assert row[:6] == ["1", "tx", str(producer[0]), str(producer[1]), "Ongoing", "60000"]
        assert row[-1] == "t-0"
        (row,) = transactions(
            headrace_node, "describe-producers", "--topic", "t", "--partition", "0"
        )
        assert row[0] == str(producer[0]) and row[-1] == "0"
        client.end("tx", producer, True)


def test_kafka_transactions_finds_and_aborts_a_hanging_transaction(
    start_headrace: Callable[..., Node],
) -> None:
    node = start_headrace({"transaction.partition.verification.enable": "false"})
    topics.create(node.address, "hung")
    place = ("--topic", "hung", "--partition", "0")
    with TransactionalClient(node.address) as client:
        producer = client.start("forgetful")
        assert client.put("forgetful", producer, "hung", b"a") is ErrorCode.NONE
        (row,) = transactions(node, "find-hanging", *place, "--max-transaction-timeout", "0")
        assert row[:3] == ["hung", "0", str(producer[0])]
        transactions(node, "abort", *place, "--start-offset", "0")
        assert client.last_stable_offset("hung") == 2
    assert transactions(node, "find-hanging", *place, "--max-transaction-timeout", "0") == []


def test_kafkas_formatter_reads_the_transaction_log(headrace_node: Node) -> None:
    topics.create(headrace_node.address, "t")
    with TransactionalClient(headrace_node.address) as client:
        producer = client.start("tx")
        client.put("tx", producer, "t", b"a", version=12)
        client.end("tx", producer, True, version=5)
    shown = run(
        "consumer.ConsoleConsumer",
        *("--bootstrap-server", headrace_node.address, "--topic", "__transaction_state"),
        *("--from-beginning", "--max-messages", "4", "--timeout-ms", "20000"),
        *("--formatter", "org.apache.kafka.tools.consumer.TransactionLogMessageFormatter"),
    )
    written, position = [], 0
    while position < len(shown.rstrip()):  # without separators
        one, position = json.JSONDecoder().raw_decode(shown, position)
        written.append(one)
    assert [one["key"]["data"]["transactionalId"] for one in written] == ["tx"] * 4
    assert [one["value"]["data"]["transactionStatus"] for one in written] == [0, 1, 2, 4]
    assert [one["value"]["data"]["producerEpoch"] for one in written] == [0, 0, 1, 1]


def test_kafkas_dump_tool_decodes_the_transaction_log(headrace_node: Node) -> None:
    topics.create(headrace_node.address, "t")
    with TransactionalClient(headrace_node.address) as client:
        producer = client.start("tx")
        client.put("tx", producer, "t", b"a", version=12)
        client.end("tx", producer, False, version=5)
    headrace_node.stop()
    logs = sorted(headrace_node.data.glob("__transaction_state-*/*.log"))
    (log,) = [log for log in logs if log.stat().st_size]
    shown = run("DumpLogSegments", "--transaction-log-decoder", "--files", str(log))
    assert len(re.findall(r'"transactionalId":"tx"', shown)) == 4, shown
