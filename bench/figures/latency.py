"""Latency of one record: to its acknowledgement, to a consumer, and during a compaction."""

import subprocess
import time
from pathlib import Path

from bench import load, topics
from bench.node import Node
from bench.report import Row, ratio_at_most, value_at_most
from bench.run import Run, Samples, turns, wait_until


def latency(run: Run) -> list[Row]:
    """One record in flight at a time: until acknowledged, and until a waiting consumer has it."""
    samples = Samples("latency")
    with run.nodes() as nodes:
        for round_number in range(run.rounds + 1):
            for side, node in turns(nodes, round_number):
                for mode, label in (("ack", "acknowledged"), ("e2e", "end to end")):
                    if round_number == 0:
                        load.produce(node.address, mode, run.sized(200_000, 1000), 100)
                    took = load.latency(mode, node.address, mode, count=run.sized(5000, 500))
                    run.say(f"latency {side} {label}: {took['p50_us']} / {took['p99_us']} µs")
                    if round_number:
                        samples.add(side, f"{label}, p50", took["p50_us"])
                        samples.add(side, f"{label}, p99", took["p99_us"])
    rows = []
    for label in ("acknowledged", "end to end"):
        rows += [
            samples.row(f"{label}, p50", "µs", ratio_at_most(0.75)),
            samples.row(f"{label}, p99", "µs", ratio_at_most(1.0)),
        ]
    return rows


def compaction(run: Run) -> list[Row]:
    """Acknowledgements on one topic while 1 GB of another is compacted, compared with before."""
    samples = Samples("compaction")
    with run.nodes({"log.cleaner.backoff.ms": "100"}) as nodes:
        for round_number in range(run.rounds):
            for side, node in turns(nodes, round_number):
                before, during, seconds = _compact_once(run, node, f"keyed-{round_number}")
                ratio = load.percentile(during, 0.99) / load.percentile(before, 0.99)
                run.say(
                    f"compaction {side}: {seconds:.1f} s, p99 "
                    f"{load.percentile(before, 0.99) * 1e6:.0f} -> "
                    f"{load.percentile(during, 0.99) * 1e6:.0f} µs ({len(during)} samples)"
                )
                samples.add(side, "p99 without", load.percentile(before, 0.99) * 1e6)
                samples.add(side, "p99 during", load.percentile(during, 0.99) * 1e6)
                samples.add(side, "p99 during / without", ratio)
                samples.add(side, "compaction of 1 GB", seconds)
    return [
        samples.row("p99 without", "µs"),
        samples.row("p99 during", "µs"),
        samples.row("p99 during / without", "×", value_at_most(3)),
        samples.row("compaction of 1 GB", "s"),
    ]


def _compact_once(run: Run, node: Node, topic: str) -> tuple[list[float], list[float], float]:
    """Latencies before and during one compaction, and its duration."""
    segment_size = run.sized(100 << 20, 4 << 20)
    count = run.sized(1_100_000, 40_000)
    settings = {"segment.bytes": str(segment_size), "min.cleanable.dirty.ratio": "0.01"}
    topics.create(node.address, topic, settings=settings)
    # Ten values per key: the compaction reads everything and keeps a tenth.
    load.produce(node.address, topic, count, 1000, keys=count // 10)
    directory = node.data / f"{topic}-0"
    full_size = _log_size(directory)

    output = node.data.with_name(f"{node.data.name}-{topic}.samples")
    load.latency("ack", node.address, "latency", count=500)
    line = load.command(
        "ack",
        node.address,
        topic="latency",
        seconds=300,
        size=100,
        samples=output,
        producer=load.QUICK_PRODUCER,
    )
    prober = subprocess.Popen(line, stdout=subprocess.PIPE)
    try:
        time.sleep(run.sized(6, 2))
        changed_at = time.monotonic()
        topics.set_configs(node.address, topic, {"cleanup.policy": "compact"})
        # Compaction keeps the active segment and the last values, and drops most of the rest.
        wait_until(
            lambda: _log_size(directory) < full_size * 0.5 and not _unfinished(directory),
            240,
            f"compaction of {topic} by {node.name}",
        )
        compacted_at = time.monotonic()
    finally:
        prober.terminate()
        prober.communicate()
    taken = load.read_samples(output)
    output.unlink()
    topics.delete(node, topic)
    # The prober needs the first second to connect.
    first_at = taken[0][0] + 1
    before = [took for sent_at, took in taken if first_at < sent_at < changed_at]
    during = [took for sent_at, took in taken if changed_at <= sent_at < compacted_at]
    return before, during, compacted_at - changed_at


def _log_size(directory: Path) -> int:
    total = 0
    for file in directory.glob("*.log"):
        try:
            total += file.stat().st_size
        except FileNotFoundError:
            continue  # replaced after it was listed
    return total


def _unfinished(directory: Path) -> bool:
    return any(file.suffix in (".cleaned", ".swap") for file in directory.iterdir())
