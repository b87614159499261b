"""The offset stored with the result, in one SQL transaction. No loss, no duplicate.

    python examples/offset_with_result.py 127.0.0.1:9092 --database totals.sqlite

Counts the orders of each member (the record's key) in a table. A second table holds the next
offset of each partition, and one database transaction changes both. The group's own offsets are not
used: at the start, the database says where to continue.

Lost: nothing. Duplicated: nothing, in the database; the guarantee is as strong as the database's.
Two processes at once do no harm: each checks the offset inside the transaction, and a process that
finds its record already counted stops.
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
    return row[0] if row else OFFSET_BEGINNING  # lower than any offset


def count(database: sqlite3.Connection, record: Message) -> None:
    place = (record.topic(), record.partition())
    with database:  # commits at the end, or rolls back
        database.execute("BEGIN IMMEDIATE")
        if next_offset(database, *place) > record.offset():
            raise RuntimeError(f"another process has counted {place} past offset {record.offset()}")
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

    # No implicit transactions: this program begins its own.
    database = sqlite3.connect(arguments.database, isolation_level=None)
    database.executescript(TABLES)
    consumer = Consumer(
        {
            "bootstrap.servers": arguments.bootstrap or "127.0.0.1:9092",
            "group.id": "offset-with-result",  # the client requires one; nothing is committed
            "enable.auto.commit": False,
            "auto.offset.reset": "error",  # stop at a gap, which would be a loss
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
