"""The examples of the guarantees keep what their first lines promise when they are killed."""

import inspect
import os
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from headrace.broker import dispatch, handlers
from headrace.model.errors import ErrorCode, Rejected
from headrace.testing import Broker
from headrace.wire.api import ApiKey

EXAMPLES = Path(__file__).parents[2] / "examples"
RECORD_COUNT = 600
KILL_COUNT = 3
LIMIT_S = 90

pytestmark = pytest.mark.slow


@pytest.fixture
def broker():
    with Broker(topics={"orders": 3, "shouted": 3}) as broker:
        send_orders(broker)
        yield broker


def send_orders(broker):
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for number in range(RECORD_COUNT):
        producer.produce("orders", f"order {number}", f"member {number % 7}", partition=number % 3)
    assert producer.flush(30) == 0


def wait_until(condition, process):
    give_up_at = time.monotonic() + LIMIT_S
    while not condition():
        assert process.poll() is None, "the example ended by itself"
        assert time.monotonic() < give_up_at, "the example does not get on"
        time.sleep(0.001)


@contextmanager
def running(name, *arguments, broker, **options):
    """The example until the end of the block, where it is killed as by kill -9."""
    # Some are told the address in their environment, others as an argument.
    environment = {**os.environ, "HEADRACE_BOOTSTRAP": broker.bootstrap_servers}
    with subprocess.Popen(
        [sys.executable, str(EXAMPLES / name), *arguments], env=environment, **options
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def run_with_kills(name, *arguments, broker, group, done_count):
    """Kill the example again and again in the middle of its work, then let it finish.

    Every other time the broker dies just before, so that what the example is about to commit
    never is: without that, its last request would often be carried out after its death.
    """
    for kill in range(KILL_COUNT):
        goal = (kill + 1) * RECORD_COUNT // (KILL_COUNT + 1)
        with running(name, *arguments, broker=broker) as process:
            wait_until(lambda goal=goal: done_count() >= goal, process)
            if kill % 2 == 0:
                broker.kill()
        if kill % 2 == 0:
            broker.start()
        bury(broker, group)
    with running(name, *arguments, broker=broker) as process:
        all_done = {("orders", number): 0 for number in range(3)}
        wait_until(lambda: broker.group(group).lag_by_partition() == all_done, process)


def bury(broker, group):
    """The dead keep their partitions until their session ends: not for the test to wait for."""
    for member in broker.group(group).members():
        broker.group(group).expire(member.member_id)


def lines(path):
    return path.read_text().splitlines() if path.exists() else []


ALL = {f"order {number}" for number in range(RECORD_COUNT)}


def test_at_most_once_doubles_none_and_loses_one_at_most_for_each_death(broker, tmp_path):
    output = tmp_path / "output.txt"
    run_with_kills(
        "at_most_once.py", broker.bootstrap_servers, "--output", str(output),
        broker=broker, group="at-most-once", done_count=lambda: len(lines(output)),
    )  # fmt: skip
    counts = Counter(lines(output))
    assert max(counts.values()) == 1
    assert counts.keys() <= ALL
    assert len(ALL - counts.keys()) <= KILL_COUNT + 1  # the last run is killed as well


def test_at_least_once_loses_none_and_doubles_one_at_most_for_each_death(broker, tmp_path):
    output = tmp_path / "output.txt"
    run_with_kills(
        "at_least_once.py", "--output", str(output),
        broker=broker, group="at-least-once", done_count=lambda: len(lines(output)),
    )  # fmt: skip
    counts = Counter(lines(output))
    assert counts.keys() == ALL
    assert sum(counts.values()) - RECORD_COUNT <= KILL_COUNT


def read_committed(broker, topic):
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": "judge",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
    )
    consumer.assign([TopicPartition(topic, number, 0) for number in range(3)])
    values, ended = [], set()
    while len(ended) < 3:
        record = consumer.poll(LIMIT_S)
        assert record is not None, "a partition does not end: is a transaction left open?"
        if record.error():
            ended.add(record.partition())
        else:
            values.append(record.value().decode())
    consumer.close()
    return values


# What is watched decides where the kill hits: while a transaction is open, or just after its end.
@pytest.mark.parametrize("watched", ["read_uncommitted", "read_committed"])
def test_exactly_once_loses_none_and_doubles_none(broker, watched):
    looker = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": "looker",
            "isolation.level": watched,
        }
    )

    def written_count():
        try:
            return sum(
                looker.get_watermark_offsets(TopicPartition("shouted", number), timeout=LIMIT_S)[1]
                for number in range(3)
            )
        except KafkaException:
            return 0  # a client that has just lost its broker knows no partitions for a moment

    run_with_kills(
        "exactly_once.py", broker.bootstrap_servers,
        broker=broker, group="exactly-once", done_count=written_count,
    )  # fmt: skip
    looker.close()
    assert Counter(read_committed(broker, "shouted")) == Counter(one.upper() for one in ALL)


