"""One-time token: a token is handed out before, and whoever uses it up may act.

The sender asks for a token (``issue``) and puts it into the message. Using it up and acting are one
transaction: if the process dies in between, the token is still good for the next delivery.
Also helps where the sender itself sends twice, such as a form that is submitted twice: the two
messages are different ones, the token is the same.
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
