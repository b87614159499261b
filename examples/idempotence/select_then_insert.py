"""Select then insert: check whether the message was handled; if not, handle it and record that.

The three steps are one transaction that excludes others from the start (``BEGIN IMMEDIATE`` here;
SERIALIZABLE elsewhere). With a weaker one, two concurrent deliveries both check, both find nothing,
and both act. Then the recorded ID needs a unique key, as it has here.
IDs may be deleted when no second delivery is possible any more.
"""

import sqlite3
from typing import Any

TABLES = """
CREATE TABLE IF NOT EXISTS handled (message_id TEXT PRIMARY KEY);
CREATE TABLE IF NOT EXISTS accounts (id TEXT PRIMARY KEY, balance INTEGER NOT NULL);
"""


def handle(database: sqlite3.Connection, message: dict[str, Any]) -> None:
    with database:
        database.execute("BEGIN IMMEDIATE")
        seen = database.execute("SELECT 1 FROM handled WHERE message_id = ?", (message["id"],))
        if seen.fetchone() is not None:
            return
        database.execute(
            "UPDATE accounts SET balance = balance + ? WHERE id = ?",
            (message["amount"], message["account"]),
        )
        database.execute("INSERT INTO handled VALUES (?)", (message["id"],))
