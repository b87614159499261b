"""One-time token: the sender gets a token in advance, and the handler that consumes it may act.

The sender asks for a token (``issue``) and puts it into the message. The handler consumes it and
acts in one transaction: if the process dies in between, the token is valid for the next delivery.
This also helps if the sender sends twice, such as a form that is submitted twice: the messages
differ, the token is the same.
"""

import secrets
import sqlite3
from typing import Any

TABLES = """
CREATE TABLE IF NOT EXISTS tokens (token TEXT PRIMARY KEY);
CREATE TABLE IF NOT EXISTS accounts (id TEXT PRIMARY KEY, balance INTEGER NOT NULL);
"""


def issue(database: sqlite3.Connection) -> str:
    token = secrets.token_hex(16)
    database.execute("INSERT INTO tokens VALUES (?)", (token,))
    return token


def handle(database: sqlite3.Connection, message: dict[str, Any]) -> None:
    with database:
        database.execute("BEGIN IMMEDIATE")
        used = database.execute("DELETE FROM tokens WHERE token = ?", (message["token"],))
        if used.rowcount == 1:
            database.execute(
                "UPDATE accounts SET balance = balance + ? WHERE id = ?",
                (message["amount"], message["account"]),
            )
