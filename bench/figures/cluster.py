"""Three brokers, three replicas, two in sync at least, acks=all: throughput, latency, start."""

import contextlib
import time
from collections.abc import Iterator

from bench import embedded_start as embedded
from bench import load, topics
from bench.cluster import HeadraceCluster, KafkaCluster
from bench.report import Row, ratio_at_least, ratio_at_most, value_at_most
from bench.run import Run, Samples, cpu_of, turns, warm_memory

_CLUSTERS: dict[str, type[HeadraceCluster] | type[KafkaCluster]] = {
    "headrace": HeadraceCluster,
    "kafka": KafkaCluster,
}
_PARTITIONS = 6
_REPLICAS = 3
_SIZE = 1024
_SETTLE_S = 3
IMPATIENT = {
    "acks": "all",
    "linger.ms": "0",
    "retry.backoff.ms": "10",
    "retry.backoff.max.ms": "20",
    "reconnect.backoff.ms": "10",
    "reconnect.backoff.max.ms": "50",
    "topic.metadata.refresh.fast.interval.ms": "10",
}

Cluster = HeadraceCluster | KafkaCluster


def new_cluster(run: Run, side: str) -> Cluster:
    """Three brokers with their own directory, not started."""
    made = run.node(side, kind=_CLUSTERS[side])
    assert isinstance(made, HeadraceCluster | KafkaCluster)
    return made


@contextlib.contextmanager
def _clusters(run: Run) -> Iterator[dict[str, Cluster]]:
    with contextlib.ExitStack() as stack:
        made = {side: new_cluster(run, side) for side in run.sides}
        for cluster in made.values():
            stack.enter_context(cluster)
        yield made


def throughput(run: Run) -> list[Row]:
    """One producer and one consumer of 1 KiB records over 6 partitions; memory after that."""
    samples = Samples("cluster-throughput")
    count = run.sized(500_000, 20_000)
    gigabytes = count * _SIZE / 1e9
    with _clusters(run) as clusters:
        for round_number in range(run.rounds + 1):
            kept = samples if round_number else Samples("warm-up")
            for side, cluster in turns(clusters, round_number):
                topic = f"replicated-{round_number}"
                topics.create(cluster.address, topic, _PARTITIONS, replication_factor=_REPLICAS)
                warm_memory(int(gigabytes * _REPLICAS * 1.1e9) + (256 << 20))
                cpu: list[float] = []
                with cpu_of(cluster, cpu):
                    produced = load.produce(
                        cluster.address, topic, count, _SIZE, partitions=_PARTITIONS
                    )
                consumed = load.consume(cluster.address, topic, count, partitions=_PARTITIONS)
                run.say(
                    f"cluster {side}: in {produced['mb_per_s']:.0f} MB/s, "
                    f"{cpu[0] / gigabytes:.2f} CPU-s/GB, out {consumed['mb_per_s']:.0f} MB/s"
                )
                kept.add(side, "produce 1 KiB", produced["mb_per_s"])
                kept.add(side, "produce 1 KiB, CPU", cpu[0] / gigabytes)
                kept.add(side, "consume 1 KiB", consumed["mb_per_s"])
                topics.delete(cluster, topic)
        time.sleep(_SETTLE_S)
        for side, cluster in clusters.items():
            samples.add(side, "memory of three brokers", cluster.brokers_mb())
            samples.add(side, "memory of all processes", cluster.resident_mb())
    return [
        samples.row("produce 1 KiB", "MB/s", ratio_at_least(4)),
        samples.row("produce 1 KiB, CPU", "s/GB", ratio_at_most(0.25)),
        samples.row("consume 1 KiB", "MB/s", ratio_at_least(1)),
        samples.row("memory of three brokers", "MB", ratio_at_most(0.1)),
        samples.row("memory of all processes", "MB", ratio_at_most(0.125)),
    ]


def latency(run: Run) -> list[Row]:
    """One record in flight at a time: until acknowledged, and until a waiting consumer has it."""
    samples = Samples("cluster-latency")
    with _clusters(run) as clusters:
        for cluster in clusters.values():
            for mode in ("ack", "e2e"):
                topics.create(cluster.address, mode, 1, replication_factor=_REPLICAS)
                load.produce(cluster.address, mode, run.sized(100_000, 1000), 100)
        for round_number in range(run.rounds):
            for side, cluster in turns(clusters, round_number):
                for mode, label in (("ack", "acknowledged"), ("e2e", "end to end")):
                    took = load.latency(mode, cluster.address, mode, count=run.sized(3000, 300))
                    run.say(f"cluster {side} {label}: {took['p50_us']} / {took['p99_us']} µs")
                    samples.add(side, f"{label}, p50", took["p50_us"])
                    samples.add(side, f"{label}, p99", took["p99_us"])
    return [
        samples.row(f"{label}, {share}", "µs", ratio_at_most(0.4))
        for label in ("acknowledged", "end to end")
        for share in ("p50", "p99")
    ]


def start(run: Run) -> list[Row]:
    """Three brokers on empty directories, until a record with three replicas is acknowledged."""
    samples = Samples("cluster-start")
    for round_number in range(run.rounds + 1):
        for side in run.sides:
            cluster = new_cluster(run, side)
            cluster.start()
            topics.create(cluster.address, "first", 1, replication_factor=_REPLICAS)
            load.run(
                "produce", cluster.address, topic="first", count=1, size=10, producer=IMPATIENT
            )
            acknowledged = cluster.seconds_since_start()
            stopped = cluster.stop()
            run.say(f"cluster start {side}: {acknowledged:.2f} s, stop {stopped:.2f} s")
            if round_number:
                samples.add(side, "start → first acknowledged record", acknowledged)
                samples.add(side, "SIGTERM → gone", stopped)
    return [
        samples.row("start → first acknowledged record", "s", value_at_most(3)),
        samples.row("SIGTERM → gone", "s", value_at_most(10)),
    ]


def embedded_start(run: Run) -> list[Row]:
    """``Cluster(brokers=3)`` in a warm Python process, until a record on three is acknowledged.

    Apache Kafka has no counterpart inside a Python process.
    """
    samples = Samples("cluster-embedded")
    metric = "Cluster(brokers=3) → acknowledged, confluent-kafka"
    for seconds in embedded.measure("cluster", max(run.rounds, 3)):
        run.say(f"embedded cluster: {seconds * 1000:.1f} ms")
        samples.add("headrace", metric, seconds)
    return [samples.row(metric, "s", value_at_most(0.35))]
