"""Distributed lock: one handler at a time, for an effect outside of our own transactions.

The lock is a row that expires: the clock releases the lock of a dead holder. A holder that only
paused resumes with a lock that another holder has, and does not know. So each holder gets a higher
number (the fencing token) and sends it with its request, and the other side refuses a token lower
than the highest it has seen. The lock only saves work; the token makes it safe.
If the other side cannot check tokens, a holder that pauses past its time can cause a duplicate.
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
    """Another handler holds the lock: deliver the message again later."""


class Fenced(Exception):
    """Our lock expired, and another handler has it."""


def acquire(database: sqlite3.Connection, name: str, now: float) -> int:
    """Return the fencing token, which is higher than all earlier ones."""
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


# -- the other side: a warehouse, which would have its own database --------------------------


def is_shipped(warehouse: sqlite3.Connection, order: int, token: int) -> bool:
    """From now on, a handler with a lower token cannot ship this order."""
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
        raise Fenced(f"order {order}: {token} is not the highest token")


# -- the handler ------------------------------------------------------------------------------


def handle(database: sqlite3.Connection, message: dict[str, Any]) -> None:
    order, name = message["order"], f"order {message['order']}"
    token = acquire(database, name, time.time())
    try:
        if not is_shipped(database, order, token):
            ship(database, order, token)
    finally:
        release(database, name, token)
