"""Version or condition: the update names the version it was made for, and raises it.

The message carries the version that its sender saw. The second delivery finds a higher one and
changes no row; so does a message that was overtaken by another. One statement, no lock held.
The two cases look alike: where an overtaken change must not be dropped in silence, tell its sender.
"""

import sqlite3
from typing import Any

TABLES = """
CREATE TABLE IF NOT EXISTS accounts (
    id TEXT PRIMARY KEY, balance INTEGER NOT NULL, version INTEGER NOT NULL);
"""


def handle(database: sqlite3.Connection, message: dict[str, Any]) -> bool:
    """Whether it was this delivery that changed the account."""
    changed = database.execute(
        "UPDATE accounts SET balance = balance + ?, version = version + 1"
        " WHERE id = ? AND version = ?",
        (message["amount"], message["account"], message["version"]),
    )
    return changed.rowcount == 1
