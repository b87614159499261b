"""The handler for Python's logging: sends, never blocks, counts what it drops."""

import json
import logging
import logging.handlers
import time
import uuid

import pytest

from headrace.ship import LoggingHandler
from headrace.testing import Broker


@pytest.fixture
def broker():
    with Broker(topics=["logs"]) as running:
        yield running


@pytest.fixture
def logger():
    made = logging.getLogger(f"test.{uuid.uuid4()}")
    made.setLevel(logging.INFO)
    made.propagate = False
    return made


def sent(broker):
    return [json.loads(record.value) for record in broker.records("logs")]


def test_records_arrive_with_their_fields(broker, logger):
    handler = LoggingHandler(broker.bootstrap_servers, "logs")
    logger.addHandler(handler)
    others = logging.handlers.BufferingHandler(100)
    logger.addHandler(others)
    arguments = ["first"]
    logger.info("hello %s", arguments, extra={"order": 17})
    arguments[0] = "changed"
    try:
        raise ValueError("no")
    except ValueError:
        logger.exception("failed")
    handler.flush()
    assert handler.sent == 2 and handler.dropped == 0
    handler.close()
    hello, failed = sent(broker)
    assert hello["message"] == "hello ['first']" and hello["order"] == 17
    assert (hello["level"], hello["logger"]) == ("INFO", logger.name)
    assert "ValueError: no" in failed["exception"]
    assert others.buffer[0].getMessage() == "hello ['changed']"  # the record itself is untouched


def test_a_full_queue_drops_and_counts_without_blocking(logger):
    handler = LoggingHandler(
        "127.0.0.1:1", "logs", queue_size=10, flush_s=0.2, settings={"error_cb": lambda _: None}
    )
    logger.addHandler(handler)
    for number in range(1000):
        logger.info("line %d", number)
    assert handler.dropped >= 900, "it waited for room in the queue"
    handler.close()
    # The report about dropped records may be among the purged records.
    assert handler.dropped in (1000, 1001) and handler.sent == 0
    logger.info("late")
    assert handler.dropped in (1001, 1002)


def test_the_topic_learns_how_many_records_were_dropped(broker, logger):
    handler = LoggingHandler(broker.bootstrap_servers, "logs", queue_size=0)
    logger.addHandler(handler)
    logger.info("there is no room")
    deadline = time.monotonic() + 20
    while not handler.sent:
        assert time.monotonic() < deadline
        handler.flush()
    handler.close()
    (report,) = sent(broker)
    assert report["level"] == "WARNING" and report["dropped"] == 1
