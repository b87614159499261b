"""Send orders to a topic and check every delivery report.

    python examples/producer.py --bootstrap-servers 127.0.0.1:9092 orders

Any Kafka client works; this one is confluent-kafka. With idempotence and acks=all each record
arrives once and in order while this process lives. ``delivered`` learns of records that could not
be sent; ``produce`` raises if the client knows already that the topic does not exist.
"""

import argparse
import json
import sys

from confluent_kafka import KafkaError, KafkaException, Message, Producer

ORDERS = [("alice", "book"), ("bob", "pens"), ("alice", "lamp"), ("carol", "ink")]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("topic")
    parser.add_argument("--bootstrap-servers", default="127.0.0.1:9092")
    arguments = parser.parse_args()

    failures = []

    def failed(value: str, error: object) -> None:
        failures.append(error)
        print(f"not sent: {value}: {error}", file=sys.stderr)

    def delivered(error: KafkaError | None, record: Message) -> None:
        if error is not None:
            failed(record.value().decode(), error)
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
        value = json.dumps({"member": member, "thing": thing})
        try:
            # Records with the same key go to one partition: each member's orders stay in order.
            producer.produce(arguments.topic, key=member, value=value, on_delivery=delivered)
        except KafkaException as refused:
            failed(value, refused)
        producer.poll(0)  # calls delivered() for finished records
    unsent = producer.flush(60)
    return 1 if failures or unsent else 0


if __name__ == "__main__":
    sys.exit(main())
