"""Read: a query changes nothing, so running it twice is running it once.

The message asks for a balance. A second delivery costs time and returns the same balance, or a
newer one. It is harmless only without side effects: a counter of queries is a write.
"""

import sqlite3
from typing import Any

TABLES = "CREATE TABLE IF NOT EXISTS accounts (id TEXT PRIMARY KEY, balance INTEGER NOT NULL);"


def handle(database: sqlite3.Connection, message: dict[str, Any]) -> int:
    row = database.execute("SELECT balance FROM accounts WHERE id = ?", (message["account"],))
    return int(row.fetchone()[0])
