"""``headrace elect-leaders``: let the controller elect preferred or out-of-sync leaders."""

from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from headrace.cli import outcomes, output, values
from headrace.cli.broker_requests import open_cluster
from headrace.cli.client import Connection, code_name
from headrace.cli.options import (
    DEFAULT_BOOTSTRAP,
    Bootstrap,
    ClientFile,
    ClientSettings,
    Format,
    OutputFormat,
    examples,
)
from headrace.cli.partition_files import read_entries
from headrace.cli.partitions import Partition, named
from headrace.model.errors import ErrorCode
from headrace.wire import messages as m

# Kafka's tool waits as long for an election.
_ELECTION_TIMEOUT_S = 30.0


class ElectionType(StrEnum):
    PREFERRED = "preferred"
    UNCLEAN = "unclean"


_NUMBERS = {ElectionType.PREFERRED: 0, ElectionType.UNCLEAN: 1}


def register(root: typer.Typer) -> None:
    root.command(
        "elect-leaders",
        no_args_is_help=True,
        epilog=examples(
            "headrace elect-leaders --all",
            "headrace elect-leaders --topic orders --partition 0 --type unclean",
            "headrace elect-leaders --path-to-json-file partitions.json",
        ),
    )(elect_leaders)


def elect_leaders(
    everywhere: Annotated[bool, typer.Option("--all", help="Elect for all partitions.")] = False,
    topics: Annotated[
        list[str] | None,
        typer.Option("--topic", metavar="TOPIC", help="Topic to elect for; may be repeated."),
    ] = None,
    partition: Annotated[
        int | None,
        typer.Option(
            "--partition",
            metavar="N",
            show_default="all partitions of the topic",
            help="Partition of the topic to elect for.",
        ),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            "--path-to-json-file",
            metavar="FILE",
            help="Partitions in the format of kafka-leader-election.",
        ),
    ] = None,
    kind: Annotated[
        ElectionType,
        typer.Option(
            "--type",
            metavar="preferred|unclean",
            help="preferred: the first replica, if it is in sync. unclean: any live replica, for "
            "partitions without a leader; records may be lost.",
        ),
    ] = ElectionType.PREFERRED,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    settings: ClientSettings = None,
    client_file: ClientFile = None,
    format: OutputFormat = Format.TABLE,
) -> None:
    """Elect leaders of partitions.

    Partitions that already have the right leader are unchanged. With --all, only partitions with
    an election are listed.
    """
    if sum((everywhere, bool(topics), file is not None)) != 1:
        raise values.wrong("give one of --all, --topic and --path-to-json-file")
    if partition is not None and len(topics or ()) != 1:
        raise values.wrong("--partition needs exactly one --topic")
    connection = Connection(bootstrap, settings, client_file)
    wanted = None if everywhere else _wanted(connection, topics, partition, file)
    answer = _elect(connection, kind, wanted)
    if answer.error_code:
        raise output.CommandFailed(f"electing leaders: {code_name(answer.error_code)}")
    rows = [
        (topic.topic, result.partition_id, *_outcome(result))
        for topic in sorted(answer.replica_election_results, key=lambda one: one.topic)
        for result in sorted(topic.partition_result, key=lambda one: one.partition_id)
    ]
    if not rows and format is Format.TABLE:
        output.line("No election was needed")
    else:
        outcomes.show(["topic", "partition", "status"], rows, format)


def _wanted(
    connection: Connection, topics: list[str] | None, partition: int | None, file: Path | None
) -> list[Partition]:
    if file is not None:
        entries = read_entries(
            file,
            {"topic": str, "partition": int},
            '{"partitions": [{"topic": "t", "partition": 0}]}',
        )
        return [(entry["topic"], entry["partition"]) for entry in entries]
    places = [name if partition is None else f"{name}:{partition}" for name in topics or ()]
    return list(named(connection, places))


def _elect(
    connection: Connection, kind: ElectionType, wanted: Iterable[Partition] | None
) -> m.ElectLeadersResponse:
    by_topic: dict[str, list[int]] = {}
    for topic, partition in wanted or ():
        by_topic.setdefault(topic, []).append(partition)
    entry = m.ElectLeadersRequest.TopicPartitions
    request = m.ElectLeadersRequest(
        election_type=_NUMBERS[kind],
        topic_partitions=None
        if wanted is None
        else [entry(topic=topic, partitions=numbers) for topic, numbers in by_topic.items()],
        timeout_ms=round(_ELECTION_TIMEOUT_S * 1000),
    )
    with open_cluster(connection) as cluster:
        return cluster.ask_controller(
            request,
            m.ElectLeadersResponse,
            _errors,
            "electing leaders",
            timeout_s=_ELECTION_TIMEOUT_S + 2,
        )


def _errors(answer: m.ElectLeadersResponse) -> Iterable[int]:
    yield answer.error_code
    for topic in answer.replica_election_results:
        for result in topic.partition_result:
            yield result.error_code


def _outcome(result: m.ElectLeadersResponse.PartitionResult) -> outcomes.Outcome:
    if result.error_code == ErrorCode.NONE:
        return outcomes.Outcome("elected")
    if result.error_code == ErrorCode.ELECTION_NOT_NEEDED:
        return outcomes.Outcome("unchanged")
    name = code_name(result.error_code)
    detail = result.error_message if result.error_message != name else None
    return outcomes.Outcome("failed", name, detail)
