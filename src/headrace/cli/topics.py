"""``headrace topics``: create, list, alter and delete topics."""

import sys
from collections.abc import Callable
from typing import Annotated, Any, cast

import typer
from confluent_kafka import KafkaError
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # exports are undeclared
    NewPartitions,
    NewTopic,
)

from headrace.cli import outcomes, output, partitions, values
from headrace.cli.client import ANSWER_TIMEOUT_S, Connection
from headrace.cli.log_dirs import topic_sizes
from headrace.cli.options import (
    DEFAULT_BOOTSTRAP,
    Bootstrap,
    ClientFile,
    ClientSettings,
    Format,
    Matching,
    OutputFormat,
    Yes,
    examples,
    noun,
)
from headrace.cli.reassignment_tables import parse_rate
from headrace.cli.topics_delete_records import delete_records
from headrace.cli.topics_describe import describe
from headrace.cli.topics_offsets import offsets
from headrace.cli.topics_replicas import change_factor
from headrace.core.topics import is_internal
from headrace.model.errors import ErrorCode

app = noun(
    "Create, list, describe, alter and delete topics.",
    "headrace topics create orders --partitions 12",
    "headrace topics describe orders",
)

Names = Annotated[list[str], typer.Argument(metavar="TOPIC", hidden=True)]


def register(root: typer.Typer) -> None:
    root.add_typer(app, name="topics")


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
    assignment: Annotated[
        str | None,
        typer.Option(
            "--replica-assignment",
            metavar="IDS",
            help="Brokers of each partition, the preferred leader first: 1:2,2:3 for two "
            "partitions. Replaces --partitions and --replicas.",
        ),
    ] = None,
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
    placed = None if assignment is None else _parse_assignment(assignment)
    if placed is not None and (count, replicas) != (-1, -1):
        raise values.wrong("give --replica-assignment, or --partitions and --replicas")
    connection = Connection(bootstrap, settings, client_file)

    def send(wanted: list[str]) -> dict[str, Any]:
        return connection.admin().create_topics(
            [_new_topic(name, count, replicas, placed, overrides) for name in wanted],
            request_timeout=ANSWER_TIMEOUT_S,
            validate_only=dry_run,
        )

    tolerated = (KafkaError.TOPIC_ALREADY_EXISTS,) if if_not_exists else ()
    done = "would be created" if dry_run else "created"
    _show_outcomes(connection, send, names, done, format, tolerated)


def _new_topic(
    name: str,
    count: int,
    replicas: int,
    placed: list[list[int]] | None,
    overrides: dict[str, str],
) -> NewTopic:
    if placed is not None:
        return NewTopic(name, len(placed), replica_assignment=placed, config=overrides)
    return NewTopic(name, num_partitions=count, replication_factor=replicas, config=overrides)


