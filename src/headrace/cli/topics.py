"""``headrace topics``: create, list, describe, alter, delete, offsets, and delete-records."""

import json
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from confluent_kafka import KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # exports are undeclared
    AdminClient,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
    TopicDescription,
)

from headrace.cli import offsets as offsets_of
from headrace.cli import outcomes, output, partitions, values
from headrace.cli.client import ANSWER_TIMEOUT_S, Connection, explained
from headrace.cli.options import (
    DEFAULT_BOOTSTRAP,
    Bootstrap,
    ClientFile,
    ClientSettings,
    Format,
    IncludeInternal,
    OptionalPlaces,
    OutputFormat,
    examples,
    noun,
)
from headrace.core.topics import is_internal
from headrace.model.errors import ErrorCode

app = noun(
    "Create, list, describe, alter and delete topics.",
    "headrace topics create orders --partitions 12",
    "headrace topics describe orders",
)


def register(root: typer.Typer) -> None:
    root.add_typer(app, name="topics")


Names = Annotated[list[str], typer.Argument(metavar="TOPIC", hidden=True)]
OptionalNames = Annotated[
    list[str] | None,
    typer.Argument(metavar="TOPIC", help="Topics to describe; all if none is given."),
]


@app.command(
    no_args_is_help=True,
    epilog=examples(
        "headrace topics create orders payments --partitions 12",
        "headrace topics create users -p 4 -c cleanup.policy=compact -c segment.ms=3600000",
    ),
)
def create(
    names: Names,
    count: Annotated[
        int,
        typer.Option(
            "-p",
            "--partitions",
            metavar="N",
            show_default="the broker's num.partitions",
            help="Number of partitions per topic.",
        ),
    ] = -1,
    replicas: Annotated[
        int,
        typer.Option(
            "-r",
            "--replicas",
            "--replication-factor",
            metavar="N",
            show_default="the broker's default.replication.factor",
            help="Number of replicas per partition.",
        ),
    ] = -1,
    config: Annotated[
        list[str] | None,
        typer.Option("-c", "--config", metavar="KEY=VALUE", help="Topic setting; may be repeated."),
    ] = None,
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="Ignore topics that already exist.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check the request without creating topics.")
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    settings: ClientSettings = None,
    client_file: ClientFile = None,
    format: OutputFormat = Format.TABLE,
) -> None:
    """Create topics."""
    overrides = values.pairs(config or (), "--config")
    connection = Connection(bootstrap, settings, client_file)
    futures = connection.admin().create_topics(
        [
            NewTopic(name, num_partitions=count, replication_factor=replicas, config=overrides)
            for name in names
        ],
        request_timeout=ANSWER_TIMEOUT_S,
        validate_only=dry_run,
    )
    tolerated = (KafkaError.TOPIC_ALREADY_EXISTS,) if if_not_exists else ()
    done = "would be created" if dry_run else "created"
    _show_outcomes(connection, futures, done, tolerated, format)


@app.command(
    "list",
    epilog=examples("headrace topics list", "headrace topics list --names | grep orders"),
)
def list_topics(
    names_only: Annotated[
        bool, typer.Option("--names", help="Print only the names, one per line.")
    ] = False,
    internal: Annotated[
        bool, typer.Option("--internal/--no-internal", help="Include internal topics.")
    ] = True,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    settings: ClientSettings = None,
    client_file: ClientFile = None,
    format: OutputFormat = Format.TABLE,
) -> None:
    """List topics with their partition and replica counts."""
    connection = Connection(bootstrap, settings, client_file)
    rows = [
        {
            "name": name,
            "partitions": len(topic.partitions),
            "replicas": max((len(p.replicas) for p in topic.partitions.values()), default=0),
        }
        for name, topic in sorted(connection.metadata().topics.items())
        if internal or not is_internal(name)
    ]
    if format is Format.JSON:
        output.document(rows)
    elif names_only:
        for row in rows:
            output.line(str(row["name"]))
    else:
        output.table(["NAME", "PARTITIONS", "REPLICAS"], [list(row.values()) for row in rows])


