"""Records per second through one broker, and the processor time that a gigabyte costs it."""

import contextlib

from bench import load, topics
from bench.raw_client import RawClient
from bench.report import Row, ratio_at_least, ratio_at_most
from bench.run import Run, Samples, cpu_of, warm_memory

_SIZES = {"1 KiB": 1024, "100 B": 100}


def throughput(run: Run) -> list[Row]:
    """One producer (acks=all, idempotent, one partition) and one consumer, 1 KiB and 100 B."""
    samples = Samples("throughput")
    counts = {"1 KiB": run.sized(1_000_000, 50_000), "100 B": run.sized(3_000_000, 150_000)}
    with run.nodes() as nodes:
        for round_number in range(run.rounds + 1):
            for side, node in nodes.items():
                for label, size in _SIZES.items():
                    topic = f"size-{size}-{round_number}"
                    gigabytes = counts[label] * size / 1e9
                    topics.create(node.address, topic)
                    warm_memory(int(gigabytes * 2.2e9) + (256 << 20))
                    cpu: list[float] = []
                    with cpu_of(node, cpu):
                        produced = load.produce(node.address, topic, counts[label], size)
                    with cpu_of(node, cpu):
                        consumed = load.consume(node.address, topic, counts[label])
                    with contextlib.closing(RawClient(node.address)) as client:
                        finished = client.produce_finished(topic, counts[label], size)
                    topics.delete(node.address, topic)
                    run.say(
                        f"throughput {side} {label}: "
                        f"in {produced['mb_per_s']:.0f} MB/s, {cpu[0] / gigabytes:.2f} CPU-s/GB; "
                        f"out {consumed['mb_per_s']:.0f} MB/s, {cpu[1] / gigabytes:.2f} CPU-s/GB; "
                        f"finished batches in {gigabytes * 1e3 / finished:.0f} MB/s"
                    )
                    if round_number:  # the first round compiles, on a JVM
                        samples.add(side, f"produce {label}, finished", counts[label] / finished)
                        samples.add(side, f"produce {label}", produced["records_per_s"])
                        samples.add(side, f"produce {label}, CPU", cpu[0] / gigabytes)
                        samples.add(side, f"consume {label}", consumed["records_per_s"])
                        samples.add(side, f"consume {label}, CPU", cpu[1] / gigabytes)
    rows = []
    for label in _SIZES:
        rows += [
            samples.row(f"produce {label}", "records/s", ratio_at_least(1.8)),
            samples.row(f"produce {label}, CPU", "s/GB", ratio_at_most(0.55)),
            # librdkafka spends several times what a broker does on small records. Batches made
            # beforehand leave the broker as the limit.
            samples.row(f"produce {label}, finished", "records/s", ratio_at_least(1.8)),
        ]
    for label in _SIZES:
        rows += [
            samples.row(f"consume {label}", "records/s", ratio_at_least(0.95)),
            samples.row(f"consume {label}, CPU", "s/GB", ratio_at_most(0.95)),
        ]
    return rows


def partitions(run: Run) -> list[Row]:
    """One idempotent producer, record by record over 1,000 partitions of a topic."""
    samples = Samples("partitions")
    partition_count = run.sized(1000, 100)
    counts = {"1 KiB": run.sized(500_000, 50_000), "100 B": run.sized(2_000_000, 100_000)}
    with run.nodes() as nodes:
        for side, node in nodes.items():
            for size in _SIZES.values():
                topics.create(node.address, f"many-{size}", partition_count)
                run.say(f"partitions {side}: many-{size} made")
        for round_number in range(run.rounds + 1):
            for side, node in nodes.items():
                for label, size in _SIZES.items():
                    cpu: list[float] = []
                    with cpu_of(node, cpu):
                        produced = load.produce(
                            node.address,
                            f"many-{size}",
                            counts[label],
                            size,
                            partitions=partition_count,
                        )
                    gigabytes = counts[label] * size / 1e9
                    run.say(
                        f"partitions {side} {label}: {produced['records_per_s']:,.0f} records/s, "
                        f"{cpu[0] / gigabytes:.2f} CPU-s/GB"
                    )
                    if round_number:
                        samples.add(side, f"produce {label}", produced["records_per_s"])
                        samples.add(side, f"produce {label}, CPU", cpu[0] / gigabytes)
    rows = []
    for label in _SIZES:
        rows += [
            samples.row(f"produce {label}", "records/s", ratio_at_least(1.0)),
            samples.row(f"produce {label}, CPU", "s/GB"),
        ]
    return rows
