"""``headrace topics delete-records``: delete the oldest records of partitions."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer
from confluent_kafka import TopicPartition

from headrace.cli import outcomes, output, partitions, values
from headrace.cli.client import ANSWER_TIMEOUT_S, Connection
from headrace.cli.options import (
    DEFAULT_BOOTSTRAP,
    Bootstrap,
    ClientFile,
    ClientSettings,
    Format,
    OutputFormat,
    Yes,
)
from headrace.model.errors import ErrorCode

_ALL_RECORDS = -1  # the offset that means the end of the partition


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
    yes: Yes = False,
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
            advice = f"'headrace topics offsets {one.topic}' shows the end"
            outcome = outcome._replace(detail=f"{one.offset} is beyond the end; {advice}")
        rows.append((one.topic, one.partition, *outcome))
    outcomes.show(["topic", "partition", "low_watermark"], rows, format)


def _deletions(
    connection: Connection, names: list[str], before: str | None, file: Path | None
) -> list[TopicPartition]:
    """Each partition with the first offset to keep."""
    if file is not None:
        if names or before is not None:
            raise values.wrong("--file names the partitions and offsets; give nothing else")
        try:
            entries = json.loads(file.read_text())["partitions"]
            return [TopicPartition(e["topic"], e["partition"], e["offset"]) for e in entries]
        except (OSError, ValueError, KeyError, TypeError) as problem:
            raise output.CommandFailed(
                f'{file}: {problem!r}; expected {{"partitions": [{{"topic": "t", "partition": 0, '
                '"offset": 5}, …]}'
            ) from None
    if not names or before is None:
        raise values.wrong("name the partitions, and the first offset to keep with --before")
    if before != "latest" and not before.isdecimal():
        raise values.wrong(f"--before {before}: expected an offset, or latest")
    offset = _ALL_RECORDS if before == "latest" else int(before)
    return [TopicPartition(*one, offset) for one in partitions.named(connection, names)]
