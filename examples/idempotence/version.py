"""Version or condition: the update names the version that it was made for, and increments it.

The message carries the version that its sender saw. The second delivery finds a higher version and
changes no row, and so does a message that another one overtook. It is one statement and holds no
lock. The two cases look alike: if an overtaken change must not be lost silently, tell its sender.
"""

import sqlite3
from typing import Any

TABLES = """
CREATE TABLE IF NOT EXISTS accounts (
    id TEXT PRIMARY KEY, balance INTEGER NOT NULL, version INTEGER NOT NULL);
"""


def handle(database: sqlite3.Connection, message: dict[str, Any]) -> bool:
    """Return whether this delivery changed the account."""
    changed = database.execute(
        "UPDATE accounts SET balance = balance + ?, version = version + 1"
        " WHERE id = ? AND version = ?",
        (message["amount"], message["account"], message["version"]),
    )
    return changed.rowcount == 1
