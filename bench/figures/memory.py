"""Memory of a broker: idle, after load, and for idle connections."""

import subprocess
import time

from bench import load
from bench.node import Node
from bench.report import Row, value_at_most
from bench.run import Run, Samples

_SETTLE_S = 3


def resident(run: Run) -> list[Row]:
    """Resident memory: idle after the first record, and after produce and consume at full speed."""
    samples = Samples("memory")
    for _ in range(run.rounds):
        for side in run.sides:
            with run.node(side) as node:
                load.produce(node.address, "first", 1, 10)
                time.sleep(_SETTLE_S)
                idle = node.resident_mb()
                for topic, count, size in (
                    ("large", run.sized(1_000_000, 50_000), 1024),
                    ("small", run.sized(3_000_000, 150_000), 100),
                ):
                    load.produce(node.address, topic, count, size)
                    load.consume(node.address, topic, count)
                time.sleep(_SETTLE_S)
                busy = node.resident_mb()
            run.say(f"memory {side}: idle {idle:.0f} MB, after load {busy:.0f} MB")
            samples.add(side, "idle", idle)
            samples.add(side, "after load", busy)
    return [
        samples.row("idle", "MB", value_at_most(45)),
        samples.row("after load", "MB", value_at_most(80)),
    ]


def connections(run: Run) -> list[Row]:
    """1,000 connections that are idle after one request, next to one that is active."""
    samples = Samples("connections")
    count = run.sized(1000, 100)
    with run.nodes() as nodes:
        for round_number in range(run.rounds + 1):
            for side, node in nodes.items():
                before = _ack(run, node)
                alone_mb = node.resident_mb()
                held = subprocess.Popen(
                    load.command("connect", node.address, count=count),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                )
                try:
                    assert held.stdout is not None
                    if not held.stdout.readline():
                        raise load.LoadFailed(f"{node.name} did not accept {count} connections")
                    time.sleep(1)
                    each_kb = (node.resident_mb() - alone_mb) * 1000 / count
                    during = _ack(run, node)
                finally:
                    held.communicate()
                run.say(f"connections {side}: {each_kb:.1f} KB each, {before} -> {during}")
                if round_number:
                    samples.add(side, "p50 with / without", during["p50_us"] / before["p50_us"])
                    samples.add(side, "p99 with / without", during["p99_us"] / before["p99_us"])
                else:
                    # Only the first round allocates memory; later ones reuse the process's pools.
                    samples.add(side, "memory for each", each_kb)
    return [
        samples.row("memory for each", "KB", value_at_most(10)),
        samples.row("p50 with / without", "×", value_at_most(1.15)),
        samples.row("p99 with / without", "×"),
    ]


def _ack(run: Run, node: Node) -> dict[str, float]:
    return load.latency("ack", node.address, "latency", count=run.sized(5000, 500))
