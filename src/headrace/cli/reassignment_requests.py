"""What ``headrace reassign`` asks of a cluster: its partitions, their sizes, moves in progress."""

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from headrace.cli.client import code_name
from headrace.cli.cluster_view import BrokerView, ClusterView, read_view
from headrace.cli.output import CommandFailed
from headrace.cli.reassignment_plan import Assignment, Partition, name_of
from headrace.client.cluster import Cluster
from headrace.client.errors import ClientError
from headrace.wire import messages as m

_TIMEOUT_MS = 30_000
# Between two looks, and until the last one, because topics may come and go all the time.
_SETTLED_S = 0.3
_SETTLED_S_MAX = 10.0


class Reassigning(NamedTuple):
    """A move in progress."""

    replicas: list[int]  # the target and, until the move ends, the removed ones
    added: list[int]
    removed: list[int]

    @property
    def target(self) -> list[int]:
        return [broker for broker in self.replicas if broker not in self.removed]

    @property
    def origin(self) -> list[int]:
        return [broker for broker in self.replicas if broker not in self.added]


class ReplicaSizes(NamedTuple):
    """The bytes of each replica, and the log directories that failed or are full."""

    by_replica: dict[tuple[Partition, int], int]
    troubles: dict[int, str]  # by broker

    def of_leader(self, view: ClusterView) -> dict[Partition, int]:
        return {
            (one.topic, one.partition): self.by_replica.get(
                ((one.topic, one.partition), one.leader), 0
            )
            for one in view.partitions
            if one.leader is not None
        }


class Snapshot(NamedTuple):
    """The cluster's assignments, with the moves in progress."""

    view: ClusterView
    reassigning: dict[Partition, Reassigning]

    @property
    def assigned(self) -> Assignment:
        """The replicas of every partition; for one that moves, those from before the move."""
        return {
            (one.topic, one.partition): self.reassigning[one.topic, one.partition].origin
            if (one.topic, one.partition) in self.reassigning
            else one.replicas
            for one in self.view.partitions
        }

    @property
    def racks(self) -> dict[int, str | None]:
        return {number: broker.rack for number, broker in self.view.brokers.items()}


def snapshot(cluster: Cluster) -> Snapshot:
    # The moves first: one that ends in between is then seen as done.
    reassigning = list_reassignments(cluster)
    return Snapshot(read_view(cluster), reassigning)


def settled_snapshot(cluster: Cluster) -> Snapshot:
    """As ``snapshot``, once two looks agree, or after ten seconds.

    When a move ends, a broker shows the old and the new replicas until it hears of the end. New
    replicas that are computed from these would be too many.
    """
    give_up_at = time.monotonic() + _SETTLED_S_MAX
    now = snapshot(cluster)
    while True:
        earlier = now
        time.sleep(_SETTLED_S)
        now = snapshot(cluster)
        if now.assigned == earlier.assigned or time.monotonic() > give_up_at:
            return now


def list_reassignments(cluster: Cluster) -> dict[Partition, Reassigning]:
    answer = cluster.ask_controller(
        m.ListPartitionReassignmentsRequest(timeout_ms=_TIMEOUT_MS, topics=None),
        m.ListPartitionReassignmentsResponse,
        lambda response: [response.error_code],
        "listing reassignments",
    )
    if answer.error_code:
        raise CommandFailed(f"listing reassignments: {code_name(answer.error_code)}")
    return {
        (topic.name, one.partition_index): Reassigning(
            list(one.replicas), list(one.adding_replicas), list(one.removing_replicas)
        )
        for topic in answer.topics
        for one in topic.partitions
    }


def alter_reassignments(
    cluster: Cluster,
    targets: Mapping[Partition, Sequence[int] | None],
    *,
    may_change_factor: bool = True,
) -> dict[Partition, str]:
    """Begin moves, or cancel those with the target None; why partitions were refused."""
    kind = m.AlterPartitionReassignmentsRequest
    topics: dict[str, m.AlterPartitionReassignmentsRequest.ReassignableTopic] = {}
    for (name, number), replicas in targets.items():
        topic = topics.setdefault(name, kind.ReassignableTopic(name=name, partitions=[]))
        topic.partitions.append(
            kind.ReassignablePartition(
                partition_index=number, replicas=None if replicas is None else list(replicas)
            )
        )
    answer = cluster.ask_controller(
        kind(
            timeout_ms=_TIMEOUT_MS,
            allow_replication_factor_change=may_change_factor,
            topics=list(topics.values()),
        ),
        m.AlterPartitionReassignmentsResponse,
        _errors,
        "reassigning partitions",
        timeout_s=_TIMEOUT_MS / 1000 + 2,
    )
    if answer.error_code:
        message = f": {answer.error_message}" if answer.error_message else ""
        raise CommandFailed(f"reassigning partitions: {code_name(answer.error_code)}{message}")
    return {
        (topic.name, one.partition_index): (
            f"{code_name(one.error_code)}: {one.error_message or 'no reason given'}"
        )
        for topic in answer.responses
        for one in topic.partitions
        if one.error_code
    }


def _errors(answer: m.AlterPartitionReassignmentsResponse) -> Iterable[int]:
    yield answer.error_code
    for topic in answer.responses:
        for one in topic.partitions:
            yield one.error_code


def replica_sizes(cluster: Cluster, brokers: Iterable[BrokerView]) -> ReplicaSizes:
    """Ask each broker for its log directories; one that does not answer has no sizes."""
    found = ReplicaSizes({}, {})
    for broker in brokers:
        try:
            answer = cluster.ask(
                broker.broker_id, m.DescribeLogDirsRequest(topics=None), m.DescribeLogDirsResponse
            )
        except ClientError as failure:
            found.troubles[broker.broker_id] = str(failure)
            continue
        for result in answer.results:
            if result.error_code:
                code = code_name(result.error_code)
                found.troubles[broker.broker_id] = f"log directory {result.log_dir}: {code}"
            elif result.usable_bytes == 0:
                found.troubles[broker.broker_id] = f"log directory {result.log_dir} is full"
            for topic in result.topics:
                for one in topic.partitions:
                    if not one.is_future_key:
                        place = ((topic.name, one.partition_index), broker.broker_id)
                        found.by_replica[place] = one.partition_size
    return found


def names(partitions: Iterable[Partition]) -> str:
    """Some partitions for a message."""
    shown = [name_of(partition) for partition in sorted(partitions)]
    rest = len(shown) - 5
    return ", ".join(shown[:5]) + (f" and {rest} more" if rest > 0 else "")
