"""A program and its tests, with a broker inside the tests: pytest examples/test_with_a_broker.py

There is nothing to start and nothing to import: Headrace brings the fixtures.
"""

import json

import pytest
from confluent_kafka import Consumer, TopicPartition


class OrderBook:
    """The program under test: reads orders and counts them by member."""

    def __init__(self, bootstrap_servers: str, topic: str) -> None:
        self.counts: dict[str, int] = {}
        self._consumer = Consumer(
            {"bootstrap.servers": bootstrap_servers, "group.id": "order-book"}
        )
        self._consumer.assign([TopicPartition(topic, 0, 0)])

    def read(self, count: int) -> None:
        for record in self._consumer.consume(count, timeout=10):
            member = json.loads(record.value())["member"]
            self.counts[member] = self.counts.get(member, 0) + 1

    def close(self) -> None:
        self._consumer.close()


@pytest.fixture
def order_book(headrace_broker, headrace_topic):
    book = OrderBook(headrace_broker.bootstrap_servers, headrace_topic)
    yield book
    book.close()


def send(broker, topic, *members):
    broker.produce(topic, [json.dumps({"member": member}) for member in members])


def test_orders_are_counted_by_member(headrace_broker, headrace_topic, order_book):
    send(headrace_broker, headrace_topic, "alice", "bob", "alice")
    order_book.read(3)
    assert order_book.counts == {"alice": 2, "bob": 1}


def test_each_test_has_its_own_topic(headrace_broker, headrace_topic, order_book):
    send(headrace_broker, headrace_topic, "carol")
    order_book.read(1)
    assert order_book.counts == {"carol": 1}


def test_the_book_continues_after_a_restart_of_the_broker(
    headrace_broker, headrace_topic, order_book
):
    send(headrace_broker, headrace_topic, "alice")
    order_book.read(1)
    headrace_broker.restart()
    send(headrace_broker, headrace_topic, "alice")
    order_book.read(1)
    assert order_book.counts == {"alice": 2}
