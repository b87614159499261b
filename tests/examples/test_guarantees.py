"""The examples of delivery guarantees keep their promises when they are killed."""

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
from confluent_kafka import Consumer, KafkaException, TopicPartition

from headrace.broker import handlers
from headrace.model.errors import ErrorCode, Rejected
from headrace.testing import Broker, Record
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
    orders = [
        Record(key=b"member %d" % (number % 7), value=b"order %d" % number, partition=number % 3)
        for number in range(RECORD_COUNT)
    ]
    broker.produce("orders", orders)


def wait_until(condition, process):
    give_up_at = time.monotonic() + LIMIT_S
    while not condition():
        assert process.poll() is None, "the example exited"
        assert time.monotonic() < give_up_at, "the example makes no progress"
        time.sleep(0.001)


@contextmanager
def running(name, *arguments, broker, **options):
    """Run the example, and end it with kill -9 at the end of the block."""
    # Some tests pass the address in the environment, others as an argument.
    environment = {**os.environ, "HEADRACE_BOOTSTRAP": broker.bootstrap_servers}
    with subprocess.Popen(
        [sys.executable, str(EXAMPLES / name), *arguments], env=environment, **options
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def run_with_kills(name, *arguments, broker, group, done_count):
    """Kill the example repeatedly in the middle of its work, then let it finish.

    Every other time the broker is killed first, so that the commit in flight is lost. Otherwise
    the broker would often handle the last request of the example after the kill.
    """
    for kill in range(KILL_COUNT):
        goal = (kill + 1) * RECORD_COUNT // (KILL_COUNT + 1)
        with running(name, *arguments, broker=broker) as process:
            wait_until(lambda goal=goal: done_count() >= goal, process)
            if kill % 2 == 0:
                broker.kill()
        if kill % 2 == 0:
            broker.start()
        expire_members(broker, group)
    with running(name, *arguments, broker=broker) as process:
        all_done = {("orders", number): 0 for number in range(3)}
        wait_until(lambda: broker.group(group).lag_by_partition() == all_done, process)


def expire_members(broker, group):
    """Do not wait for the sessions of killed members to time out."""
    for member in broker.group(group).members():
        broker.group(group).expire(member.member_id)


def lines(path):
    return path.read_text().splitlines() if path.exists() else []


ALL = {f"order {number}" for number in range(RECORD_COUNT)}


def test_at_most_once_duplicates_none_and_loses_at_most_one_per_kill(broker, tmp_path):
    output = tmp_path / "output.txt"
    run_with_kills(
        "at_most_once.py", broker.bootstrap_servers, "--output", str(output),
        broker=broker, group="at-most-once", done_count=lambda: len(lines(output)),
    )  # fmt: skip
    counts = Counter(lines(output))
    assert max(counts.values()) == 1
    assert counts.keys() <= ALL
    assert len(ALL - counts.keys()) <= KILL_COUNT + 1  # the last run is killed as well


def test_at_least_once_loses_none_and_duplicates_at_most_one_per_kill(broker, tmp_path):
    output = tmp_path / "output.txt"
    run_with_kills(
        "at_least_once.py", "--output", str(output),
        broker=broker, group="at-least-once", done_count=lambda: len(lines(output)),
    )  # fmt: skip
    counts = Counter(lines(output))
    assert counts.keys() == ALL
    assert sum(counts.values()) - RECORD_COUNT <= KILL_COUNT


def shouted(broker):
    """The committed records, counted."""
    return Counter(record.value.decode() for record in broker.records("shouted"))


# The isolation level decides when the kill happens: in an open transaction, or after its end.
@pytest.mark.parametrize("isolation_level", ["read_uncommitted", "read_committed"])
def test_exactly_once_loses_none_and_duplicates_none(broker, isolation_level):
    watcher = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": "watcher",
            "isolation.level": isolation_level,
        }
    )

    def written_count():
        try:
            return sum(
                watcher.get_watermark_offsets(TopicPartition("shouted", number), timeout=LIMIT_S)[1]
                for number in range(3)
            )
        except KafkaException:
            return 0  # the client has just lost its broker and has no metadata

    run_with_kills(
        "exactly_once.py", broker.bootstrap_servers,
        broker=broker, group="exactly-once", done_count=written_count,
    )  # fmt: skip
    watcher.close()
    assert shouted(broker) == Counter(one.upper() for one in ALL)


class Trap:
    """Kills the example when the broker handles one request: just before or just after.

    In these moments the order of work and commit makes a difference. A kill at a random time
    would find them once in a thousand runs.
    """

    def __init__(self, api_key, monkeypatch):
        self._api_key = api_key
        self._victim = None
        self._left = 0
        self._is_before = False
        self.has_struck = threading.Event()
        self._find = handlers.handler
        monkeypatch.setattr(handlers, "handler", self._handler)

    def set(self, victim, *, left, is_before):
        """Kill the victim at its next request after ``left`` others."""
        self.has_struck.clear()
        self._left, self._is_before, self._victim = left, is_before, victim

    def _handler(self, api_key):
        handle = self._find(api_key)
        return self._spring(handle) if api_key == self._api_key and self._victim else handle

    def _spring(self, handle):
        def handle_and_kill(broker, context, request):
            self._left -= 1
            if self._left >= 0:
                return handle(broker, context, request)
            if self._is_before:
                self._strike()
                raise Rejected(ErrorCode.UNKNOWN_SERVER_ERROR)  # the client is dead
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


def run_with_traps(name, *arguments, broker, group, trap, left, is_done=lambda: True):
    """Two kills just before the request, two just after it, then an undisturbed run."""
    for is_before in (True, False, True, False):
        with running(name, *arguments, broker=broker) as process:
            trap.set(process, left=left, is_before=is_before)
            assert trap.has_struck.wait(LIMIT_S), "the example never sent that request"
        expire_members(broker, group)
    with running(name, *arguments, broker=broker) as process:
        all_done = {("orders", number): 0 for number in range(3)}
        wait_until(lambda: broker.group(group).lag_by_partition() == all_done, process)
        wait_until(is_done, process)


def test_at_most_once_loses_one_per_kill_after_its_commit(broker, tmp_path, monkeypatch):
    output = tmp_path / "output.txt"
    run_with_traps(
        "at_most_once.py", "--output", str(output),
        broker=broker, group="at-most-once", left=40,
        trap=Trap(ApiKey.OFFSET_COMMIT, monkeypatch),
        is_done=lambda: len(lines(output)) >= RECORD_COUNT - 2,
    )  # fmt: skip
    counts = Counter(lines(output))
    assert max(counts.values()) == 1
    assert len(ALL - counts.keys()) == 2


def test_at_least_once_duplicates_one_per_kill_before_its_commit(broker, tmp_path, monkeypatch):
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
    assert shouted(broker) == Counter(one.upper() for one in ALL)


def test_an_offset_stored_with_the_result_loses_none_and_duplicates_none(broker, tmp_path):
    path = tmp_path / "totals.sqlite"
    # Created here, so that the test can query it before the example has started.
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
    """``strict_order.py send``, with input from the test."""

    def __init__(self, process):
        self._process = process

    def feed(self, some):
        self._process.stdin.write("".join(f"{line}\n" for line in some))
        self._process.stdin.flush()

    def end(self):
        self._process.stdin.close()
        return self._process.wait(LIMIT_S)


def test_strict_order_survives_kills_of_sender_reader_and_broker(tmp_path):
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
                sender.feed(ledger[1000:1500])  # the sender is killed with these lines in flight
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
