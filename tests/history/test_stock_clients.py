"""The clients that fill a history note every answer, and say what ended them."""

import pytest
from confluent_kafka import OFFSET_INVALID, Message

from headrace.model.ids import TopicPartition
from tests.fakes.waiting import wait_until
from tests.history import stock_clients
from tests.history.checker import anomalies
from tests.history.history import History, Outcome
from tests.history.stock_clients import StockClients, StockProducer

PLACE = TopicPartition("t", 0)


class NoBrokers:
    """A cluster that no client reaches."""

    bootstrap_servers = "127.0.0.1:1"


@pytest.mark.parametrize(("offset", "noted"), [(7, 7), (OFFSET_INVALID, -1)])
def test_an_acknowledgement_counts_with_and_without_an_offset(offset, noted):
    history = History()
    producer = StockProducer(history, NoBrokers.bootstrap_servers, "p", [PLACE])
    sent = history.send("p", PLACE, b"p-0", idempotent=True)
    producer.delivered(sent, None, Message(value=b"p-0", offset=offset))
    assert (sent.outcome, sent.offset) == (Outcome.ACKNOWLEDGED, noted)
    assert producer.acknowledged_count == 1


def test_a_producer_that_ended_is_no_stall():
    clients = StockClients(History(), NoBrokers())
    producer = StockProducer(clients.history, NoBrokers.bootstrap_servers, "p", [])
    clients.producers.append(producer)
    producer.start()  # it fails at once: it has no place to send to
    wait_until(lambda: not producer.thread.is_alive())
    with pytest.raises(ZeroDivisionError):
        clients.wait_progress()


@pytest.fixture
def quick_statistics(monkeypatch):
    monkeypatch.setattr(stock_clients, "STATISTICS_MS", 50)


def start_all(clients):
    clients.produce("p", "t", 1)
    clients.join("classic", "g", ["t"])
    clients.join("consumer", "h", ["t"], protocol="consumer")
    return [*clients.producers, *clients.readers, *clients.members]


@pytest.mark.usefixtures("quick_statistics")
def test_clients_without_brokers_are_replaced_if_the_test_asks_for_it():
    history = History()
    with StockClients(history, NoBrokers(), replaces_lost=True) as clients:
        started = start_all(clients)
        wait_until(lambda: all(client.replaced_count for client in started))
        wait_until(lambda: history.sent[-1].producer != "p")
    assert clients.replaced_count >= len(started)
    values = [sent.value for sent in history.sent]
    assert len(set(values)) == len(values)
    assert {sent.outcome for sent in history.sent} == {Outcome.UNKNOWN}
    assert anomalies(history) == []


def test_only_clients_that_know_no_broker_at_all_are_lost():
    producer = StockProducer(History(), NoBrokers.bootstrap_servers, "p", [PLACE])
    producer.replaces_lost = True
    for _ in range(4):
        producer.told_statistics('{"brokers": {}}')
    producer.told_statistics('{"brokers": {"b": {"nodeid": 2, "state": "DOWN"}}}')
    producer.told_statistics('{"brokers": {"b": {"nodeid": -1, "state": "UP"}}}')
    assert not producer.is_lost
    for _ in range(4):
        producer.told_statistics('{"brokers": {}}')
    assert producer.is_lost


def test_clients_are_not_replaced_unless_the_test_asks_for_it():
    producer = StockProducer(History(), NoBrokers.bootstrap_servers, "p", [PLACE])
    for _ in range(20):
        producer.told_statistics('{"brokers": {}}')
    assert not producer.is_lost
