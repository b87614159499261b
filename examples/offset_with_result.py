"""The offset kept with the result, in one SQL transaction. Nothing is lost or doubled.

    python examples/offset_with_result.py 127.0.0.1:9092 --database totals.sqlite

Counts the orders of each member (the record's key) in a table. The next offset of each partition
stands in a table beside it, and both change in one transaction of the database. The group's own
offsets are not used at all: at the start, the database says where to go on.

Lost: nothing. Doubled: nothing, in the database; it is as safe as the database is.
Two processes at once do no harm: each looks at the offset inside the transaction, and the one that
finds its record counted already stops.
"""

import argparse
import os
import sqlite3
import sys

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, Message, TopicPartition

TABLES = """
CREATE TABLE IF NOT EXISTS totals (member TEXT PRIMARY KEY, orders INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS positions (
    topic TEXT, partition INTEGER, next_offset INTEGER NOT NULL, PRIMARY KEY (topic, partition));
"""


def next_offset(database: sqlite3.Connection, topic: str, partition: int) -> int:
    row = database.execute(
        "SELECT next_offset FROM positions WHERE topic = ? AND partition = ?", (topic, partition)
    ).fetchone()
    return row[0] if row else OFFSET_BEGINNING  # which is less than any offset


def count(database: sqlite3.Connection, record: Message) -> None:
    place = (record.topic(), record.partition())
    with database:  # commits at the end, or rolls back
        database.execute("BEGIN IMMEDIATE")
        if next_offset(database, *place) > record.offset():
            raise RuntimeError(f"another process has counted {place} beyond {record.offset()}")
        database.execute(
            "INSERT INTO totals VALUES (?, 1) ON CONFLICT DO UPDATE SET orders = orders + 1",
            (record.key().decode(),),
        )
        database.execute(
            "INSERT INTO positions VALUES (?, ?, ?)"
            " ON CONFLICT DO UPDATE SET next_offset = excluded.next_offset",
            (*place, record.offset() + 1),
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bootstrap", nargs="?", default=os.environ.get("HEADRACE_BOOTSTRAP"))
    parser.add_argument("--database", default="totals.sqlite")
    arguments = parser.parse_args()

    # Transactions begin where this program says so.
    database = sqlite3.connect(arguments.database, isolation_level=None)
    database.executescript(TABLES)
    consumer = Consumer(
        {
            "bootstrap.servers": arguments.bootstrap or "127.0.0.1:9092",
            "group.id": "offset-with-result",  # the client wants one; nothing is committed to it
            "enable.auto.commit": False,
            "auto.offset.reset": "error",  # a gap would be a loss: better to stop and say so
        }
    )
    partitions = consumer.list_topics("orders", timeout=30).topics["orders"].partitions
    consumer.assign(
        [TopicPartition("orders", one, next_offset(database, "orders", one)) for one in partitions]
    )
    try:
        while True:
            record = consumer.poll(1.0)
            if record is None:
                continue
            if record.error():
                raise KafkaException(record.error())
            count(database, record)
    except KeyboardInterrupt:
        return 0
    finally:
        consumer.close()
        database.close()


if __name__ == "__main__":
    sys.exit(main())
