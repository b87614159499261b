"""``headrace verify-replicas``: compare the replicas of partitions, and say which one differs."""

import time
from pathlib import Path
from typing import Annotated

import typer

from headrace.cli import output, values
from headrace.cli.broker_requests import open_cluster
from headrace.cli.client import Connection
from headrace.cli.cluster_view import read_topic_settings
from headrace.cli.options import (
    DEFAULT_BOOTSTRAP,
    Bootstrap,
    ClientFile,
    ClientSettings,
    Format,
    Matching,
    OptionalPlaces,
    OutputFormat,
    examples,
)
from headrace.cli.partitions import Partition, chosen, named
from headrace.cli.replica_comparison import Difference
from headrace.cli.replica_fetching import ReplicaPlaces
from headrace.cli.verification import PartitionVerification, Skipped
from headrace.cli.verification_state import Progress, VerificationState
from headrace.client.cluster import Cluster

_POLICY = "cleanup.policy"
_SAVE_INTERVAL_S = 1.0


def register(root: typer.Typer) -> None:
    root.command(
        "verify-replicas",
        epilog=examples(
            "headrace verify-replicas",
            "headrace verify-replicas orders:0-3 --throttle 20M",
            "headrace verify-replicas --matching 'orders-.*'",
            "headrace verify-replicas --state verify.json    # run it again to continue",
        ),
    )(verify_replicas)


