"""``headrace transactions`` with a running broker."""

import itertools

import pytest

from headrace.model.errors import ErrorCode
from headrace.testing import Broker
from tests.fakes.transactional_client import TransactionalClient

NONE = ErrorCode.NONE
_numbers = itertools.count()


@pytest.fixture
def client(broker):
    with TransactionalClient(broker.bootstrap_servers) as client:
        yield client


@pytest.fixture
def name():
    return f"cli-tx-{next(_numbers)}"


def test_transactions_are_listed_by_state_producer_and_pattern(headrace, client, topic, name):
    headrace("topics", "create", topic)
    producer = client.start(name)
    client.add(name, producer, topic, 0)
    row = {
        "transactional_id": name,
        "coordinator": 1,
        "producer_id": producer[0],
        "state": "Ongoing",
    }

    def listed(*options):
        return headrace("transactions", "list", "--format", "json", *options).document

    assert row in listed()
    assert listed("--producer-id", str(producer[0])) == [row]
    assert listed("--state", "Ongoing", "--pattern", name) == [row]
    assert listed("--state", "ongoing", "--pattern", name) == [row]
    assert listed("--state", "Empty", "--pattern", name) == []
    assert listed("--longer-than", "1h", "--pattern", name) == []
    heading, *rows = headrace("transactions", "list", "--pattern", name).lines
    assert heading.split("  ")[0] == "TRANSACTIONAL-ID"
    assert rows[0].split() == [name, "1", str(producer[0]), "Ongoing"]
    client.end(name, producer, False)


def test_a_transaction_is_described_with_its_partitions(headrace, client, topic, name):
    headrace("topics", "create", topic, "-p", "2")
    producer = client.start(name, timeout_ms=12_000)
    client.add(name, producer, topic, 0, 1)
    [described] = headrace("transactions", "describe", name, "--format", "json").document
    assert described["state"] == "Ongoing"
    assert (described["producer_id"], described["producer_epoch"]) == producer
    assert described["timeout_ms"] == 12_000
    assert described["partitions"] == [
        {"topic": topic, "partition": 0},
        {"topic": topic, "partition": 1},
    ]
    assert f"{topic}:0,{topic}:1" in headrace("transactions", "describe", name).out
    client.end(name, producer, False)
    missing = headrace("transactions", "describe", name, name + "-not", status=1)
    assert f"knows transactional ID {name}-not;" in missing.err
    assert name in missing.out


def test_reading_transactions_does_not_create_their_topic(headrace, monkeypatch):
    with Broker() as fresh:
        monkeypatch.setenv("HEADRACE_BOOTSTRAP", fresh.bootstrap_servers)
        assert headrace("transactions", "list", "--format", "json").document == []
        missing = headrace("transactions", "describe", "nope", status=1)
        assert "knows transactional ID nope;" in missing.err
        assert headrace("transactions", "find-hanging", "--format", "json").document == []
        assert headrace("topics", "list", "--format", "json").document == []


def test_wrong_values_are_named(headrace, topic):
    assert (
        "does not know the state Bogus"
        in headrace("transactions", "list", "--state", "Bogus", status=1).err
    )
    bad = headrace("transactions", "list", "--pattern", "(", status=1)
    assert "INVALID_REGULAR_EXPRESSION" in bad.err
    assert "soon" in headrace("transactions", "list", "--longer-than", "soon", status=2).err
    assert topic in headrace("transactions", "find-hanging", topic, status=1).err
    headrace("topics", "create", topic)
    nothing = headrace("transactions", "abort", f"{topic}:0", "--start-offset", "7", status=1)
    assert "no open transaction starts at offset 7" in nothing.err
    vague = headrace("transactions", "abort", topic, "--start-offset", "7", status=2)
    assert "TOPIC:PARTITION" in vague.err


def test_a_hanging_transaction_is_found_and_aborted(headrace, monkeypatch):
    config = {"transaction.partition.verification.enable": False}
    with (
        Broker(config=config, topics={"hung": 2}) as broker,
        TransactionalClient(broker.bootstrap_servers) as client,
    ):
        monkeypatch.setenv("HEADRACE_BOOTSTRAP", broker.bootstrap_servers)
        known = client.start("known")
        client.add("known", known, "hung", 1)
        client.put("known", known, "hung", b"k", partition=1)
        forgetful = client.start("forgetful")
        assert client.put("forgetful", forgetful, "hung", b"a") is NONE

        def found(*options):
            return headrace("transactions", "find-hanging", "--format", "json", *options).document

        assert found() == []  # the producer may just be slow
        [hanging] = found("--older-than", "0s")
        assert (hanging["topic"], hanging["partition"]) == ("hung", 0)
        assert (hanging["producer_id"], hanging["start_offset"]) == (forgetful[0], 0)
        assert found("hung:1", "--older-than", "0s") == []
        refused = headrace(
            "transactions", "abort", "hung:0", "--start-offset", "0", stdin=b"n\n", typed=True,
            status=1,
        )  # fmt: skip
        assert "nothing aborted" in refused.err
        assert client.last_stable_offset("hung") == 0
        headrace("transactions", "abort", "hung:0", "--start-offset", "0")
        assert client.last_stable_offset("hung") == 2
        assert found("--older-than", "0s") == []
        warned = headrace("transactions", "abort", "hung:1", "--start-offset", "0", "--yes")
        assert "the coordinator knows this transaction" in warned.err
