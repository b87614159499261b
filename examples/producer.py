"""Sends orders to a topic and looks at every delivery report.

    python examples/producer.py --bootstrap-servers 127.0.0.1:9092 orders

Any Kafka client does; this one is confluent-kafka. Idempotence and acks=all make a record arrive
once and in order as long as this process lives; what could not be sent is told to ``delivered``,
and nowhere else.
"""

import argparse
import json
import sys

from confluent_kafka import KafkaError, Message, Producer

ORDERS = [("alice", "book"), ("bob", "pens"), ("alice", "lamp"), ("carol", "ink")]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("topic")
    parser.add_argument("--bootstrap-servers", default="127.0.0.1:9092")
    arguments = parser.parse_args()

    failures = []

    def delivered(error: KafkaError | None, record: Message) -> None:
        if error is not None:
            failures.append(error)
            print(f"not sent: {record.value()!r}: {error}", file=sys.stderr)
        else:
            key = record.key().decode()
            print(f"{key} -> partition {record.partition()}, offset {record.offset()}")

    producer = Producer(
        {
            "bootstrap.servers": arguments.bootstrap_servers,
            "enable.idempotence": True,  # implies acks=all
            "delivery.timeout.ms": 30_000,
        }
    )
    for member, thing in ORDERS:
        # One key, one partition: the orders of one member stay in their order.
        producer.produce(
            arguments.topic,
            key=member,
            value=json.dumps({"member": member, "thing": thing}),
            on_delivery=delivered,
        )
        producer.poll(0)  # delivery reports come here
    unsent = producer.flush(60)
    return 1 if failures or unsent else 0


if __name__ == "__main__":
    sys.exit(main())
