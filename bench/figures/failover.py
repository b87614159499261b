"""How long acknowledgements pause when the leader of a partition is killed or stops cleanly."""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic
from kazoo.client import KazooClient
from kazoo.protocol.states import WatchedEvent

from bench import load, topics
from bench.cluster import IDS, HeadraceCluster
from bench.figures.cluster import IMPATIENT, Cluster, new_cluster
from bench.report import Row, value_at_most
from bench.run import Run, Samples

_TOPIC = "zz-gap"  # last also where topics are sorted: no partition is served after it
_MANY_PARTITIONS = 2000
_EXPIRY_S = 60
# librdkafka looks for another leader once a second unless it refreshes all metadata more often, and
# would be measured in place of the brokers.
_WATCHFUL = IMPATIENT | {"topic.metadata.refresh.interval.ms": "20"}

_KILLED = "leader killed, longest gap"
_STOPPED = "leader stopped, longest gap"
_NODE_DELETED = "leader killed: node deleted → next acknowledgement"
_CONTROLLER_NODE_DELETED = "leader and controller killed: node deleted → next acknowledgement"


def failover(run: Run) -> list[Row]:
    """The longest gap in acknowledgements when a leader is killed, and when it stops cleanly."""
    samples = Samples("cluster-failover")
    for _ in range(run.rounds):
        for side in run.sides:
            with new_cluster(run, side) as cluster:
                _measure_killed(run, samples, side, cluster)
            with new_cluster(run, side) as cluster:
                gap = _kill_leader(run, cluster, _any_but_controller(cluster), signal.SIGTERM)[0]
                run.say(f"failover {side}, stopped: {gap:.3f} s")
                samples.add(side, _STOPPED, gap)
        with new_cluster(run, "headrace") as cluster:
            _measure_controller_killed(run, samples, cluster)
    return [
        samples.row(_KILLED, "s"),
        samples.row(_NODE_DELETED, "s", value_at_most(0.5)),
        samples.row(_CONTROLLER_NODE_DELETED, "s"),
        samples.row(_STOPPED, "s", value_at_most(0.3)),
    ]


def failover_of_many(run: Run) -> list[Row]:
    """The gap when the leader of a third of 2,000 partitions with three replicas is killed.

    The probed partition is told last, so its next acknowledgement shows that all are led again. If
    the controller is killed, the next one must first read all partitions.
    """
    samples = Samples("cluster-failover-2000")
    count = run.sized(_MANY_PARTITIONS, 60)
    for _ in range(run.rounds):
        for side in run.sides:
            with new_cluster(run, side) as cluster:
                topics.create(cluster.address, "many", count, replication_factor=len(IDS))
                _measure_killed(run, samples, side, cluster)
        with new_cluster(run, "headrace") as cluster:
            topics.create(cluster.address, "many", count, replication_factor=len(IDS))
            _measure_controller_killed(run, samples, cluster)
    return [
        samples.row(_KILLED, "s"),
        samples.row(_NODE_DELETED, "s", value_at_most(2)),
        samples.row(_CONTROLLER_NODE_DELETED, "s", value_at_most(2)),
    ]


def _measure_killed(run: Run, samples: Samples, side: str, cluster: Cluster) -> None:
    leader = _any_but_controller(cluster)
    gap, resumed = _kill_leader(run, cluster, leader, signal.SIGKILL)
    samples.add(side, _KILLED, gap)
    if isinstance(cluster, HeadraceCluster):  # Apache Kafka has no such node
        samples.add(side, _NODE_DELETED, resumed)
    run.say(f"failover {side}, killed: {gap:.3f} s, {resumed:.3f} s after its node")


def _measure_controller_killed(run: Run, samples: Samples, cluster: Cluster) -> None:
    _, resumed = _kill_leader(run, cluster, _controller(cluster), signal.SIGKILL)
    run.say(f"failover headrace, controller killed: {resumed:.3f} s after its node")
    samples.add("headrace", _CONTROLLER_NODE_DELETED, resumed)


def _controller(cluster: Cluster) -> int:
    controller: int = _admin(cluster.address).list_topics(timeout=10).controller_id
    return controller


def _any_but_controller(cluster: Cluster) -> int:
    return next(each for each in IDS if each != _controller(cluster))


def _kill_leader(
    run: Run, cluster: Cluster, leader: int, how: signal.Signals
) -> tuple[float, float]:
    """End a leader under load. Return the longest gap, and its part after the node was deleted."""
    admin = _admin(cluster.address)
    replicas = [leader, *(each for each in IDS if each != leader)]
    made = NewTopic(_TOPIC, num_partitions=1, replica_assignment=[replicas])
    for future in admin.create_topics([made], operation_timeout=30).values():
        future.result(60)
    brokers = admin.list_topics(timeout=10).brokers
    others = ",".join(f"{brokers[each].host}:{brokers[each].port}" for each in replicas[1:])
    output = cluster.data.with_name(f"{cluster.data.name}.samples")
    line = load.command(
        "ack", others, topic=_TOPIC, seconds=120, size=100, samples=output, producer=_WATCHFUL
    )
    deleted_at: list[float] = []
    with _watched_node(cluster, leader, deleted_at):
        prober = subprocess.Popen(line, stdout=subprocess.PIPE)
        try:
            time.sleep(run.sized(3, 2))
            os.kill(cluster.broker_pid(leader), how)
            _await_departure(others, leader)
            time.sleep(run.sized(5, 3))
        finally:
            prober.terminate()
            prober.communicate()
    answered = [at + took for at, took in load.read_samples(output)]
    Path(output).unlink()
    gap, resumed_at = max(
        (after - before, after) for before, after in zip(answered, answered[1:], strict=False)
    )
    return gap, max(0.0, resumed_at - deleted_at[0]) if deleted_at else gap


@contextlib.contextmanager
def _watched_node(cluster: Cluster, broker_id: int, deleted_at: list[float]) -> Iterator[None]:
    """Note when ZooKeeper deletes the node of a broker, on the clock of the samples."""
    if not isinstance(cluster, HeadraceCluster):
        yield
        return

    def deleted(event: WatchedEvent) -> None:
        if event.type == "DELETED":
            deleted_at.append(time.monotonic())

    client = KazooClient(cluster.zookeeper)
    client.start()
    try:
        client.exists(f"/brokers/ids/{broker_id}", watch=deleted)
        yield
    finally:
        client.stop()
        client.close()


def _await_departure(address: str, broker_id: int) -> None:
    """Wait until the metadata no longer has a broker."""
    admin = _admin(address)
    deadline = time.monotonic() + _EXPIRY_S
    while broker_id in admin.list_topics(timeout=10).brokers:
        if time.monotonic() > deadline:
            raise TimeoutError(f"broker {broker_id} is still in the metadata")
        time.sleep(0.25)  # seldom: it uses the processor that the brokers need now


def _admin(address: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": address, "log_level": "2"})
