"""Does a long log cost more than a short one? Processor time per append and per fetch."""

import random

from bench import load, topics
from bench.client import Client
from bench.node import Node, free_space_gb
from bench.report import Row, value_at_most
from bench.run import Run, Samples, cpu_of

_FETCH_SIZE = 64 << 10
_BATCH_SIZE = _FETCH_SIZE  # a fetch always returns its first batch complete
# The same number of offsets in both logs, so that both sets of pages use the same share of the
# processor's caches, and the broker makes the difference.
_PLACES = 250
# The expected difference is smaller than the noise of the machine over minutes. Many short turns,
# each with its own ratio, average it out.
_TURNS_PER_ROUND = 4


def growth(run: Run) -> list[Row]:
    """CPU per append and per fetch at any offset: 10 GB of log and an almost empty one."""
    samples = Samples("growth")
    lengths = {"short": 16_000, "long": run.sized(10_000_000, 200_000)}
    if free_space_gb(run.scratch) < lengths["long"] * 1024 / 1e9 + 10:
        raise RuntimeError(f"not enough free space in {run.scratch} for a log of 10 GB")
    # One side after the other: two such logs do not fit in the page cache of a small machine.
    for side in run.sides:
        with run.node(side) as node:
            for topic, count in lengths.items():
                topics.create(node.address, topic)
                batches = {"batch.size": str(_BATCH_SIZE)}
                made = load.produce(node.address, topic, count, 1024, producer=batches, limit_s=900)
                load.consume(node.address, topic, count, limit_s=900)  # warm
                run.say(f"growth {side}: {topic} log, in at {made['mb_per_s']:.0f} MB/s")
            for round_number in range(run.rounds * _TURNS_PER_ROUND + 1):
                for what, measure in (("append", _append_us), ("fetch", _fetch_us)):
                    took = {
                        topic: measure(run, node, topic, count) for topic, count in lengths.items()
                    }
                    run.say(
                        f"growth {side}: {what} {took['short']:.0f} CPU µs at the short log, "
                        f"{took['long']:.0f} at the long one"
                    )
                    if not round_number:
                        continue
                    for topic in lengths:
                        samples.add(side, f"{what}, {topic} log", took[topic])
                    samples.add(side, f"{what}, long / short", took["long"] / took["short"])
    return [
        samples.row(f"{what}, {which}", unit, *targets)
        for what in ("append", "fetch")
        for which, unit, targets in (
            ("short log", "CPU µs", ()),
            ("long log", "CPU µs", ()),
            ("long / short", "×", (value_at_most(1.15),)),
        )
    ]


def _append_us(run: Run, node: Node, topic: str, _offset_end: int) -> float:
    """Processor time of the broker for one record, produced and acknowledged alone."""
    count = run.sized(5000, 1000)
    cpu: list[float] = []
    with cpu_of(node, cpu):
        load.latency("ack", node.address, topic, count=count)
    return cpu[0] / count * 1e6


def _fetch_us(run: Run, node: Node, topic: str, offset_end: int) -> float:
    """Processor time of the broker for a fetch of 64 KiB."""
    count = run.sized(5000, 1000)
    dice = random.Random(7)
    places = [dice.randrange(offset_end - 100) for _ in range(_PLACES)]
    client = Client(node.address)
    for place in places:
        client.fetch(topic, place, _FETCH_SIZE)
    cpu: list[float] = []
    with cpu_of(node, cpu):
        for _ in range(count // _PLACES):
            for place in places:
                client.fetch(topic, place, _FETCH_SIZE)
    client.close()
    return cpu[0] / (count // _PLACES * _PLACES) * 1e6
