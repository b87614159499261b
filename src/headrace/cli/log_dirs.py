"""``headrace log-dirs``: the partitions in each log directory of each broker, and their sizes."""

from typing import Annotated, Any, NamedTuple

import typer

from headrace.cli import output, values
from headrace.cli.broker_requests import ask
from headrace.cli.client import Connection, code_name, no_such_broker
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
    """Show the disk usage of the log directories.

    A partition that is moving between directories is listed in both, with the number of records
    still to copy. The JSON document has the format of kafka-log-dirs. The exit status is 1 if a
    directory is offline.
    """
    connection = Connection(bootstrap, settings, client_file)
    addresses = connection.brokers()
    check_topics(connection, topics or ())
    unknown = [number for number in brokers or () if number not in addresses]
    if unknown:
        raise no_such_broker(unknown[0], addresses)
    found = {
        number: read_log_dirs(connection, address, topics, internal=internal)
        for number, address in sorted(addresses.items())
        if not brokers or number in brokers
    }
    if format is Format.JSON:
        output.line_of_json(
            {
                "version": 1,
                "brokers": [
                    {"broker": int(number), "logDirs": list(map(_as_kafka, log_dirs))}
                    for number, log_dirs in found.items()
                ],
            }
        )
    else:
        output.table(
            ["BROKER", "DIRECTORY", "ERROR", "FREE", "TOPIC", "PARTITION", "SIZE", "MOVING"],
            [
                row
                for number, log_dirs in found.items()
                for log_dir in log_dirs
                for row in _rows(log_dir, number)
            ],
        )
    if any(log_dir.error for log_dirs in found.values() for log_dir in log_dirs):
        output.leave(output.FAILED)


class LogDir(NamedTuple):
    """One of a broker's log directories, with the requested partitions."""

    path: str
    error: str | None
    free: int | None
    partitions: list[tuple[str, Any]]  # topic, and its partition in the broker's response


def read_log_dirs(
    connection: Connection,
    address: tuple[str, int],
    topics: list[str] | None,
    *,
    internal: bool,
) -> list[LogDir]:
    answer = ask(
        connection,
        address,
        _DESCRIBE_LOG_DIRS_VERSION,
        m.DescribeLogDirsRequest(topics=None),
        m.DescribeLogDirsResponse,
    )
    if answer.error_code:
        raise output.CommandFailed(f"reading log directories: {code_name(answer.error_code)}")
    return [
        LogDir(
            result.log_dir,
            code_name(result.error_code) if result.error_code else None,
            result.usable_bytes if result.usable_bytes >= 0 else None,
            _partitions(result, topics, internal),
        )
        for result in answer.results
    ]


def topic_sizes(connection: Connection) -> dict[str, int]:
    """The bytes of all replicas of each topic, on all brokers that are up."""
    sizes: dict[str, int] = {}
    for address in connection.brokers().values():
        for log_dir in read_log_dirs(connection, address, None, internal=True):
            for topic, partition in log_dir.partitions:
                sizes[topic] = sizes.get(topic, 0) + partition.partition_size
    return sizes


def _partitions(result: Any, topics: list[str] | None, internal: bool) -> list[tuple[str, Any]]:
    by_name = {topic.name: topic.partitions for topic in result.topics}
    return [
        (name, partition)
        for name in shown(by_name, internal or bool(topics))
        if not topics or name in topics
        for partition in sorted(by_name[name], key=lambda one: int(one.partition_index))
    ]


def _as_kafka(log_dir: LogDir) -> dict[str, object]:
    return {
        "partitions": [
            {
                "partition": f"{name}-{partition.partition_index}",
                "size": partition.partition_size,
                "offsetLag": partition.offset_lag,
                "isFuture": partition.is_future_key,
            }
            for name, partition in log_dir.partitions
        ],
        "error": log_dir.error,
        "logDir": log_dir.path,
    }


def _rows(log_dir: LogDir, broker: str) -> list[tuple[object, ...]]:
    free = None if log_dir.free is None else values.readable_size(log_dir.free)
    head = (broker, log_dir.path, log_dir.error, free)
    return [
        (
            *head,
            name,
            partition.partition_index,
            values.readable_size(partition.partition_size),
            f"moving here, {partition.offset_lag} records left"
            if partition.is_future_key
            else None,
        )
        for name, partition in log_dir.partitions
    ] or [(*head, None, None, None, None)]
