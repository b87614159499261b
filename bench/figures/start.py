"""How soon a broker serves clients: a new process, an embedded broker, a killed one."""

import subprocess
from pathlib import Path

from bench import embedded_start as embedded
from bench import load
from bench.node import Node
from bench.report import Row, ratio_at_most, value_at_most
from bench.run import Run, Samples, wait_until

_TO_ACCEPT = "process → accepts"
_TO_ACK = "process → first acknowledged record"

# Ask again soon for a topic that is being created, not after the default of 100 ms. Idempotence is
# off because librdkafka may wait half a second before it requests a producer ID.
_IMPATIENT = {
    "acks": "all",
    "linger.ms": "0",
    "topic.metadata.refresh.fast.interval.ms": "20",
}


def _first_record(node: Node) -> float:
    """Get one record acknowledged. Return the seconds since the process was started."""
    load.run("produce", node.address, topic="first", count=1, size=10, producer=_IMPATIENT)
    return node.seconds_since_start()


def process_start(run: Run) -> list[Row]:
    """A new process on an empty directory, until it accepts and until it acknowledges a record."""
    samples = Samples("start")
    for round_number in range(run.rounds + 1):
        for side in run.sides:
            node = run.node(side)
            accepts = node.start()
            acknowledged = _first_record(node)
            stopped = node.stop()
            run.say(f"start {side}: {accepts:.3f} s, {acknowledged:.3f} s, stop {stopped:.3f} s")
            if round_number:  # the first start reads programs from the disk
                samples.add(side, _TO_ACCEPT, accepts)
                samples.add(side, _TO_ACK, acknowledged)
                samples.add(side, "SIGTERM → gone", stopped)
    return [
        samples.row(_TO_ACCEPT, "s"),
        samples.row(_TO_ACK, "s", value_at_most(0.30), ratio_at_most(1 / 12)),
        samples.row("SIGTERM → gone", "s", value_at_most(1.0)),
    ]


def embedded_start(run: Run) -> list[Row]:
    """``Broker()`` in a Python process that has used one before, until a record is acknowledged.

    Apache Kafka has no counterpart inside a Python process.
    """
    samples = Samples("embedded")
    for client in ("confluent-kafka", "raw socket"):
        for seconds in embedded.measure(client, max(run.rounds, 3)):
            run.say(f"embedded, {client}: {seconds * 1000:.1f} ms")
            samples.add("headrace", f"Broker() → acknowledged, {client}", seconds)
    return [
        samples.row("Broker() → acknowledged, confluent-kafka", "s", value_at_most(0.05)),
        samples.row("Broker() → acknowledged, raw socket", "s"),
    ]


def recovery(run: Run) -> list[Row]:
    """kill -9 while a producer writes, then a new process on the same directory."""
    samples = Samples("recovery")
    written_min = run.sized(1_000_000_000, 50_000_000)
    for _ in range(run.rounds):
        for side in run.sides:
            node = run.node(side)
            node.start()
            _first_record(node)
            endless = load.command(
                "produce",
                node.address,
                topic="load",
                count=100_000_000,
                size=1024,
                producer=load.FAST_PRODUCER,
            )
            # The load generator reports that the broker disconnected, as it should.
            writer = subprocess.Popen(endless, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            try:
                wait_until(
                    lambda node=node: _size(node.data / "load-0") > written_min,
                    120,
                    f"{written_min} bytes written to {node.name}",
                )
                node.kill()
            finally:
                writer.kill()
                writer.wait()
            accepts = node.start()
            acknowledged = _first_record(node)
            run.say(f"recovery {side}: {accepts:.3f} s, {acknowledged:.3f} s")
            samples.add(side, "kill -9, restart → accepts", accepts)
            samples.add(side, "kill -9, restart → acknowledged", acknowledged)
            node.stop()
    return [
        samples.row("kill -9, restart → accepts", "s", value_at_most(0.5)),
        samples.row("kill -9, restart → acknowledged", "s", value_at_most(0.5)),
    ]


def _size(directory: Path) -> int:
    return sum(file.stat().st_size for file in directory.glob("*.log")) if directory.exists() else 0
