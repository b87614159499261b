"""Each pattern of idempotent processing, with every message delivered several times."""

import json
import runpy
import sqlite3
import threading
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import pytest

PATTERNS = Path(__file__).parents[2] / "examples" / "idempotence"
LIMIT_S = 60

pytestmark = pytest.mark.slow


class Case(NamedTuple):
    messages: list[dict]
    query: str  # returns the effect
    effect_once: list[tuple]
    setup: str = ""


ACCOUNTS = "INSERT INTO accounts (id, balance) VALUES ('alice', 100), ('bob', 100);"
BALANCES = "SELECT id, balance FROM accounts ORDER BY id"
CASES = {
    "read": Case(
        [{"account": "alice"}, {"account": "bob"}],
        BALANCES, [("alice", 100), ("bob", 100)],
        ACCOUNTS,
    ),
    "delete": Case(
        [{"session": 17}, {"session": 18}],
        "SELECT id FROM sessions", [(19,)],
        "INSERT INTO sessions VALUES (17), (18), (19);",
    ),
    "unique_key": Case(
        [{"order": 1, "amount": 10}, {"order": 2, "amount": 20}],
        "SELECT order_id, amount FROM payments ORDER BY order_id", [(1, 10), (2, 20)],
    ),
    "one_time_token": Case(
        [
            {"token": "t1", "account": "alice", "amount": 10},
            {"token": "t2", "account": "alice", "amount": 5},
        ],
        BALANCES, [("alice", 115), ("bob", 100)],
        ACCOUNTS + "INSERT INTO tokens VALUES ('t1'), ('t2');",
    ),
    "row_lock": Case(
        [{"order": 1, "thing": "lamp"}, {"order": 2, "thing": "lamp"}],
        "SELECT count FROM stock", [(8,)],
        "INSERT INTO orders VALUES (1, 'open'), (2, 'open');"
        "INSERT INTO stock VALUES ('lamp', 10);",
    ),
    "version": Case(
        [
            {"account": "alice", "amount": 10, "version": 1},
            {"account": "bob", "amount": -5, "version": 1},
        ],
        "SELECT id, balance, version FROM accounts ORDER BY id",
        [("alice", 110, 2), ("bob", 95, 2)],
        "INSERT INTO accounts VALUES ('alice', 100, 1), ('bob', 100, 1);",
    ),
    "distributed_lock": Case(
        [{"order": 1}, {"order": 2}],
        "SELECT order_id FROM shipments ORDER BY order_id", [(1,), (2,)],
    ),
    "select_then_insert": Case(
        [
            {"id": "m1", "account": "alice", "amount": 10},
            {"id": "m2", "account": "alice", "amount": 10},
        ],
        BALANCES, [("alice", 120), ("bob", 100)],
        ACCOUNTS,
    ),
}  # fmt: skip


class Handler:
    """One example with its own database."""

    def __init__(self, name, path):
        self.names = runpy.run_path(str(PATTERNS / f"{name}.py"))
        self._path = path
        with closing(self.connect()) as database:
            database.executescript(self.names["TABLES"] + CASES[name].setup)

    def connect(self):
        return sqlite3.connect(self._path, timeout=LIMIT_S, isolation_level=None)

    def deliver(self, database, message):
        """Deliver a message, and again while the handler is busy: nothing is committed then."""
        busy = self.names.get("Busy", ())
        while True:
            try:
                return self.names["handle"](database, message)
            except busy:
                continue


@pytest.fixture(params=CASES)
def name(request):
    return request.param


@pytest.fixture
def handler(name, tmp_path):
    return Handler(name, tmp_path / "database.sqlite")


def effect(handler, name):
    with closing(handler.connect()) as database:
        return database.execute(CASES[name].query).fetchall()


def test_every_pattern_has_a_case():
    assert {path.stem for path in PATTERNS.glob("*.py")} == CASES.keys()


def test_a_message_sent_twice_and_read_twice_takes_effect_once(
    name, handler, headrace_broker, headrace_topic
):
    sent = [json.dumps(message) for message in CASES[name].messages]
    # A producer without idempotence sends twice after a timeout.
    headrace_broker.produce(headrace_topic, [*sent, *sent])
    with closing(handler.connect()) as database:
        for _ in range(2):  # a consumer that died before its commit reads again
            records = headrace_broker.records(headrace_topic)
            assert len(records) == 2 * len(sent)
            for record in records:
                handler.deliver(database, json.loads(record.value))
    assert effect(handler, name) == CASES[name].effect_once


def test_a_message_delivered_twice_at_the_same_time_takes_effect_once(name, handler):
    both_ready = threading.Barrier(2)
    failures = []

    def consume():
        try:
            with closing(handler.connect()) as database:
                for message in CASES[name].messages:
                    both_ready.wait(LIMIT_S)
                    handler.deliver(database, message)
        except Exception as failure:  # noqa: BLE001 - checked on the test's own thread
            failures.append(failure)

    threads = [threading.Thread(target=consume) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
    assert failures == []
    assert effect(handler, name) == CASES[name].effect_once


def test_a_token_is_valid_once(tmp_path):
    handler = Handler("one_time_token", tmp_path / "database.sqlite")
    with closing(handler.connect()) as database:
        token = handler.names["issue"](database)
        for _ in range(2):
            handler.deliver(database, {"token": token, "account": "bob", "amount": 1})
        handler.deliver(database, {"token": "made up", "account": "bob", "amount": 1})
    assert effect(handler, "one_time_token") == [("alice", 100), ("bob", 101)]


def test_a_holder_that_paused_past_its_time_is_fenced_by_the_next_one(tmp_path):
    handler = Handler("distributed_lock", tmp_path / "database.sqlite")
    names = handler.names
    with closing(handler.connect()) as database:
        paused = names["acquire"](database, "order 1", 0.0)
        with pytest.raises(names["Busy"]):
            names["acquire"](database, "order 1", names["HELD_S"] - 1)
        assert not names["is_shipped"](database, 1, paused)  # and now the holder pauses
        handler.deliver(database, {"order": 1})
        with pytest.raises(names["Fenced"]):
            names["ship"](database, 1, paused)
        names["release"](database, "order 1", paused)  # releases nothing that another holder has
    assert effect(handler, "distributed_lock") == [(1,)]
