"""Row lock: lock the row, look at its state, act only if nobody has.

    SELECT state FROM orders WHERE id = ? FOR UPDATE

makes a second delivery at the same time wait until the first has committed; then it sees the new
state and does nothing. SQLite has no lock for a row: ``BEGIN IMMEDIATE`` locks the whole database,
to the same end. Without the lock both would read "open", and both would act.
"""

import sqlite3
from typing import Any

TABLES = """
CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, state TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS stock (thing TEXT PRIMARY KEY, count INTEGER NOT NULL);
"""


def handle(database: sqlite3.Connection, message: dict[str, Any]) -> None:
    with database:  # commits at the end, which gives the lock back
        database.execute("BEGIN IMMEDIATE")
        row = database.execute("SELECT state FROM orders WHERE id = ?", (message["order"],))
        if row.fetchone() != ("open",):
            return
        database.execute("UPDATE stock SET count = count - 1 WHERE thing = ?", (message["thing"],))
        database.execute("UPDATE orders SET state = 'packed' WHERE id = ?", (message["order"],))
