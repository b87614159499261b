"""The clients that fill a history note every answer, and say what ended them."""

import pytest
from confluent_kafka import OFFSET_INVALID, Message

from headrace.model.ids import TopicPartition
from tests.fakes.waiting import wait_until
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
