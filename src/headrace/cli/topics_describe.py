"""``headrace topics describe``: partitions, leaders, replicas and settings of topics."""

from collections.abc import Mapping
from typing import Annotated, Any

import typer
from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # exports are undeclared
    AdminClient,
    ConfigEntry,
    ConfigResource,
    ResourceType,
    TopicDescription,
)

from headrace.cli import output, partitions
from headrace.cli.client import ANSWER_TIMEOUT_S, Connection, explained
from headrace.cli.cluster_view import MIN_ISR, PartitionView, numbers
from headrace.cli.options import (
    DEFAULT_BOOTSTRAP,
    Bootstrap,
    ClientFile,
    ClientSettings,
    Format,
    IncludeInternal,
    OutputFormat,
)

OptionalNames = Annotated[
    list[str] | None,
    typer.Argument(metavar="TOPIC", help="Topics to describe; all if none is given."),
]


# The settings of topics by topic and name.
Settings = dict[str, Mapping[str, ConfigEntry]]


def describe(
    names: OptionalNames = None,
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
    admin = connection.admin()
    wanted = list(names or partitions.shown(connection.metadata().topics, internal))
    described, failures = _described(connection, admin, wanted)
    found = _settings(connection, admin, [topic.name for topic in described])
    filters = {
        "is_under_replicated": under_replicated,
        "is_under_min_isr": under_min_isr,
        "is_at_min_isr": at_min_isr,
        "is_unavailable": unavailable,
    }
    chosen = [name for name, is_given in filters.items() if is_given]
    if chosen:
        _show_partitions(described, found, chosen, format)
    elif format is Format.JSON:
        output.document([_document(topic, _overrides(found, topic)) for topic in described])
    else:
        for number, topic in enumerate(described):
            if number:
                output.line("")
            _show(topic, _overrides(found, topic))
    for name, error in failures:
        if error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            output.error(partitions.no_such_topic(connection, name))
        else:
            output.error(f"topic {name}: {explained(error)}")
    if failures:
        output.leave(output.FAILED)


def _described(
    connection: Connection, admin: AdminClient, names: list[str]
) -> tuple[list[TopicDescription], list[tuple[str, KafkaError]]]:
    described, failures = [], []
    if not names:
        return [], []
    futures = admin.describe_topics(TopicCollection(names), request_timeout=ANSWER_TIMEOUT_S)
    for name, future in futures.items():
        try:
            described.append(connection.answer(future, f"topic {name}"))
        except KafkaException as failure:
            failures.append((name, failure.args[0]))
    return described, failures


def _settings(connection: Connection, admin: AdminClient, names: list[str]) -> Settings:
    if not names:
        return {}
    futures = admin.describe_configs(
        [ConfigResource(ResourceType.TOPIC, name) for name in names],
        request_timeout=ANSWER_TIMEOUT_S,
    )
    try:
        return {
            resource.name: connection.answer(future, "settings")
            for resource, future in futures.items()
        }
    except KafkaException as failure:
        raise connection.failed(failure, "reading topic settings") from None


def _overrides(settings: Settings, topic: TopicDescription) -> dict[str, str]:
    """The settings of a topic that differ from the defaults."""
    return {
        name: entry.value or ""
        for name, entry in sorted(settings[topic.name].items())
        if not entry.is_default
    }


def _show_partitions(
    described: list[TopicDescription], settings: Settings, chosen: list[str], format: Format
) -> None:
    """Only the partitions for which one of the ``chosen`` properties is true."""
    partitions = [
        partition
        for topic in described
        for partition in _partitions(topic, int(settings[topic.name][MIN_ISR].value or 1))
        if any(getattr(partition, name) for name in chosen)
    ]
    if format is Format.JSON:
        output.document(
            [
                {
                    "topic": one.topic,
                    "partition": one.partition,
                    "leader": one.leader,
                    "replicas": one.replicas,
                    "isr": one.isr,
                    "min_isr": one.min_isr,
                }
                for one in partitions
            ]
        )
    else:
        output.table(
            ["Topic", "Partition", "Leader", "Replicas", "Isr", "MinIsr"],
            [
                (
                    one.topic,
                    one.partition,
                    "none" if one.leader is None else one.leader,
                    numbers(one.replicas),
                    numbers(one.isr),
                    one.min_isr,
                )
                for one in partitions
            ],
        )


def _partitions(topic: TopicDescription, min_isr: int) -> list[PartitionView]:
    return [
        PartitionView(
            topic.name,
            one.id,
            _node_id(one.leader),
            [node.id for node in one.replicas],
            [node.id for node in one.isr],
            [],
            min_isr,
        )
        for one in topic.partitions
    ]


def _document(topic: TopicDescription, overrides: dict[str, str]) -> dict[str, object]:
    return {
        "name": topic.name,
        "topic_id": _topic_id(topic),
        "internal": topic.is_internal,
        "partition_count": len(topic.partitions),
        "replication_factor": _replication_factor(topic),
        "configs": overrides,
        "partitions": [
            {
                "partition": p.id,
                "leader": _node_id(p.leader),
                "replicas": [node.id for node in p.replicas],
                "isr": [node.id for node in p.isr],
            }
            for p in topic.partitions
        ],
    }


def _show(topic: TopicDescription, overrides: dict[str, str]) -> None:
    configs = ",".join(f"{name}={value}" for name, value in overrides.items())
    output.heading(
        f"Topic: {topic.name}  TopicId: {_topic_id(topic)}  "
        f"PartitionCount: {len(topic.partitions)}  "
        f"ReplicationFactor: {_replication_factor(topic)}  Configs: {configs}".rstrip()
    )
    output.table(
        ["Partition", "Leader", "Replicas", "Isr"],
        [
            (
                p.id,
                "none" if _node_id(p.leader) is None else _node_id(p.leader),
                ",".join(str(node.id) for node in p.replicas),
                ",".join(str(node.id) for node in p.isr),
            )
            for p in topic.partitions
        ],
    )


def _topic_id(topic: TopicDescription) -> str:
    """In URL-safe base64, as Kafka's tools and the files on disk have it; the client's is not."""
    return str(topic.topic_id).translate(str.maketrans("+/", "-_"))


def _node_id(node: Any) -> int | None:
    """None for a partition without a leader, a case that the client's types omit."""
    return None if node is None else int(node.id)


def _replication_factor(topic: TopicDescription) -> int:
    return max((len(p.replicas) for p in topic.partitions), default=0)
