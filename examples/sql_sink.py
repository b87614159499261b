"""Write a topic to a SQL database, each record once: start this program as often as you like.

    headrace serve
    headrace topics create orders                  # in another terminal
    python examples/sql_sink.py orders orders.db

Needs only Headrace: SQLite is part of Python. Other databases need their driver.
"""

import argparse
import sqlite3
from collections.abc import Sequence

from headrace.ship import SinkRecord, SqlSink
from headrace.ship.sql_sink import Cursor


def write(cursor: Cursor, records: Sequence[SinkRecord]) -> None:
    rows = [(one.partition, one.offset, one.value) for one in records]
    cursor.executemany("insert into records values (?, ?, ?)", rows)


def main(bootstrap_servers: str, topic: str, file: str) -> None:
    connection = sqlite3.connect(file)
    connection.execute("create table if not exists records (part int, pos int, value blob)")
    connection.close()
    sink = SqlSink(
        lambda: sqlite3.connect(file),
        bootstrap_servers,
        topic,
        write,
        paramstyle=sqlite3.paramstyle,
    )
    print(f"{sink.run(once=True)} records written")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Write a topic to a SQLite file.")
    parser.add_argument("--bootstrap-servers", default="127.0.0.1:9092")
    parser.add_argument("topic")
    parser.add_argument("file")
    given = parser.parse_args()
    main(given.bootstrap_servers, given.topic, given.file)
