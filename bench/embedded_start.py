"""A separate program: time the test kit until a record is acknowledged, in a warm process.

    python -m bench.embedded_start WHAT ROUNDS     prints the seconds of each round as JSON

``confluent-kafka`` does what a user's test does with ``Broker()``: create a stock producer, send
one record, wait for its delivery report. ``cluster`` does the same with ``Cluster(brokers=3)`` and
a topic with three replicas. ``raw socket`` excludes the client's own start: connect, send one
Produce to ``Broker()``, wait for its response.
"""

import json
import subprocess
import sys
import time
from pathlib import Path

from confluent_kafka import Message, Producer

from bench.client import Client
from headrace.records.record import Record, build_batch
from headrace.testing import Broker, Cluster

_PROJECT = Path(__file__).parent.parent


def measure(what: str, rounds: int) -> list[float]:
    """Run this program. Return the seconds of each round."""
    command = [sys.executable, "-m", "bench.embedded_start", what, str(rounds)]
    done = subprocess.run(command, cwd=_PROJECT, stdout=subprocess.PIPE, check=True, text=True)
    seconds: list[float] = json.loads(done.stdout)
    return seconds


def with_confluent_kafka(broker: Broker | Cluster) -> None:
    failures: list[object] = []

    def on_delivery(error: object, _message: Message) -> None:
        failures.append(error)

    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 0})
    producer.produce("first", b"value", on_delivery=on_delivery)
    producer.flush(30)
    assert failures == [None], failures


def with_raw_socket(broker: Broker | Cluster) -> None:
    client = Client(broker.bootstrap_servers)
    now = int(time.time() * 1000)
    client.produce("first", build_batch([Record(0, now, None, b"value", ())]))
    client.close()


def main() -> None:
    what = sys.argv[1]
    kind: type[Broker] | type[Cluster] = Cluster if what == "cluster" else Broker
    send = with_raw_socket if what == "raw socket" else with_confluent_kafka
    seconds = []
    for round_number in range(int(sys.argv[2]) + 1):
        start = time.perf_counter()
        with kind(topics=["first"]) as broker:
            send(broker)
            if round_number:
                seconds.append(time.perf_counter() - start)
    print(json.dumps(seconds))


if __name__ == "__main__":
    main()
