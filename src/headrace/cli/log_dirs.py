"""``headrace log-dirs``: which partition lies in which folder of which broker, and how large."""

from typing import Annotated, Any, NamedTuple

import typer

from headrace.cli import output
from headrace.cli.broker_requests import ask
from headrace.cli.client import Connection, code_name
from headrace.cli.options import (
    DEFAULT_BOOTSTRAP,
    Bootstrap,
    ClientFile,
    ClientSettings,
    Format,
    IncludeInternal,
    OutputFormat,
    examples,
)
from headrace.cli.partitions import check_topics, shown
from headrace.wire import messages as m
from headrace.wire.api import ApiKey

_DESCRIBE_LOG_DIRS_VERSION = 4


def register(root: typer.Typer) -> None:
    root.command(
        "log-dirs",
        epilog=examples("headrace log-dirs", "headrace log-dirs orders --format json"),
    )(log_dirs)


def log_dirs(
    topics: Annotated[
        list[str] | None,
        typer.Argument(metavar="TOPIC", help="Topics to show; all if none is given."),
    ] = None,
    brokers: Annotated[
        list[str] | None,
        typer.Option("--broker", metavar="ID", help="Show only this broker; may be repeated."),
    ] = None,
    internal: IncludeInternal = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    settings: ClientSettings = None,
    client_file: ClientFile = None,
    format: OutputFormat = Format.TABLE,
) -> None:
    """Show the disk usage of each broker's log directories.

    A partition that is moving between directories is listed in both, with the number of records
    still to copy. The JSON document has the format of kafka-log-dirs. The exit status is 1 if a
    directory is offline.
    """
    connection = Connection(bootstrap, settings, client_file)
    addresses = connection.brokers()
    check_topics(connection, topics or ())
    unknown = [number for number in brokers or () if number not in addresses]
    if unknown:
        raise output.CommandFailed(
            f"there is no broker {', '.join(unknown)}; the cluster has "
            f"{', '.join(sorted(addresses))}"
        )
    found = {
        number: _described(connection, address, topics, internal)
        for number, address in sorted(addresses.items())
        if not brokers or number in brokers
    }
    if format is Format.JSON:
        output.line_of_json(
            {
                "version": 1,
                "brokers": [
                    {"broker": int(number), "logDirs": list(map(_as_kafka, folders))}
                    for number, folders in found.items()
                ],
            }
        )
    else:
        output.table(
            ["BROKER", "DIRECTORY", "ERROR", "FREE", "TOPIC", "PARTITION", "SIZE", "MOVING"],
            [row for number, folders in found.items() for d in folders for row in _rows(d, number)],
        )
    if any(folder.error for folders in found.values() for folder in folders):
        output.leave(output.FAILED)


class Folder(NamedTuple):
    """One of a broker's log.dirs; its partitions are those that were asked for."""

    path: str
    error: str | None
    free: int | None
    partitions: list[tuple[str, Any]]  # topic, and what the broker says of its partition


def _described(
    connection: Connection, address: tuple[str, int], topics: list[str] | None, internal: bool
) -> list[Folder]:
    answer = ask(
        connection,
        address,
        ApiKey.DESCRIBE_LOG_DIRS,
        _DESCRIBE_LOG_DIRS_VERSION,
        m.DescribeLogDirsRequest(topics=None),
        m.DescribeLogDirsResponse,
    )
    if answer.error_code:
        raise output.CommandFailed(f"reading log directories: {code_name(answer.error_code)}")
    return [
        Folder(
            folder.log_dir,
            code_name(folder.error_code) if folder.error_code else None,
            folder.usable_bytes if folder.usable_bytes >= 0 else None,
            _partitions(folder, topics, internal),
        )
        for folder in answer.results
    ]


def _partitions(folder: Any, topics: list[str] | None, internal: bool) -> list[tuple[str, Any]]:
    by_name = {topic.name: topic.partitions for topic in folder.topics}
    return [
        (name, partition)
        for name in shown(by_name, internal or bool(topics))
        if not topics or name in topics
        for partition in sorted(by_name[name], key=lambda one: int(one.partition_index))
    ]


def _as_kafka(folder: Folder) -> dict[str, object]:
    return {
        "partitions": [
            {
                "partition": f"{name}-{partition.partition_index}",
                "size": partition.partition_size,
                "offsetLag": partition.offset_lag,
                "isFuture": partition.is_future_key,
            }
            for name, partition in folder.partitions
        ],
        "error": folder.error,
        "logDir": folder.path,
    }


def _rows(folder: Folder, broker: str) -> list[tuple[object, ...]]:
    head = (broker, folder.path, folder.error, folder.free)
    return [
        (
            *head,
            name,
            partition.partition_index,
            partition.partition_size,
            f"here, {partition.offset_lag} to come" if partition.is_future_key else None,
        )
        for name, partition in folder.partitions
    ] or [(*head, None, None, None, None)]
