"""At most once: the offset is committed before the work. Nothing is doubled, something may be lost.

    headrace topics create orders
    python examples/at_most_once.py 127.0.0.1:9092

Copies the lines of the topic ``orders`` to the file ``at-most-once.txt``.

Lost: the record whose offset was committed when the process died before it was written. One at
most for each death, because offsets are committed one by one; with a batch, up to the batch.
A commit that fails ends the program too: it may have been done all the same.
Doubled: never by this program. What a producer sent twice is two records, here as everywhere.
Good for: readings and figures of which the next one comes soon, and whatever must not be done
twice and need not be done.
"""

import argparse
import os
from pathlib import Path

from confluent_kafka import Consumer, KafkaException


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bootstrap", nargs="?", default=os.environ.get("HEADRACE_BOOTSTRAP"))
    parser.add_argument("--output", type=Path, default=Path("at-most-once.txt"))
    arguments = parser.parse_args()

    consumer = Consumer(
        {
            "bootstrap.servers": arguments.bootstrap or "127.0.0.1:9092",
            "group.id": "at-most-once",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": 6_000,  # so long the partitions of a dead one wait
        }
    )
    consumer.subscribe(["orders"])
    with arguments.output.open("a") as output:
        try:
            while True:
                record = consumer.poll(1.0)
                if record is None:
                    continue
                if record.error():
                    raise KafkaException(record.error())
                consumer.commit(record, asynchronous=False)
                output.write(record.value().decode() + "\n")  # dying before this line loses one
                output.flush()
        except KeyboardInterrupt:
            pass
        finally:
            consumer.close()


if __name__ == "__main__":
    main()
