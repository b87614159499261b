"""Three brokers with 2,000 partitions of three replicas: their management, and what they cost."""

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from confluent_kafka.admin import AdminClient

from bench import load, process_tree, topics
from bench.client import Client, framed
from bench.cluster import IDS
from bench.figures.cluster import Cluster, new_cluster
from bench.report import Row, ratio_at_most, value_at_most
from bench.run import Run, Samples, wait_until
from headrace.model.errors import ErrorCode
from headrace.wire import messages as m
from headrace.wire.api import ApiKey
from headrace.wire.session import parse_response

_TOPIC = "many"
_PROBED = "probed"
_PARTITIONS = 2000
_DESCRIPTIONS = 5
_SETTLE_S = 5  # caches fill and background work ends before idle costs are measured

_CREATE = "create, until all replicas exist"
_CREATE_ANSWERED = "create, until all partitions are led"
_DESCRIBE = "describe"
_DELETE = "delete"
_IDLE_CPU = "idle, CPU of all brokers"
_MEMORY = "memory for 1,000 replicas"
_FILES = "open files for 1,000 replicas"
_DELAY = "added p50 for 1,000 idle partitions"
_BUSY_DELAY = "added p50 for 1,000 partitions with a record per second each"


def many_partitions(run: Run) -> list[Row]:
    """6,000 replicas in three brokers: create, describe, delete, idle CPU, memory, files, delay."""
    samples = Samples("cluster-partitions")
    count = run.sized(_PARTITIONS, 60)
    for _ in range(run.rounds):
        for side in run.sides:
            with new_cluster(run, side) as cluster:
                _measure(run, samples, side, cluster, count)
    return [
        samples.row(_CREATE, "s", ratio_at_most(0.5)),
        samples.row(_CREATE_ANSWERED, "s"),
        samples.row(_DESCRIBE, "s", ratio_at_most(0.5)),
        samples.row(_DELETE, "s", ratio_at_most(0.5)),
        samples.row(_IDLE_CPU, "% of a core", value_at_most(3)),
        samples.row(_MEMORY, "MB", ratio_at_most(0.5)),
        samples.row(_FILES, "files", ratio_at_most(0.5)),
        samples.row(_DELAY, "ms", value_at_most(2)),
        samples.row(_BUSY_DELAY, "ms"),
    ]


def _measure(run: Run, samples: Samples, side: str, cluster: Cluster, count: int) -> None:
    taken: dict[str, float] = {}
    topics.create(cluster.address, _PROBED, 1, replication_factor=len(IDS))
    load.produce(cluster.address, _PROBED, run.sized(100_000, 1000), 100)
    p50_before = _end_to_end_ms(run, cluster)
    time.sleep(_SETTLE_S)  # memory is compared with that of calm brokers
    memory_before, files_before = cluster.brokers_mb(), _open_files(cluster)

    start = time.perf_counter()
    topics.create(cluster.address, _TOPIC, count, replication_factor=len(IDS))
    taken[_CREATE_ANSWERED] = time.perf_counter() - start
    # Apache Kafka names the leaders first, and creates the replicas afterwards.
    wait_until(
        lambda: _hosted_count(cluster.data) == count * len(IDS), 300, f"all replicas of {_TOPIC}"
    )
    taken[_CREATE] = time.perf_counter() - start
    taken[_DESCRIBE] = min(_seconds_to_describe(cluster) for _ in range(_DESCRIPTIONS))

    time.sleep(_SETTLE_S)  # the creation has ended everywhere
    seconds = run.sized(20, 2)
    cpu_before = _brokers_cpu_seconds(cluster)
    time.sleep(seconds)  # the interval that is measured
    taken[_IDLE_CPU] = 100 * (_brokers_cpu_seconds(cluster) - cpu_before) / seconds
    replicas = count * len(IDS) / 1000
    taken[_MEMORY] = (cluster.brokers_mb() - memory_before) / replicas
    taken[_FILES] = (_open_files(cluster) - files_before) / replicas

    # Each broker hosts a replica of every partition.
    taken[_DELAY] = (_end_to_end_ms(run, cluster) - p50_before) / (count / 1000)
    with _one_record_per_second_in_each(cluster, count):
        taken[_BUSY_DELAY] = (_end_to_end_ms(run, cluster) - p50_before) / (count / 1000)

    start = time.perf_counter()
    _delete(cluster)
    taken[_DELETE] = time.perf_counter() - start
    for metric, value in taken.items():
        samples.add(side, metric, value)
    run.say(f"partitions of {side}: " + ", ".join(f"{m} {v:.3g}" for m, v in taken.items()))


def _end_to_end_ms(run: Run, cluster: Cluster) -> float:
    taken = load.latency("e2e", cluster.address, _PROBED, count=run.sized(2000, 200))
    p50: float = taken["p50_us"]
    return p50 / 1000


def _seconds_to_describe(cluster: Cluster) -> float:
    """Describe the topic with one DescribeTopicPartitions, as Kafka's ``kafka-topics`` does.

    Until the response is there: a client spends several times longer on the objects that it makes
    of it, with either broker.
    """
    request = m.DescribeTopicPartitionsRequest(
        topics=[m.DescribeTopicPartitionsRequest.TopicRequest(name=_TOPIC)],
        response_partition_limit=_PARTITIONS,
    )
    frame = framed(0, request)
    with Client(cluster.address) as client:
        start = time.perf_counter()
        answer = client.exchange(frame)
        taken = time.perf_counter() - start
        described = parse_response(answer, ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0)
        (topic,) = described.decode(m.DescribeTopicPartitionsResponse).topics
        assert topic.error_code == ErrorCode.NONE and topic.partitions
    return taken


def _delete(cluster: Cluster) -> None:
    """Delete the topic, until no broker has a directory of it that is not marked as deleted."""
    admin = _admin(cluster)
    for future in admin.delete_topics([_TOPIC], operation_timeout=60).values():
        future.result(90)
    wait_until(lambda: not _hosted_count(cluster.data), 120, f"deletion of {_TOPIC}")


def _hosted_count(data: Path) -> int:
    """The number of replicas of the topic that are on the disks of all brokers."""
    return sum(
        not found.endswith("-delete")
        for broker in data.iterdir()
        if broker.is_dir()
        for found in os.listdir(broker)
        if found.startswith(f"{_TOPIC}-")
    )


def _brokers_cpu_seconds(cluster: Cluster) -> float:
    """Of the brokers alone, without ``up`` and ZooKeeper."""
    return sum(process_tree.cpu_seconds(cluster.broker_pid(each)) for each in IDS)


def _open_files(cluster: Cluster) -> int:
    return sum(process_tree.open_files(cluster.broker_pid(each)) for each in IDS)


@contextlib.contextmanager
def _one_record_per_second_in_each(cluster: Cluster, count: int) -> Iterator[None]:
    line = load.command(
        "trickle",
        cluster.address,
        topic=_TOPIC,
        seconds=300,
        size=100,
        partitions=count,
        rate=count,
        producer=load.QUICK_PRODUCER,
    )
    trickle = subprocess.Popen(line, stdout=subprocess.PIPE)
    try:
        time.sleep(_SETTLE_S)  # until records flow to every partition
        yield
    finally:
        trickle.terminate()
        trickle.communicate()


def _admin(cluster: Cluster) -> AdminClient:
    return AdminClient({"bootstrap.servers": cluster.address, "log_level": "2"})
