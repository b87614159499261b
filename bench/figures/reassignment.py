"""A topic moves to an empty broker while clients write: how fast, and what the clients notice."""

import contextlib
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from bench import load, topics
from bench.cluster import IDS
from bench.figures.cluster import Cluster, new_cluster
from bench.report import Row, ratio_at_least, value_at_most
from bench.run import Run, Samples, wait_until, warm_memory
from headrace.client import cluster as client
from headrace.wire import messages as m

_MOVED, _LOADED, _PROBED = "moved", "loaded", "probed"
_PARTITIONS = 6
_SIZE = 1024
_LOAD_RATE = 5000  # records per second, beside the probe
_PROBE_RATE = 200
_FIRST, _SECOND, _EMPTY = IDS
_LIMIT_S = 600
_SETTLE_S = 3  # until the load is steady

_RATE = "copied to the empty broker, under load"
_CALM = "acknowledged, p99, without a move"
_MOVING = "acknowledged, p99, during the move"
_WORSE = "acknowledged, p99, during the move ÷ without"


def reassignment(run: Run) -> list[Row]:
    """2 GB move to an empty broker under load: MB/s, and p99 of acknowledgements before and then.

    Two brokers have all replicas. Every partition keeps its leader, and the empty third broker
    replaces the follower, so that it fetches everything.
    """
    samples = Samples("cluster-move")
    count = run.sized(2_000_000, 20_000)
    for _ in range(run.rounds):
        for side in run.sides:
            with new_cluster(run, side) as cluster:
                _measure(run, samples, side, cluster, count)
    return [
        samples.row(_RATE, "MB/s", ratio_at_least(1)),
        samples.row(_CALM, "ms"),
        samples.row(_MOVING, "ms"),
        samples.row(_WORSE, "×", value_at_most(3)),
    ]


def _measure(run: Run, samples: Samples, side: str, cluster: Cluster, count: int) -> None:
    on_two = [
        (_FIRST, _SECOND) if partition % 2 else (_SECOND, _FIRST)
        for partition in range(_PARTITIONS)
    ]
    for topic, replicas in ((_MOVED, on_two), (_LOADED, on_two), (_PROBED, on_two[:1])):
        topics.create(cluster.address, topic, len(replicas), replicas=replicas)
    warm_memory(int(count * _SIZE * 3.1) + (256 << 20))
    load.produce(cluster.address, _MOVED, count, _SIZE, partitions=_PARTITIONS)
    targets = [(leader, _EMPTY) for leader, _ in on_two]
    output = run.scratch / "move-acknowledgements"
    with _under_load(cluster, output):
        time.sleep(_SETTLE_S)
        calm_from = time.monotonic()
        time.sleep(run.sized(15, 2))  # the interval that is measured
        started_at = time.monotonic()
        _move(cluster, targets)
        ended_at = time.monotonic()
    taken = load.read_samples(output)
    calm = _p99_ms(taken, calm_from, started_at)
    moving = _p99_ms(taken, started_at, ended_at)
    rate = count * _SIZE / 1e6 / (ended_at - started_at)
    run.say(f"move of {side}: {rate:.0f} MB/s, acknowledged p99 {calm:.2f} → {moving:.2f} ms")
    for metric, value in (
        (_RATE, rate),
        (_CALM, calm),
        (_MOVING, moving),
        (_WORSE, moving / calm),
    ):
        samples.add(side, metric, value)


def _p99_ms(taken: list[tuple[float, float]], start: float, end: float) -> float:
    return 1000 * load.percentile((took for at, took in taken if start <= at < end), 0.99)


@contextlib.contextmanager
def _under_load(cluster: Cluster, output: Path) -> Iterator[None]:
    """A steady load on all partitions of one topic, and a probe that records its delays."""
    background = load.command(
        "trickle",
        cluster.address,
        topic=_LOADED,
        seconds=_LIMIT_S,
        size=_SIZE,
        partitions=_PARTITIONS,
        rate=_LOAD_RATE,
        producer=load.QUICK_PRODUCER,
    )
    probe = load.command(
        "ack",
        cluster.address,
        topic=_PROBED,
        seconds=_LIMIT_S,
        size=100,
        rate=_PROBE_RATE,
        samples=output,
        producer=load.QUICK_PRODUCER,
    )
    running = [subprocess.Popen(line, stdout=subprocess.PIPE) for line in (background, probe)]
    try:
        yield
    finally:
        for process in running:
            process.terminate()
        for process in running:
            process.communicate()


def _move(cluster: Cluster, targets: list[tuple[int, int]]) -> None:
    """Reassign the topic, and wait until no move is in progress."""
    kind = m.AlterPartitionReassignmentsRequest
    with contextlib.closing(client.Cluster(client.ClientSettings(cluster.address))) as asking:
        answer = asking.ask_controller(
            kind(
                timeout_ms=30_000,
                topics=[
                    kind.ReassignableTopic(
                        name=_MOVED,
                        partitions=[
                            kind.ReassignablePartition(partition_index=i, replicas=list(replicas))
                            for i, replicas in enumerate(targets)
                        ],
                    )
                ],
            ),
            m.AlterPartitionReassignmentsResponse,
            lambda response: [response.error_code],
            "reassigning",
        )
        refused = [one for topic in answer.responses for one in topic.partitions if one.error_code]
        assert not refused, refused
        wait_until(lambda: not _is_moving(asking), _LIMIT_S, f"{_MOVED} on the empty broker")


def _is_moving(asking: client.Cluster) -> bool:
    answer = asking.ask_controller(
        m.ListPartitionReassignmentsRequest(timeout_ms=30_000, topics=None),
        m.ListPartitionReassignmentsResponse,
        lambda response: [response.error_code],
        "listing reassignments",
    )
    return bool(answer.topics)
