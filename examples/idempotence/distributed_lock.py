"""Distributed lock: one handler at a time, for an effect that no transaction of ours can hold.

The lock is a row with an end: a holder that dies gives it back by the clock. A holder that only
slept wakes up with a lock that another has, and does not know. So each holder gets a higher number
(the fencing token), shows it with what it does, and the other side refuses a lower one than it has
seen. The lock alone saves work; the token is what makes it safe.
If the other side cannot check tokens, a double is possible when a holder sleeps beyond its time.
"""

import sqlite3
import time
from typing import Any

TABLES = """
CREATE TABLE IF NOT EXISTS locks (name TEXT PRIMARY KEY, token INTEGER, held_until REAL);
CREATE TABLE IF NOT EXISTS seen_tokens (order_id INTEGER PRIMARY KEY, token INTEGER);
CREATE TABLE IF NOT EXISTS shipments (order_id INTEGER);
"""
HELD_S = 30.0


class Busy(Exception):
    """Another holds the lock: deliver the message again later."""


class Fenced(Exception):
    """Our lock ran out, and another has it."""


def acquire(database: sqlite3.Connection, name: str, now: float) -> int:
    """The fencing token, higher than every one before."""
    taken = database.execute(
        "INSERT INTO locks VALUES (?, 1, ?) ON CONFLICT DO UPDATE"
        " SET token = token + 1, held_until = excluded.held_until WHERE held_until <= ?"
        " RETURNING token",
        (name, now + HELD_S, now),
    ).fetchall()
    if not taken:
        raise Busy(name)
    return int(taken[0][0])


def release(database: sqlite3.Connection, name: str, token: int) -> None:
    database.execute("UPDATE locks SET held_until = 0 WHERE name = ? AND token = ?", (name, token))


# -- the other side: a warehouse, which would have a database of its own ----------------------


def is_shipped(warehouse: sqlite3.Connection, order: int, token: int) -> bool:
    """From now on, nobody with a lower token ships this order."""
    with warehouse:
        warehouse.execute("BEGIN IMMEDIATE")
        _check(warehouse, order, token)
        found = warehouse.execute("SELECT 1 FROM shipments WHERE order_id = ?", (order,))
        return found.fetchone() is not None


def ship(warehouse: sqlite3.Connection, order: int, token: int) -> None:
    with warehouse:
        warehouse.execute("BEGIN IMMEDIATE")
        _check(warehouse, order, token)
        warehouse.execute("INSERT INTO shipments VALUES (?)", (order,))


def _check(warehouse: sqlite3.Connection, order: int, token: int) -> None:
    fresh = warehouse.execute(
        "INSERT INTO seen_tokens VALUES (?, ?) ON CONFLICT DO UPDATE"
        " SET token = excluded.token WHERE token <= excluded.token RETURNING token",
        (order, token),
    ).fetchall()
    if not fresh:
        raise Fenced(f"order {order}: {token} is not the newest token")


# -- the handler ------------------------------------------------------------------------------


def handle(database: sqlite3.Connection, message: dict[str, Any]) -> None:
    order, name = message["order"], f"order {message['order']}"
    token = acquire(database, name, time.time())
    try:
        if not is_shipped(database, order, token):
            ship(database, order, token)
    finally:
        release(database, name, token)
