"""At least once: the offset is committed after the work. Nothing is lost, something may be doubled.

    headrace topics create orders
    python examples/at_least_once.py 127.0.0.1:9092

Copies the lines of the topic ``orders`` to the file ``at-least-once.txt``.

Lost: never, as long as the topic keeps its records longer than this program is away.
Doubled: the records that were written when the process died before their offset was committed, or
when the group gave it up for dead and handed the partition on. Here that is one record for each
death; with a commit for every thousand, up to a thousand. A commit that fails ends the program too.
Good for: nearly everything, with work that may be done twice; ``idempotence/`` shows how.
"""

import argparse
import os
from pathlib import Path

from confluent_kafka import Consumer, KafkaException


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bootstrap", nargs="?", default=os.environ.get("HEADRACE_BOOTSTRAP"))
    parser.add_argument("--output", type=Path, default=Path("at-least-once.txt"))
    arguments = parser.parse_args()

    consumer = Consumer(
        {
            "bootstrap.servers": arguments.bootstrap or "127.0.0.1:9092",
            "group.id": "at-least-once",
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
                output.write(record.value().decode() + "\n")
                output.flush()  # dying after this line doubles one
                consumer.commit(record, asynchronous=False)
        except KeyboardInterrupt:
            pass
        finally:
            consumer.close()


if __name__ == "__main__":
    main()
