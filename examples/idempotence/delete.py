"""Delete: what is gone is gone, so deleting twice is deleting once.

It holds for "delete the session 17", which names what goes. "Delete the oldest session" deletes
another one the second time. Nor may the name be given anew: if session 17 can be made again, a
late second delivery deletes the new one.
"""

import sqlite3
from typing import Any

TABLES = "CREATE TABLE IF NOT EXISTS sessions (id INTEGER PRIMARY KEY);"


def handle(database: sqlite3.Connection, message: dict[str, Any]) -> None:
    database.execute("DELETE FROM sessions WHERE id = ?", (message["session"],))
