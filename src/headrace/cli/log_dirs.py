"""``headrace log-dirs``: which partition lies in which folder of which broker, and how large."""

from typing import Annotated, Any

import typer

from headrace.cli import output
from headrace.cli.broker_requests import ask, error_name
from headrace.cli.client import Connection
from headrace.cli.options import (
    DEFAULT_BOOTSTRAP,
    Bootstrap,
    ClientFile,
    ClientSettings,
    Format,
    OutputFormat,
    examples,
)
from headrace.wire import messages as m

_DESCRIBE_LOG_DIRS = 35


def register(root: typer.Typer) -> None:
    root.command(
        "log-dirs",
        epilog=examples("headrace log-dirs", "headrace log-dirs orders --format json"),
    )(log_dirs)


def log_dirs(
    topics: Annotated[
        list[str] | None, typer.Argument(metavar="TOPIC", help="All topics if none is named.")
    ] = None,
    brokers: Annotated[
        list[str] | None,
        typer.Option("--broker", metavar="ID", help="This broker only; may be repeated."),
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    settings: ClientSettings = None,
    client_file: ClientFile = None,
    format: OutputFormat = Format.TABLE,
) -> None:
    """Show the folders of each broker (log.dirs), what lies in them, and whether they work.

    The JSON form is that of kafka-log-dirs. The status is 1 if a folder is offline.
    """
    connection = Connection(bootstrap, settings, client_file)
    addresses = connection.brokers()
    unknown = [number for number in brokers or () if number not in addresses]
    if unknown:
        raise output.CommandFailed(
            f"there is no broker {', '.join(unknown)}; the cluster has "
            f"{', '.join(sorted(addresses))}"
        )
    found = {
        number: _described(connection, address)
        for number, address in sorted(addresses.items())
        if not brokers or number in brokers
    }
    if format is Format.JSON:
        output.line_of_json(
            {
                "version": 1,
                "brokers": [
                    {"broker": int(number), "logDirs": [_as_kafka(d, topics) for d in folders]}
                    for number, folders in found.items()
                ],
            }
        )
    else:
        output.table(
            ["BROKER", "DIRECTORY", "ERROR", "FREE", "TOPIC", "PARTITION", "SIZE", "MOVING"],
            [
                row
                for number, folders in found.items()
                for d in folders
                for row in _rows(d, number, topics)
            ],
        )
    if any(folder.error_code for folders in found.values() for folder in folders):
        output.leave(output.FAILED)


def _described(connection: Connection, address: tuple[str, int]) -> list[Any]:
    request = m.DescribeLogDirsRequest(topics=None)
    answer = ask(connection, address, _DESCRIBE_LOG_DIRS, 4, request, m.DescribeLogDirsResponse)
    if answer.error_code:
        raise output.CommandFailed(f"reading log directories: {error_name(answer.error_code)}")
    return list(answer.results)


def _partitions(folder: Any, topics: list[str] | None) -> list[tuple[str, Any]]:
    return sorted(
        (
            (topic.name, partition)
            for topic in folder.topics
            for partition in topic.partitions
            if not topics or topic.name in topics
        ),
        key=lambda pair: (pair[0], pair[1].partition_index),
    )


def _as_kafka(folder: Any, topics: list[str] | None) -> dict[str, object]:
    return {
        "partitions": [
            {
                "partition": f"{name}-{partition.partition_index}",
                "size": partition.partition_size,
                "offsetLag": partition.offset_lag,
                "isFuture": partition.is_future_key,
            }
            for name, partition in _partitions(folder, topics)
        ],
        "error": error_name(folder.error_code) if folder.error_code else None,
        "logDir": folder.log_dir,
    }


def _rows(folder: Any, broker: str, topics: list[str] | None) -> list[tuple[object, ...]]:
    error = error_name(folder.error_code) if folder.error_code else None
    free = folder.usable_bytes if folder.usable_bytes >= 0 else None
    head = (broker, folder.log_dir, error, free)
    return [
        (
            *head,
            name,
            partition.partition_index,
            partition.partition_size,
            "here" if partition.is_future_key else None,
        )
        for name, partition in _partitions(folder, topics)
    ] or [(*head, None, None, None, None)]