class Trap:
    """Kills the example at the broker's end of one request: just before, or just after its effect.

    These are the moments that tell the orders of work and commit apart. A kill by the clock would
    find them once in a thousand times.
    """

    def __init__(self, api_key, monkeypatch):
        self._api_key = api_key
        self._victim = None
        self._left = 0
        self._is_before = False
        self.has_struck = threading.Event()
        monkeypatch.setattr(dispatch, "handler", self._handler)

    def set(self, victim, *, left, is_before):
        """The request after ``left`` others is the last of the victim."""
        self.has_struck.clear()
        self._left, self._is_before, self._victim = left, is_before, victim

    def _handler(self, api_key):
        handle = handlers.handler(api_key)
        return self._spring(handle) if api_key == self._api_key and self._victim else handle

    def _spring(self, handle):
        def handle_and_kill(broker, context, request):
            self._left -= 1
            if self._left >= 0:
                return handle(broker, context, request)
            if self._is_before:
                self._strike()
                raise Rejected(ErrorCode.UNKNOWN_SERVER_ERROR)  # to nobody
            answer = handle(broker, context, request)
            if inspect.isawaitable(answer):
                return self._strike_after(answer)
            self._strike()
            return answer

        return handle_and_kill

    async def _strike_after(self, pending):
        answer = await pending
        self._strike()
        return answer

    def _strike(self):
        if self._victim is not None:
            self._victim.kill()
            self._victim = None
            self.has_struck.set()


def run_with_traps(name, *arguments, broker, group, trap, left):
    """Two deaths just before the request, two just after it, then an undisturbed run."""
    for is_before in (True, False, True, False):
        with running(name, *arguments, broker=broker) as process:
            trap.set(process, left=left, is_before=is_before)
            assert trap.has_struck.wait(LIMIT_S), "the example never asked for that"
        bury(broker, group)
    with running(name, *arguments, broker=broker) as process:
        all_done = {("orders", number): 0 for number in range(3)}
        wait_until(lambda: broker.group(group).lag_by_partition() == all_done, process)
        time.sleep(0.2)  # what follows the last commit


def test_at_most_once_loses_one_for_each_death_after_its_commit(broker, tmp_path, monkeypatch):
    output = tmp_path / "output.txt"
    run_with_traps(
        "at_most_once.py", "--output", str(output),
        broker=broker, group="at-most-once", left=40,
        trap=Trap(ApiKey.OFFSET_COMMIT, monkeypatch),
    )  # fmt: skip
    counts = Counter(lines(output))
    assert max(counts.values()) == 1
    assert len(ALL - counts.keys()) == 2


def test_at_least_once_doubles_one_for_each_death_before_its_commit(broker, tmp_path, monkeypatch):
    output = tmp_path / "output.txt"
    run_with_traps(
        "at_least_once.py", "--output", str(output),
        broker=broker, group="at-least-once", left=40,
        trap=Trap(ApiKey.OFFSET_COMMIT, monkeypatch),
    )  # fmt: skip
    counts = Counter(lines(output))
    assert counts.keys() == ALL
    assert sum(counts.values()) - RECORD_COUNT == 2


def test_exactly_once_holds_on_both_sides_of_the_end_of_a_transaction(broker, monkeypatch):
    run_with_traps(
        "exactly_once.py",
        broker=broker, group="exactly-once", left=0,
        trap=Trap(ApiKey.END_TXN, monkeypatch),
    )  # fmt: skip
    assert Counter(read_committed(broker, "shouted")) == Counter(one.upper() for one in ALL)


def test_the_offset_kept_with_the_result_loses_none_and_doubles_none(broker, tmp_path):
    path = tmp_path / "totals.sqlite"
    # Made here, so that there is something to look at before the example has started.
    database = sqlite3.connect(path, timeout=LIMIT_S)
    database.execute("CREATE TABLE totals (member TEXT PRIMARY KEY, orders INTEGER NOT NULL)")

    def counted():
        return database.execute("SELECT coalesce(sum(orders), 0) FROM totals").fetchone()[0]

    for goal in (150, 300, 450, RECORD_COUNT):
        with running("offset_with_result.py", "--database", str(path), broker=broker) as process:
            wait_until(lambda goal=goal: counted() >= goal, process)
    wanted = Counter(f"member {number % 7}" for number in range(RECORD_COUNT))
    assert dict(database.execute("SELECT member, orders FROM totals")) == wanted
    positions = database.execute("SELECT next_offset FROM positions").fetchall()
    assert positions == [(RECORD_COUNT // 3,)] * 3
    database.close()


class Sender:
    """strict_order.py send, fed by hand."""

    def __init__(self, process):
        self._process = process

    def feed(self, some):
        self._process.stdin.write("".join(f"{line}\n" for line in some))
        self._process.stdin.flush()

    def end(self):
        self._process.stdin.close()
        return self._process.wait(LIMIT_S)


def test_strict_order_survives_the_death_of_sender_reader_and_broker(tmp_path):
    output = tmp_path / "copy.txt"
    ledger = [f"line {number}" for number in range(4000)]

    def reading(broker):
        return running("strict_order.py", "read", "--output", str(output), broker=broker)

    def sending(broker):
        return running("strict_order.py", "send", broker=broker, stdin=subprocess.PIPE, text=True)

    with Broker(topics=["ledger"], process=True) as broker:
        with reading(broker) as reader:
            with sending(broker) as process:
                sender = Sender(process)
                sender.feed(ledger[:1000])
                wait_until(lambda: len(lines(output)) > 300, reader)
                sender.feed(ledger[1000:1500])  # and it is killed with these in its hands
            with sending(broker) as process:
                sender = Sender(process)
                sender.feed(ledger[:2000])
                wait_until(lambda: len(lines(output)) > 1500, reader)
                sender.feed(ledger[2000:3000])
                broker.kill()
                sender.feed(ledger[3000:3500])
                broker.start()
                wait_until(lambda: len(lines(output)) > 3000, reader)
                reader.kill()
                sender.feed(ledger[3500:])
                assert sender.end() == 0
        with reading(broker) as reader:
            wait_until(lambda: len(lines(output)) >= len(ledger), reader)
    assert lines(output) == ledger
