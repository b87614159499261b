"""At most once: commit the offset before the work. Processes no record twice, may lose one.

    headrace topics create orders
    python examples/at_most_once.py 127.0.0.1:9092

Copies the lines of the topic ``orders`` to the file ``at-most-once.txt``.

Lost: the record whose offset was committed when the process died before it was written. At most
one per failure, because offsets are committed one by one; with batches, up to one batch.
A failed commit ends the program too: the broker may have stored it.
Duplicated: nothing by this program. A producer that sends twice creates two records.
Use it for: measurements that are soon replaced by the next one, and for work that must not be done
twice and may be skipped.
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
            "session.timeout.ms": 6_000,  # then the group reassigns the partitions of a dead member
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
                # A crash before this line loses the record.
                output.write(record.value().decode() + "\n")
                output.flush()
        except KeyboardInterrupt:
            pass
        finally:
            consumer.close()


if __name__ == "__main__":
    main()
