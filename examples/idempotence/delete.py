"""Delete: a row can be deleted only once, so deleting twice is deleting once.

This holds for "delete session 17", which names the row. "Delete the oldest session" deletes
another one the second time. The name must not be reused either: if session 17 can be created again,
a late second delivery deletes the new one.
"""

import sqlite3
from typing import Any

TABLES = "CREATE TABLE IF NOT EXISTS sessions (id INTEGER PRIMARY KEY);"


def handle(database: sqlite3.Connection, message: dict[str, Any]) -> None:
    database.execute("DELETE FROM sessions WHERE id = ?", (message["session"],))
