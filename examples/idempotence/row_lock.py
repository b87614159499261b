"""Row lock: lock the row, check its state, act only if no other delivery has.

    SELECT state FROM orders WHERE id = ? FOR UPDATE

makes a concurrent second delivery wait until the first has committed. Then it sees the new state
and does nothing. SQLite has no row locks: ``BEGIN IMMEDIATE`` locks the whole database, to the same
effect. Without the lock both would read "open", and both would act.
"""

import sqlite3
from typing import Any

TABLES = """
CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, state TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS stock (thing TEXT PRIMARY KEY, count INTEGER NOT NULL);
"""


def handle(database: sqlite3.Connection, message: dict[str, Any]) -> None:
    with database:  # commits at the end, which releases the lock
        database.execute("BEGIN IMMEDIATE")
        row = database.execute("SELECT state FROM orders WHERE id = ?", (message["order"],))
        if row.fetchone() != ("open",):
            return
        database.execute("UPDATE stock SET count = count - 1 WHERE thing = ?", (message["thing"],))
        database.execute("UPDATE orders SET state = 'packed' WHERE id = ?", (message["order"],))
