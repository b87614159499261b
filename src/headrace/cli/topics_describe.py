"""``headrace topics describe``: partitions, leaders, replicas and settings of topics.

Any broker answers, so the command also works while the cluster has no controller.
"""

from base64 import urlsafe_b64encode
from typing import Annotated, NamedTuple

import typer

from headrace.cli import output, partitions
from headrace.cli.broker_requests import open_cluster
from headrace.cli.client import Connection, code_name
from headrace.cli.cluster_view import (
    PartitionView,
    Setting,
    Topic,
    min_isr_of,
    numbers,
    partitions_of,
    read_topic_settings,
)
from headrace.cli.options import (
    DEFAULT_BOOTSTRAP,
    Bootstrap,
    ClientFile,
    ClientSettings,
    Format,
    IncludeInternal,
    Matching,
    OutputFormat,
)
from headrace.client.cluster import Cluster
from headrace.model.errors import ErrorCode
from headrace.model.settings.resources import ConfigSource

OptionalNames = Annotated[
    list[str] | None,
    typer.Argument(metavar="TOPIC", help="Topics to describe; all if none is given."),
]


class Described(NamedTuple):
    """One topic as a broker describes it."""

    topic: Topic
    settings: list[Setting]

    @property
    def name(self) -> str:
        return self.topic.name or ""

    @property
    def topic_id(self) -> str:
        """In URL-safe base64, as Kafka's tools and the files on disk have it."""
        return urlsafe_b64encode(self.topic.topic_id).decode().rstrip("=")

    @property
    def partitions(self) -> list[PartitionView]:
        return partitions_of(self.topic, min_isr_of(self.settings))

    @property
    def replication_factor(self) -> int:
        return max((len(one.replicas) for one in self.partitions), default=0)

    @property
    def overrides(self) -> dict[str, str]:
        """The settings that differ from the defaults."""
        return {
            one.name: one.value or ""
            for one in sorted(self.settings, key=lambda one: one.name)
            if one.config_source != ConfigSource.DEFAULT_CONFIG
        }


def describe(
    names: OptionalNames = None,
    matching: Matching = None,
    internal: IncludeInternal = False,
    under_replicated: Annotated[
        bool,
        typer.Option("--under-replicated", help="Show only partitions with replicas out of sync."),
    ] = False,
    under_min_isr: Annotated[
        bool,
        typer.Option(
            "--under-min-isr",
            help="Show only partitions with fewer in-sync replicas than min.insync.replicas.",
        ),
    ] = False,
    at_min_isr: Annotated[
        bool,
        typer.Option(
            "--at-min-isr",
            help="Show only partitions with exactly min.insync.replicas in-sync replicas.",
        ),
    ] = False,
    unavailable: Annotated[
        bool, typer.Option("--unavailable", help="Show only partitions without a leader.")
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    settings: ClientSettings = None,
    client_file: ClientFile = None,
    format: OutputFormat = Format.TABLE,
) -> None:
    """Show partitions, leaders, replicas and settings of topics.

    With several filters, a partition is shown if one of them applies.
    """
    connection = Connection(bootstrap, settings, client_file)
    with open_cluster(connection) as cluster:
        described, failures = _described(cluster, names, matching, internal)
    filters = {
        "is_under_replicated": under_replicated,
        "is_under_min_isr": under_min_isr,
        "is_at_min_isr": at_min_isr,
        "is_unavailable": unavailable,
    }
    chosen = [name for name, is_given in filters.items() if is_given]
    if chosen:
        _show_partitions(described, chosen, format)
    elif format is Format.JSON:
        output.document([_document(topic) for topic in described])
    else:
        for number, topic in enumerate(described):
            if number:
                output.line("")
            _show(topic)
    for failed in failures:
        if failed.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            output.error(partitions.no_such_topic(connection, failed.name or ""))
        else:
            output.error(f"topic {failed.name}: {code_name(failed.error_code)}")
    if failures:
        output.leave(output.FAILED)


def _described(
    cluster: Cluster, names: list[str] | None, matching: str | None, internal: bool
) -> tuple[list[Described], list[Topic]]:
    """The topics in the order of the request, and the topics with an error."""
    response = cluster.persistently(
        lambda: cluster.metadata(names or None), "reading the cluster metadata"
    )
    topics = {topic.name: topic for topic in response.topics if topic.name is not None}
    chosen = partitions.chosen(names, matching, topics)
    wanted = dict.fromkeys(chosen or partitions.shown(topics, internal))
    found = [topics[name] for name in wanted if name in topics]
    good = [topic for topic in found if not topic.error_code]
    settings = read_topic_settings(cluster, [topic.name or "" for topic in good])
    return (
        [Described(topic, settings.get(topic.name or "", [])) for topic in good],
        [topic for topic in found if topic.error_code],
    )


def _show_partitions(described: list[Described], chosen: list[str], format: Format) -> None:
    """Only the partitions for which one of the ``chosen`` properties is true."""
    found = [
        partition
        for topic in described
        for partition in topic.partitions
        if any(getattr(partition, name) for name in chosen)
    ]
    if format is Format.JSON:
        output.document(
            [{"topic": one.topic, **_replicas(one), "min_isr": one.min_isr} for one in found]
        )
    else:
        output.table(
            ["Topic", "Partition", "Leader", "Replicas", "Isr", "MinIsr"],
            [(one.topic, *_cells(one), one.min_isr) for one in found],
        )


def _document(topic: Described) -> dict[str, object]:
    return {
        "name": topic.name,
        "topic_id": topic.topic_id,
        "internal": topic.topic.is_internal,
        "partition_count": len(topic.partitions),
        "replication_factor": topic.replication_factor,
        "configs": topic.overrides,
        "partitions": [_replicas(partition) for partition in topic.partitions],
    }


def _replicas(partition: PartitionView) -> dict[str, object]:
    return {
        "partition": partition.partition,
        "leader": partition.leader,
        "replicas": partition.replicas,
        "isr": partition.isr,
    }


def _show(topic: Described) -> None:
    configs = ",".join(f"{name}={value}" for name, value in topic.overrides.items())
    output.heading(
        f"Topic: {topic.name}  TopicId: {topic.topic_id}  "
        f"PartitionCount: {len(topic.partitions)}  "
        f"ReplicationFactor: {topic.replication_factor}  Configs: {configs}".rstrip()
    )
    output.table(
        ["Partition", "Leader", "Replicas", "Isr"],
        [_cells(partition) for partition in topic.partitions],
    )


def _cells(partition: PartitionView) -> tuple[object, ...]:
    return (
        partition.partition,
        "none" if partition.leader is None else partition.leader,
        numbers(partition.replicas),
        numbers(partition.isr),
    )
