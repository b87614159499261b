"""Strict order: one partition, acks=all, idempotence, one sender and one reader at a time.

    headrace topics create ledger
    python examples/strict_order.py send 127.0.0.1:9092 < ledger.txt
    python examples/strict_order.py read 127.0.0.1:9092 --output copy.txt

``send`` writes each line of its input as a record; ``read`` writes each record as a line. The
output has all lines of the input, each once and in order. Sender, reader and broker may be killed
and started again with the same input or output.

Lost or out of order: nothing. With acks=all, a new leader has every acknowledged record. With
idempotence, a repeated batch keeps its place or is recognized. With the gapless guarantee, no
record is sent after one that failed; ``send`` exits with an error, and the next run continues.
Duplicated: nothing, because both know where to continue: ``send`` asks the partition how many lines
it has, ``read`` counts the lines of its output. Two senders at once would break that: start one
only when the last has ended. A lock on the output keeps out a second reader.
The price: one partition means one file, one leader and one reader. If only the records of one
account must stay in order, use the account as key and as many partitions as you like.
"""

import argparse
import fcntl
import os
import sys
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

TOPIC, PARTITION = "ledger", 0


def send(bootstrap: str) -> int:
    watcher = Consumer({"bootstrap.servers": bootstrap, "group.id": "strict-order"})
    # There is no other writer and no compaction: offsets are line numbers.
    _, sent_end = watcher.get_watermark_offsets(TopicPartition(TOPIC, PARTITION), timeout=30)
    watcher.close()

    failures: list[KafkaError] = []

    def delivered(error: KafkaError | None, _record: Message) -> None:
        if error is not None:
            failures.append(error)

    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "acks": "all",
            "enable.idempotence": True,
            "enable.gapless.guarantee": True,
            "linger.ms": 5,
        }
    )
    for number, line in enumerate(sys.stdin):
        if failures:
            break
        if number >= sent_end:
            value = line.rstrip("\n")
            producer.produce(TOPIC, value, partition=PARTITION, on_delivery=delivered)
            producer.poll(0)  # calls delivered() for finished records
    producer.flush()
    if failures:
        print(f"not sent: {failures[0]}", file=sys.stderr)
    return 1 if failures else 0


def read(bootstrap: str, path: Path) -> int:
    with path.open("ab+") as output:
        fcntl.flock(output, fcntl.LOCK_EX | fcntl.LOCK_NB)
        output.seek(0)
        written = output.read()
        whole_end = written.rfind(b"\n") + 1
        output.truncate(whole_end)  # a line that a kill cut off is written again
        consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "strict-order",  # the client requires one; nothing is committed
                "enable.auto.commit": False,
                "auto.offset.reset": "error",  # stop at a gap, which would be a loss
            }
        )
        consumer.assign([TopicPartition(TOPIC, PARTITION, written.count(b"\n"))])
        try:
            while True:
                record = consumer.poll(1.0)
                if record is None:
                    continue
                if record.error():
                    raise KafkaException(record.error())
                output.write(record.value() + b"\n")
                output.flush()
        except KeyboardInterrupt:
            return 0
        finally:
            consumer.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["send", "read"])
    parser.add_argument("bootstrap", nargs="?", default=os.environ.get("HEADRACE_BOOTSTRAP"))
    parser.add_argument("--output", type=Path, default=Path("copy.txt"))
    arguments = parser.parse_args()
    bootstrap = arguments.bootstrap or "127.0.0.1:9092"
    return send(bootstrap) if arguments.what == "send" else read(bootstrap, arguments.output)


if __name__ == "__main__":
    sys.exit(main())
