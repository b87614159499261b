"""Print the orders in a topic, each at least once, until stopped.

    python examples/consumer.py --bootstrap-servers 127.0.0.1:9092 --group printers orders

The offset is committed after the work: a crash in between repeats an order and loses none. Two
processes with the same group share the partitions. Ctrl-C leaves the group cleanly.
"""

import argparse
import json
import sys

from confluent_kafka import Consumer, KafkaException


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("topic")
    parser.add_argument("--bootstrap-servers", default="127.0.0.1:9092")
    parser.add_argument("--group", default="printers")
    parser.add_argument(
        "--max", type=int, default=0, help="exit after this many orders; 0 for never"
    )
    arguments = parser.parse_args()

    consumer = Consumer(
        {
            "bootstrap.servers": arguments.bootstrap_servers,
            "group.id": arguments.group,
            "auto.offset.reset": "earliest",  # where a new group starts
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([arguments.topic])
    count = 0
    try:
        while not arguments.max or count < arguments.max:
            record = consumer.poll(1.0)
            if record is None:
                continue  # no new record
            if record.error():
                raise KafkaException(record.error())
            order = json.loads(record.value())
            print(f"{order['member']} wants: {order['thing']}", flush=True)  # the work
            consumer.commit(record, asynchronous=False)  # after the work
            count += 1
    except KeyboardInterrupt:
        pass
    finally:
        consumer.close()  # leaves the group at once, without a session timeout
    return 0


if __name__ == "__main__":
    sys.exit(main())