@app.command(
    epilog=examples("headrace topics describe orders", "headrace topics describe --format json")
)
def describe(
    names: OptionalNames = None,
    internal: IncludeInternal = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    settings: ClientSettings = None,
    client_file: ClientFile = None,
    format: OutputFormat = Format.TABLE,
) -> None:
    """Show partitions, leaders, replicas and settings of topics."""
    connection = Connection(bootstrap, settings, client_file)
    admin = connection.admin()
    wanted = list(names or partitions.shown(connection.metadata().topics, internal))
    described, failures = _described(connection, admin, wanted)
    overrides = _overrides(connection, admin, [topic.name for topic in described])
    if format is Format.JSON:
        output.document([_as_document(topic, overrides[topic.name]) for topic in described])
    else:
        for number, topic in enumerate(described):
            if number:
                output.line("")
            _show_described(topic, overrides[topic.name])
    for name, error in failures:
        if error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            output.error(partitions.no_such_topic(connection, name))
        else:
            output.error(f"topic {name}: {explained(error)}")
    if failures:
        output.leave(output.FAILED)


@app.command(
    no_args_is_help=True,
    epilog=examples(
        "headrace topics alter orders --partitions 24",
        "headrace configs set topic orders retention.ms=86400000    # to change settings",
    ),
)
def alter(
    name: Annotated[str, typer.Argument(metavar="TOPIC", hidden=True)],
    count: Annotated[
        int,
        typer.Option(
            "-p",
            "--partitions",
            metavar="N",
            help="New number of partitions; cannot be reduced.",
            min=1,
        ),
    ],
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    settings: ClientSettings = None,
    client_file: ClientFile = None,
    format: OutputFormat = Format.TABLE,
) -> None:
    """Add partitions to a topic. Most keys then map to another partition."""
    connection = Connection(bootstrap, settings, client_file)
    outcome = _grown(connection, name, count, dry_run=True)
    if outcome.error is None:
        output.note(
            f"warning: with {count} partitions most keys of {name} hash to another partition "
            "than before; records already written stay where they are, so the order of a key "
            "holds only within each part"
        )
        outcome = _grown(connection, name, count, dry_run=False)
    outcomes.show(["topic", "status"], [(name, *outcome)], format)


def _grown(connection: Connection, name: str, count: int, *, dry_run: bool) -> outcomes.Outcome:
    futures = connection.admin().create_partitions(
        [NewPartitions(name, count)], request_timeout=ANSWER_TIMEOUT_S, validate_only=dry_run
    )
    return outcomes.of(connection, futures[name], f"topic {name}", f"has {count} partitions")


