"""Read: a question changes nothing, so asking twice is asking once.

The message asks for a balance. A second delivery costs time and gives the same answer, or a newer
one. It stays harmless only while nothing is hidden in it: a counter of questions is a write.
"""

import sqlite3
from typing import Any

TABLES = "CREATE TABLE IF NOT EXISTS accounts (id TEXT PRIMARY KEY, balance INTEGER NOT NULL);"


def handle(database: sqlite3.Connection, message: dict[str, Any]) -> int:
    row = database.execute("SELECT balance FROM accounts WHERE id = ?", (message["account"],))
    return int(row.fetchone()[0])
