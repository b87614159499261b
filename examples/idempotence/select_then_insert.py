"""Select then insert: look whether the message was handled, and if not, handle it and note it.

Looking, acting and noting are one transaction that shuts others out while it looks (``BEGIN
IMMEDIATE`` here; SERIALIZABLE elsewhere). With less, two deliveries at the same time both look,
both find nothing, and both act: there a unique key on the note has to stand behind it, as here.
Notes may be forgotten when no second delivery can come any more.
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