@app.command(
    no_args_is_help=True,
    epilog=examples(
        "headrace topics delete orders", "headrace topics delete old-1 old-2 --yes --if-exists"
    ),
)
def delete(
    names: Names,
    yes: Annotated[bool, typer.Option("-y", "--yes", help="Do not ask for confirmation.")] = False,
    if_exists: Annotated[
        bool, typer.Option("--if-exists", help="Ignore topics that do not exist.")
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    settings: ClientSettings = None,
    client_file: ClientFile = None,
    format: OutputFormat = Format.TABLE,
) -> None:
    """Delete topics and all their records. Asks for confirmation on a terminal."""
    connection = Connection(bootstrap, settings, client_file)
    admin = connection.admin()
    if not yes and sys.stdin.isatty():
        question = f"Delete {', '.join(names)} at {bootstrap} with all records?"
        if not output.confirmed(question):
            raise output.CommandFailed("nothing deleted")
    futures = admin.delete_topics(names, request_timeout=ANSWER_TIMEOUT_S)
    tolerated = (KafkaError.UNKNOWN_TOPIC_OR_PART,) if if_exists else ()
    _show_outcomes(connection, futures, "deleted", tolerated, format)


@app.command(
    epilog=examples(
        "headrace topics offsets orders",
        "headrace topics offsets orders --time 2h",
        "headrace topics offsets orders:0 orders:3 --time 2026-07-31T12:00",
    )
)
def offsets(
    names: OptionalPlaces = None,
    at: Annotated[
        str | None,
        typer.Option(
            "--time",
            metavar="TIME",
            help="Show one offset: earliest, latest, max-timestamp, or that of the first record at "
            "or after a time (ISO 8601, milliseconds since 1970, or a duration before now, as 2h).",
        ),
    ] = None,
    plain: Annotated[
        bool,
        typer.Option("--plain", help="Print TOPIC:PARTITION:OFFSET lines. Requires --time."),
    ] = False,
    internal: IncludeInternal = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    settings: ClientSettings = None,
    client_file: ClientFile = None,
    format: OutputFormat = Format.TABLE,
) -> None:
    """Show partition offsets: start and end, or at a time."""
    connection = Connection(bootstrap, settings, client_file)
    admin = connection.admin()
    if plain and at is None:
        raise values.wrong("--plain requires --time: it prints one offset per partition")
    found_partitions, failures = partitions.find(connection, names or [], internal=internal)
    wanted = list(found_partitions)
    rows: list[dict[str, str | int | None]]
    if at is None:
        first = offsets_of.listed(connection, admin, wanted, offsets_of.EARLIEST)
        end = offsets_of.listed(connection, admin, wanted, offsets_of.LATEST)
        rows = [
            {
                "topic": topic,
                "partition": partition,
                "earliest": first[topic, partition].offset,
                "latest": end[topic, partition].offset,
            }
            for topic, partition in wanted
        ]
    else:
        found = offsets_of.listed(connection, admin, wanted, _spec(at))
        rows = [
            {"topic": topic, "partition": partition, **found[topic, partition]._asdict()}
            for topic, partition in wanted
        ]
    if format is Format.JSON:
        output.document(rows)
    elif plain:
        for row in rows:
            if row["offset"] is not None:
                output.line(f"{row['topic']}:{row['partition']}:{row['offset']}")
    elif rows or not failures:
        _show_offsets(rows)
    for reason in failures:
        output.error(reason)
    if failures:
        output.leave(output.FAILED)


def _show_offsets(rows: list[dict[str, str | int | None]]) -> None:
    for row in rows:
        timestamp = row.get("timestamp")
        if isinstance(timestamp, int):
            row["timestamp"] = values.iso(timestamp)
    columns = list(rows[0]) if rows else ["topic", "partition", "earliest", "latest"]
    # Even if no partition has a record at that time, the column shows it.
    output.table(
        [name.upper() for name in columns], [list(row.values()) for row in rows], kept={"OFFSET"}
    )


@app.command(
    "delete-records",
    epilog=examples(
        "headrace topics delete-records orders:0 --before 1000",
        "headrace topics delete-records orders --before latest --yes    # all records",
        "headrace topics delete-records --file offsets.json",
    ),
)
def delete_records(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TOPIC[:PARTITION]",
            help="Topics or partitions: orders, orders:0, orders:0,2-4.",
        ),
    ] = None,
    before: Annotated[
        str | None,
        typer.Option(
            "--before",
            metavar="OFFSET",
            help='Delete records below this offset; "latest" deletes all current records.',
        ),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            "--file",
            metavar="FILE",
            help="JSON file with partitions and offsets, as for kafka-delete-records.",
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("-y", "--yes", help="Do not ask for confirmation.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    settings: ClientSettings = None,
    client_file: ClientFile = None,
    format: OutputFormat = Format.TABLE,
) -> None:
    """Delete the oldest records of partitions. Asks for confirmation on a terminal."""
    connection = Connection(bootstrap, settings, client_file)
    wanted = _deletions(connection, names or [], before, file)
    if not yes and sys.stdin.isatty():
        shown = ", ".join(f"{p.topic}:{p.partition}" for p in wanted)
        if not output.confirmed(f"Delete the oldest records of {shown} at {bootstrap}?"):
            raise output.CommandFailed("nothing deleted")
    futures = connection.admin().delete_records(wanted, request_timeout=ANSWER_TIMEOUT_S)
    rows = []
    for one, future in sorted(futures.items(), key=lambda pair: str(pair[0])):
        outcome = outcomes.of(connection, future, f"{one.topic}:{one.partition}")
        if outcome.error is None:
            outcome = outcome._replace(result=outcome.result.low_watermark)
        elif outcome.error == ErrorCode.OFFSET_OUT_OF_RANGE.name:
            where = f"'headrace topics offsets {one.topic}' shows where it ends"
            outcome = outcome._replace(detail=f"{one.offset} is beyond its end; {where}")
        rows.append((one.topic, one.partition, *outcome))
    outcomes.show(["topic", "partition", "low_watermark"], rows, format)


_ALL_THERE_IS = -1


def _deletions(
    connection: Connection, names: list[str], before: str | None, file: Path | None
) -> list[TopicPartition]:
    if file is not None:
        if names or before is not None:
            raise values.wrong("--file says which partitions and offsets; give nothing else")
        try:
            entries = json.loads(file.read_text())["partitions"]
            return [TopicPartition(e["topic"], e["partition"], e["offset"]) for e in entries]
        except (OSError, ValueError, KeyError, TypeError) as problem:
            raise output.CommandFailed(
                f'{file}: {problem!r}; expected {{"partitions": [{{"topic": "t", "partition": 0, '
                '"offset": 5}, …]}'
            ) from None
    if not names or before is None:
        raise values.wrong("name the partitions, and --before with the first offset that stays")
    if before != "latest" and not before.isdecimal():
        raise values.wrong(f"--before {before}: expected an offset, or latest")
    offset = _ALL_THERE_IS if before == "latest" else int(before)
    return [TopicPartition(*one, offset) for one in partitions.named(connection, names)]


def _show_outcomes(
    connection: Connection,
    futures: dict[str, Any],
    done: str,
    tolerated: tuple[int, ...],
    format: Format,
) -> None:
    rows = []
    for name, future in futures.items():
        outcome = outcomes.of(connection, future, f"topic {name}", done, tolerated)
        if outcome.error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION.name:
            outcome = outcome._replace(detail=partitions.no_such_topic(connection, name))
        rows.append((name, *outcome))
    outcomes.show(["topic", "status"], rows, format)


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


def _overrides(
    connection: Connection, admin: AdminClient, names: list[str]
) -> dict[str, dict[str, str]]:
    """What of each topic's settings is not the default."""
    if not names:
        return {}
    futures = admin.describe_configs(
        [ConfigResource(ResourceType.TOPIC, name) for name in names],
        request_timeout=ANSWER_TIMEOUT_S,
    )
    try:
        return {
            resource.name: {
                name: entry.value
                for name, entry in sorted(connection.answer(future, "settings").items())
                if not entry.is_default
            }
            for resource, future in futures.items()
        }
    except KafkaException as failure:
        raise connection.failed(failure, "reading settings of topics") from None


def _as_document(topic: TopicDescription, overrides: dict[str, str]) -> dict[str, object]:
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


def _show_described(topic: TopicDescription, overrides: dict[str, str]) -> None:
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
    """As Kafka's tools and the files on disk spell it; the client has another base64."""
    return str(topic.topic_id).translate(str.maketrans("+/", "-_"))


def _node_id(node: Any) -> int | None:
    """None where a partition has no leader, which the client's types leave out."""
    return None if node is None else int(node.id)


def _replication_factor(topic: TopicDescription) -> int:
    return max((len(p.replicas) for p in topic.partitions), default=0)


def _spec(text: str) -> offsets_of.Spec:
    match text:
        case "earliest":
            return offsets_of.EARLIEST
        case "latest":
            return offsets_of.LATEST
        case "max-timestamp":
            return offsets_of.MAX_TIMESTAMP
    now = round(time.time() * 1000)
    others = "earliest, latest, max-timestamp, "
    return offsets_of.at_time(values.instant_ms(text, now, "--time", others))
