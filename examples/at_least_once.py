"""At least once: commit the offset after the work. Loses no record, may process one twice.

    headrace topics create orders
    python examples/at_least_once.py 127.0.0.1:9092

Copies the lines of the topic ``orders`` to the file ``at-least-once.txt``.

Lost: nothing, as long as the topic keeps its records longer than this program is down.
Duplicated: a record that was written when the process died, or when the group expired the member
and reassigned its partition, before the offset was committed. Here that is one record per failure;
with one commit per thousand records, up to a thousand. A failed commit ends the program too.
Use it for: nearly everything, with work that may be done twice; ``idempotence/`` shows how.
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
                output.write(record.value().decode() + "\n")
                output.flush()  # a crash after this line duplicates the record
                consumer.commit(record, asynchronous=False)
        except KeyboardInterrupt:
            pass
        finally:
            consumer.close()


if __name__ == "__main__":
    main()
