"""``headrace topics offsets``: the offsets at which partitions start and end, or at a time."""

import time
from typing import Annotated

import typer

from headrace.cli import offsets as offsets_of
from headrace.cli import output, partitions, values
from headrace.cli.client import Connection
from headrace.cli.options import (
    DEFAULT_BOOTSTRAP,
    Bootstrap,
    ClientFile,
    ClientSettings,
    Format,
    IncludeInternal,
    OptionalPlaces,
    OutputFormat,
)
from headrace.cli.partitions import Partition

Row = dict[str, str | int | None]


def offsets(
    names: OptionalPlaces = None,
    at: Annotated[
        str | None,
        typer.Option(
            "--time",
            metavar="TIME",
            help="Show one offset per partition: earliest, latest, max-timestamp (the record with "
            "the newest timestamp), or the first record at or after a time: ISO 8601 (local time "
            "unless it has a time zone), milliseconds since 1970, or a duration before now (2h).",
        ),
    ] = None,
    plain: Annotated[
        bool, typer.Option("--plain", help="Print TOPIC:PARTITION:OFFSET lines. Requires --time.")
    ] = False,
    internal: IncludeInternal = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    settings: ClientSettings = None,
    client_file: ClientFile = None,
    format: OutputFormat = Format.TABLE,
) -> None:
    """Show partition offsets: start and end, or at a time."""
    if plain and at is None:
        raise values.wrong("--plain requires --time: it prints one offset per partition")
    connection = Connection(bootstrap, settings, client_file)
    found, failures = partitions.find(connection, names or [], internal=internal)
    wanted = list(found)
    rows = _bounds(connection, wanted) if at is None else _at_time(connection, wanted, at)
    if format is Format.JSON:
        output.document(rows)
    elif plain:
        for row in rows:
            if row["offset"] is not None:
                output.line(f"{row['topic']}:{row['partition']}:{row['offset']}")
    elif rows or not failures:
        _show(rows)
    for reason in failures:
        output.error(reason)
    if failures:
        output.leave(output.FAILED)


def _bounds(connection: Connection, wanted: list[Partition]) -> list[Row]:
    admin = connection.admin()
    first = offsets_of.listed(connection, admin, wanted, offsets_of.EARLIEST)
    end = offsets_of.listed(connection, admin, wanted, offsets_of.LATEST)
    return [
        {
            "topic": topic,
            "partition": partition,
            "earliest": first[topic, partition].offset,
            "latest": end[topic, partition].offset,
        }
        for topic, partition in wanted
    ]


def _at_time(connection: Connection, wanted: list[Partition], at: str) -> list[Row]:
    found = offsets_of.listed(connection, connection.admin(), wanted, _spec(at))
    return [
        {"topic": topic, "partition": partition, **found[topic, partition]._asdict()}
        for topic, partition in wanted
    ]


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


def _show(rows: list[Row]) -> None:
    for row in rows:
        timestamp = row.get("timestamp")
        if isinstance(timestamp, int):
            row["timestamp"] = values.iso(timestamp)
    columns = list(rows[0]) if rows else ["topic", "partition", "earliest", "latest"]
    # OFFSET stays even if no partition has a record at that time: that is a result too.
    output.table(
        [name.upper() for name in columns], [list(row.values()) for row in rows], kept={"OFFSET"}
    )
