"""Unique key: the database refuses the second row of the same order.

The key must come with the message (an order number, or topic, partition and offset); the handler
must not generate it. The whole effect is in the row, or in the same transaction.
"""

import sqlite3
from typing import Any

TABLES = "CREATE TABLE IF NOT EXISTS payments (order_id INTEGER PRIMARY KEY, amount INTEGER);"


def handle(database: sqlite3.Connection, message: dict[str, Any]) -> None:
    database.execute(
        "INSERT INTO payments VALUES (?, ?) ON CONFLICT DO NOTHING",
        (message["order"], message["amount"]),
    )