def verify_replicas(
    places: OptionalPlaces = None,
    matching: Matching = None,
    throttle: Annotated[
        str | None,
        typer.Option(
            "--throttle",
            metavar="BYTES",
            show_default="unlimited",
            help="Bytes to fetch per second, from all brokers together: 500k, 20M.",
        ),
    ] = None,
    state_file: Annotated[
        Path | None,
        typer.Option(
            "--state",
            metavar="FILE",
            help="File that holds the progress. A run with the file of an interrupted run "
            "continues it; a complete run deletes the file.",
        ),
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    settings: ClientSettings = None,
    client_file: ClientFile = None,
    format: OutputFormat = Format.TABLE,
) -> None:
    """Compare the replicas of partitions.

    Fetches every partition from all its in-sync replicas, up to the high watermark at the start,
    and compares the bytes. The replicas of a compacted topic are cleaned at different times, so the
    command compares the last value of each key instead. Includes internal topics.

    The exit status is 0 if all replicas are the same, and 1 if one differs or could not be
    compared.
    """
    rate = None if throttle is None else values.size(throttle)
    if rate == 0:
        raise values.wrong("--throttle 0: expected at least 1 byte per second")
    connection = Connection(bootstrap, settings, client_file)
    topics = () if matching is None else connection.metadata().topics
    wanted = list(named(connection, chosen(places, matching, topics), internal=True))
    with open_cluster(connection) as cluster:
        cluster_id, found = _replicas(cluster, wanted)
        verification = _Verification(cluster, VerificationState(cluster_id, state_file), rate)
        verification.run(found)
    _show(found, verification, format)


def _replicas(cluster: Cluster, wanted: list[Partition]) -> tuple[str, list[ReplicaPlaces]]:
    """The cluster's ID, and where the replicas of each partition are."""
    topics = sorted({topic for topic, _ in wanted})
    policies = read_topic_settings(cluster, topics, [_POLICY])
    answer = cluster.persistently(lambda: cluster.metadata(topics), "reading the cluster metadata")
    live = {broker.node_id for broker in answer.brokers}
    found = {}
    for topic in answer.topics:
        name = topic.name or ""
        policy = ",".join(setting.value or "" for setting in policies.get(name, ()))
        for one in topic.partitions:
            usable = [b for b in one.isr_nodes if b in live and b not in one.offline_replicas]
            in_sync = sorted(usable, key=lambda broker: (broker != one.leader_id, broker))
            found[name, one.partition_index] = ReplicaPlaces(
                name,
                topic.topic_id,
                one.partition_index,
                one.leader_id,
                in_sync,
                [broker for broker in one.replica_nodes if broker not in usable],
                "compact" in policy,
            )
    return answer.cluster_id or "", [found[partition] for partition in wanted if partition in found]


class _Verification:
    """One run over all partitions: its throttle, its progress and its state file."""

    def __init__(self, cluster: Cluster, state: VerificationState, rate: int | None) -> None:
        self.state = state
        self.bytes_fetched = 0
        self._cluster = cluster
        self._rate = rate
        self._started_at = self._saved_at = time.monotonic()
        self._shown = ""

    def run(self, places: list[ReplicaPlaces]) -> None:
        if self.state.is_continued:
            output.note("Continuing an earlier run")
        try:
            for number, place in enumerate(places, 1):
                if not self.state.of(place).is_done:
                    self._shown = f"{number:,} of {values.counted(len(places), 'partition')}"
                    self._verify(place)
        except BaseException:
            self.state.save()
            raise
        finally:
            output.progress_over()
        self.state.delete()

    def _verify(self, place: ReplicaPlaces) -> None:
        before = self.state.of(place)
        if place.leader < 0 or len(place.in_sync) < 2:
            self.state.note(place, before._replace(is_done=True, skipped=_alone(place)))
            return
        verification = PartitionVerification(
            self._cluster,
            place,
            lambda offset, end, size: self._advanced(verification, before, offset, end, size),
        )
        verification.run(before.next_offset, {one.broker for one in before.differences})
        self._note(verification, before, 0, is_done=True)

    def _advanced(
        self,
        verification: PartitionVerification,
        before: Progress,
        offset: int,
        end: int,
        size: int,
    ) -> None:
        self.bytes_fetched += size
        place = verification.place
        # The keys of a compacted partition are compared at its end: it starts over.
        self._note(verification, before, 0 if place.is_compacted else offset)
        now = time.monotonic()
        if now - self._saved_at > _SAVE_INTERVAL_S:
            self.state.save()
            self._saved_at = now
        output.progress(
            f"{self._shown}  {place.name}  offset {offset:,} of {end:,}  "
            f"{values.readable_size(self.bytes_fetched)} fetched"
        )
        if self._rate is not None:
            time.sleep(max(0.0, self._started_at + self.bytes_fetched / self._rate - now))

    def _note(
        self,
        verification: PartitionVerification,
        before: Progress,
        offset: int,
        *,
        is_done: bool = False,
    ) -> None:
        self.state.note(
            verification.place,
            Progress(
                before.topic_id,
                offset,
                is_done,
                [*before.differences, *verification.differences],
                verification.skipped,
            ),
        )


def _alone(place: ReplicaPlaces) -> list[Skipped]:
    """Why a partition with fewer than two replicas in sync is not compared; one replica is fine."""
    return [Skipped(broker, "offline or not in sync") for broker in place.others]


def _show(places: list[ReplicaPlaces], verification: _Verification, format: Format) -> None:
    differences = [
        (place, one) for place in places for one in verification.state.of(place).differences
    ]
    skipped = [(place, one) for place in places for one in verification.state.of(place).skipped]
    if format is Format.JSON:
        output.document(
            {
                "partitions": len(places),
                "bytes_fetched": verification.bytes_fetched,
                "differences": [
                    {**_named(place), **one._asdict(), "advice": _advice(place, one)}
                    for place, one in differences
                ],
                "not_compared": [{**_named(place), **one._asdict()} for place, one in skipped],
            }
        )
    else:
        _show_table(places, verification, differences, skipped)
    if differences or skipped:
        output.leave(output.FAILED)


def _show_table(
    places: list[ReplicaPlaces],
    verification: _Verification,
    differences: list[tuple[ReplicaPlaces, Difference]],
    skipped: list[tuple[ReplicaPlaces, Skipped]],
) -> None:
    fetched = values.readable_size(verification.bytes_fetched)
    compared = f"{values.counted(len(places), 'partition')}, {fetched} fetched"
    if not differences and not skipped:
        output.line(f"All replicas are the same: {compared}")
        return
    output.table(
        ["TOPIC", "PARTITION", "BROKER", "OFFSET", "PROBLEM"],
        [
            *(
                (p.topic, p.partition, one.broker, one.offset, one.problem)
                for p, one in differences
            ),
            *(
                (p.topic, p.partition, one.broker, None, f"not compared: {one.reason}")
                for p, one in skipped
            ),
        ],
    )
    output.note(f"Compared {compared}")
    for advice in dict.fromkeys(_advice(place, one) for place, one in differences):
        output.note(advice)
    if skipped:
        output.note("Run the command again when 'headrace cluster health' passes.")


def _named(place: ReplicaPlaces) -> dict[str, object]:
    return {"topic": place.topic, "partition": place.partition}


def _advice(place: ReplicaPlaces, difference: Difference) -> str:
    broker = difference.broker
    first = (
        f"broker {broker} leads it: run 'headrace brokers shutdown {broker}' first, so that "
        "another replica leads. Then stop"
        if broker == place.leader
        else "stop"
    )
    doubt = (
        "no majority of the replicas tells which one is right. Compare the records with 'headrace "
        "dump-log' on the brokers before you delete any. To replace this replica, "
        if difference.is_tie
        else ""
    )
    return (
        f"{place.name}: {doubt}{first} broker {broker}, move its directory {place.name} out of "
        "log.dirs, and start the broker again: it copies the partition from the leader. Then "
        "verify again."
    )
