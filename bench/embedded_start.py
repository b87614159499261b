"""A separate program: time ``Broker()`` until a record is acknowledged, in a warm process.

    python -m bench.embedded_start CLIENT ROUNDS     prints the seconds of each round as JSON

``confluent-kafka`` does what a user's test does: create a stock producer, send one record, wait for
its delivery report. ``raw socket`` excludes the client's own start: connect, send one Produce, wait
for its response.
"""

import json
import sys
import time

from confluent_kafka import Message, Producer

from bench.client import Client
from headrace.records.record import Record, build_batch
from headrace.testing import Broker


def with_confluent_kafka(broker: Broker) -> None:
    failures: list[object] = []

    def on_delivery(error: object, _message: Message) -> None:
        failures.append(error)

    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 0})
    producer.produce("first", b"value", on_delivery=on_delivery)
    producer.flush(30)
    assert failures == [None], failures


def with_raw_socket(broker: Broker) -> None:
    client = Client(broker.bootstrap_servers)
    now = int(time.time() * 1000)
    client.produce("first", build_batch([Record(0, now, None, b"value", ())]))
    client.close()


def main() -> None:
    send = {"confluent-kafka": with_confluent_kafka, "raw socket": with_raw_socket}[sys.argv[1]]
    seconds = []
    for round_number in range(int(sys.argv[2]) + 1):
        start = time.perf_counter()
        with Broker(topics=["first"]) as broker:
            send(broker)
            if round_number:
                seconds.append(time.perf_counter() - start)
    print(json.dumps(seconds))


if __name__ == "__main__":
    main()
