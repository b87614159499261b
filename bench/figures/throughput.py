"""Records per second through one broker, and its processor time per gigabyte."""

from bench import load, topics
from bench.node import Node
from bench.report import Row, ratio_at_least, ratio_at_most
from bench.run import Run, Samples, cpu_of, turns, warm_memory

_SIZES = {"1 KiB": 1024, "100 B": 100}
_CONSUMED_PER_ROUND = 3
_LEAN, _LIBRDKAFKA = "", ", librdkafka"  # the producer, as the rows name it


def throughput(run: Run) -> list[Row]:
    """One producer (acks=all, idempotent, one partition) and one consumer, 1 KiB and 100 B."""
    samples = Samples("throughput")
    counts = {"1 KiB": run.sized(1_000_000, 50_000), "100 B": run.sized(3_000_000, 150_000)}
    with run.nodes() as nodes:
        for round_number in range(run.rounds + 1):
            # The first round compiles, on a JVM.
            kept = samples if round_number else Samples("warm-up")
            for label in _SIZES:
                topic = f"size-{_SIZES[label]}-{round_number}"
                for side, node in turns(nodes, round_number):
                    _produce(run, kept, side, node, topic, label, counts[label], by=_LEAN)
                    topics.delete(node, topic)
                topic += "-librdkafka"
                for side, node in turns(nodes, round_number):
                    _produce(run, kept, side, node, topic, label, counts[label], by=_LIBRDKAFKA)
                for _ in range(_CONSUMED_PER_ROUND):
                    for side, node in turns(nodes, round_number):
                        _consume(run, kept, side, node, topic, label, counts[label])
                for node in nodes.values():
                    topics.delete(node, topic)
    rows = []
    for label in _SIZES:
        rows += [
            samples.row(f"produce {label}", "records/s", ratio_at_least(1.8)),
            samples.row(f"produce {label}, CPU", "s/GB", ratio_at_most(0.55)),
            # This client uses most of the machine itself, as the last of its rows shows.
            samples.row(f"produce {label}, librdkafka", "records/s"),
            samples.row(f"produce {label}, librdkafka, CPU", "s/GB", ratio_at_most(0.55)),
            samples.row(f"produce {label}, librdkafka, client", "cores"),
        ]
    for label in _SIZES:
        rows += [
            samples.row(f"consume {label}", "records/s", ratio_at_least(0.95)),
            samples.row(f"consume {label}, CPU", "s/GB", ratio_at_most(0.95)),
        ]
    return rows


def _produce(
    run: Run,
    samples: Samples,
    side: str,
    node: Node,
    topic: str,
    label: str,
    count: int,
    *,
    by: str,
) -> None:
    gigabytes = count * _SIZES[label] / 1e9
    topics.create(node.address, topic)
    warm_memory(int(gigabytes * 1.2e9) + (256 << 20))
    produce = load.produce if by == _LIBRDKAFKA else load.produce_lean
    cpu: list[float] = []
    with cpu_of(node, cpu):
        produced = produce(node.address, topic, count, _SIZES[label])
    per_gigabyte = cpu[0] / gigabytes
    run.say(
        f"throughput {side} {label}{by}: in {produced['mb_per_s']:.0f} MB/s, "
        f"{per_gigabyte:.2f} CPU-s/GB"
    )
    samples.add(side, f"produce {label}{by}", produced["records_per_s"])
    samples.add(side, f"produce {label}{by}, CPU", per_gigabyte)
    samples.add(
        side, f"produce {label}{by}, client", produced["client_cpu_s"] / produced["seconds"]
    )


def _consume(
    run: Run, samples: Samples, side: str, node: Node, topic: str, label: str, count: int
) -> None:
    cpu: list[float] = []
    with cpu_of(node, cpu):
        consumed = load.consume(node.address, topic, count)
    per_gigabyte = cpu[0] / (count * _SIZES[label] / 1e9)
    run.say(
        f"throughput {side} {label}: out {consumed['mb_per_s']:.0f} MB/s, "
        f"{per_gigabyte:.2f} CPU-s/GB"
    )
    samples.add(side, f"consume {label}", consumed["records_per_s"])
    samples.add(side, f"consume {label}, CPU", per_gigabyte)


def partitions(run: Run) -> list[Row]:
    """One idempotent producer, record by record over 1,000 partitions of a topic."""
    samples = Samples("partitions")
    partition_count = run.sized(1000, 100)
    counts = {"1 KiB": run.sized(500_000, 50_000), "100 B": run.sized(2_000_000, 100_000)}
    with run.nodes() as nodes:
        for side, node in nodes.items():
            for size in _SIZES.values():
                topics.create(node.address, f"many-{size}", partition_count)
                run.say(f"partitions {side}: created many-{size}")
        for round_number in range(run.rounds + 1):
            for side, node in turns(nodes, round_number):
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