@app.command(
    "list",
    epilog=examples(
        "headrace topics list",
        "headrace topics list --size",
        "headrace topics list --matching 'orders-.*'",
        "headrace topics list --names | grep orders",
    ),
)
def list_topics(
    matching: Annotated[
        str | None,
        typer.Option(
            "--matching",
            metavar="REGEX",
            help="List only topics whose whole name matches this regular expression.",
        ),
    ] = None,
    names_only: Annotated[
        bool, typer.Option("--names", help="Print only the names, one per line.")
    ] = False,
    with_size: Annotated[
        bool, typer.Option("--size", help="Show the disk usage of all replicas.")
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
    topics = connection.metadata().topics
    listed = sorted(topics) if matching is None else partitions.matching(topics, matching)
    rows: list[dict[str, object]] = [
        {
            "name": name,
            "partitions": len(topics[name].partitions),
            "replicas": max((len(p.replicas) for p in topics[name].partitions.values()), default=0),
        }
        for name in listed
        if internal or not is_internal(name)
    ]
    if with_size:
        sizes = topic_sizes(connection)
        for row in rows:
            row["size"] = sizes.get(str(row["name"]), 0)
    if format is Format.JSON:
        output.document(rows)
    elif names_only:
        for row in rows:
            output.line(str(row["name"]))
    else:
        for row in rows:
            if with_size:
                row["size"] = values.readable_size(cast(int, row["size"]))
        columns = ["NAME", "PARTITIONS", "REPLICAS", *(["SIZE"] if with_size else [])]
        output.table(columns, [list(row.values()) for row in rows])


app.command(
    "describe",
    epilog=examples(
        "headrace topics describe orders",
        "headrace topics describe --under-replicated",
        "headrace topics describe --format json",
    ),
)(describe)


@app.command(
    no_args_is_help=True,
    epilog=examples(
        "headrace topics alter orders --partitions 24",
        "headrace topics alter orders --replication-factor 3 --throttle 50M",
        "headrace configs set topic orders retention.ms=86400000    # to change settings",
    ),
)
def alter(
    name: Annotated[str, typer.Argument(metavar="TOPIC", hidden=True)],
    count: Annotated[
        int | None,
        typer.Option(
            "-p",
            "--partitions",
            metavar="N",
            help="New number of partitions; cannot be reduced.",
            min=1,
        ),
    ] = None,
    factor: Annotated[
        int | None,
        typer.Option(
            "-r",
            "--replicas",
            "--replication-factor",
            metavar="N",
            help="New number of replicas per partition. The command waits until they are in sync.",
            min=1,
        ),
    ] = None,
    throttle: Annotated[
        str | None,
        typer.Option(
            "--throttle",
            metavar="BYTES",
            show_default="unlimited",
            help="With --replication-factor: bytes per second that each broker copies.",
        ),
    ] = None,
    assignment: Annotated[
        str | None,
        typer.Option(
            "--replica-assignment",
            metavar="IDS",
            help="With --partitions: brokers of each partition, also of the existing ones, which "
            "stay where they are: 1:2,2:3,3:1.",
        ),
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    settings: ClientSettings = None,
    client_file: ClientFile = None,
    format: OutputFormat = Format.TABLE,
) -> None:
    """Add partitions, or change the replication factor.

    Additional partitions change the partition of most keys.
    """
    if (count is None) == (factor is None):
        raise values.wrong("give one of --partitions and --replication-factor")
    connection = Connection(bootstrap, settings, client_file)
    if factor is not None:
        change_factor(connection, name, factor, parse_rate(throttle), format)
    elif count is not None:
        placed = None if assignment is None else _parse_assignment(assignment)
        _add_partitions(connection, name, count, placed, format)


def _parse_assignment(text: str) -> list[list[int]]:
    """``1:2,2:3`` as the brokers of each partition."""
    try:
        placed = [[int(broker) for broker in part.split(":")] for part in text.split(",")]
    except ValueError:
        raise values.wrong(
            f"--replica-assignment {text!r}: expected broker IDs such as 1:2,2:3"
        ) from None
    for partition, brokers in enumerate(placed):
        if len(set(brokers)) < len(brokers):
            raise values.wrong(
                f"--replica-assignment {text!r}: partition {partition} has a broker twice"
            )
    return placed


def _add_partitions(
    connection: Connection,
    name: str,
    count: int,
    placed: list[list[int]] | None,
    format: Format,
) -> None:
    added = None if placed is None else _of_new_partitions(connection, name, count, placed)

    def grow(dry_run: bool) -> outcomes.Outcome:
        found = _outcomes(
            connection,
            lambda wanted: connection.admin().create_partitions(
                [
                    NewPartitions(one, count)
                    if added is None
                    else NewPartitions(one, count, replica_assignment=added)
                    for one in wanted
                ],
                request_timeout=ANSWER_TIMEOUT_S,
                validate_only=dry_run,
            ),
            [name],
            f"has {count} partitions",
        )
        return found[name]

    outcome = grow(dry_run=True)
    if outcome.error is None:
        output.note(
            f"warning: with {count} partitions, most keys of {name} map to another partition than "
            "before. Existing records stay where they are, so records of one key are in order "
            "only within each partition"
        )
        outcome = grow(dry_run=False)
    outcomes.show(["topic", "status"], [(name, *outcome)], format)


def _of_new_partitions(
    connection: Connection, name: str, count: int, placed: list[list[int]]
) -> list[list[int]]:
    topics = connection.metadata().topics
    partitions.check_topics(connection, [name], topics)
    if len(placed) != count:
        raise values.wrong(
            f"--replica-assignment names {values.counted(len(placed), 'partition')}, but "
            f"--partitions is {count}"
        )
    return placed[len(topics[name].partitions) :]


@app.command(
    no_args_is_help=True,
    epilog=examples(
        "headrace topics delete orders",
        "headrace topics delete old-1 old-2 --yes --if-exists",
        "headrace topics delete --matching 'test-.*'",
    ),
)
def delete(
    names: Annotated[list[str] | None, typer.Argument(metavar="TOPIC", hidden=True)] = None,
    matching: Matching = None,
    yes: Yes = False,
    if_exists: Annotated[
        bool, typer.Option("--if-exists", help="Ignore topics that do not exist.")
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    settings: ClientSettings = None,
    client_file: ClientFile = None,
    format: OutputFormat = Format.TABLE,
) -> None:
    """Delete topics and all their records. Asks for confirmation on a terminal.

    --matching does not delete internal topics.
    """
    connection = Connection(bootstrap, settings, client_file)
    wanted_topics = _to_delete(connection, names, matching, if_exists)
    if not wanted_topics:
        return
    admin = connection.admin()
    if not yes and sys.stdin.isatty():
        question = f"Delete {', '.join(wanted_topics)} at {bootstrap} with all records?"
        if not output.confirmed(question):
            raise output.CommandFailed("nothing deleted")

    def send(wanted: list[str]) -> dict[str, Any]:
        return admin.delete_topics(wanted, request_timeout=ANSWER_TIMEOUT_S)

    tolerated = (KafkaError.UNKNOWN_TOPIC_OR_PART,) if if_exists else ()
    _show_outcomes(connection, send, wanted_topics, "deleted", format, tolerated)


def _to_delete(
    connection: Connection, names: list[str] | None, matching: str | None, if_exists: bool
) -> list[str]:
    if not names and matching is None:
        raise values.wrong("name a topic, or use --matching")
    topics = () if matching is None else connection.metadata().topics
    own = [name for name in topics if not is_internal(name)]
    if matching is not None and if_exists and not partitions.matching(own, matching):
        return []
    return partitions.chosen(names, matching, own)


app.command(
    "offsets",
    epilog=examples(
        "headrace topics offsets orders",
        "headrace topics offsets orders --time 2h",
        "headrace topics offsets orders:0 orders:3 --time 2026-07-31T12:00",
    ),
)(offsets)


app.command(
    "delete-records",
    epilog=examples(
        "headrace topics delete-records orders:0 --before 1000",
        "headrace topics delete-records orders --before latest --yes    # all records",
        "headrace topics delete-records --file offsets.json",
    ),
)(delete_records)


def _show_outcomes(
    connection: Connection,
    send: Callable[[list[str]], dict[str, Any]],
    names: list[str],
    done: str,
    format: Format,
    tolerated: tuple[int, ...],
) -> None:
    found = _outcomes(connection, send, names, done, tolerated)
    outcomes.show(["topic", "status"], [(name, *one) for name, one in found.items()], format)


def _outcomes(
    connection: Connection,
    send: Callable[[list[str]], dict[str, Any]],
    names: list[str],
    done: str,
    tolerated: tuple[int, ...] = (),
) -> dict[str, outcomes.Outcome]:
    found = outcomes.of_controller(connection, send, names, done, tolerated)
    for name, outcome in found.items():
        if outcome.error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION.name:
            found[name] = outcome._replace(detail=partitions.no_such_topic(connection, name))
    return found
