"""``headrace groups``: who consumes, how far behind, and moving or deleting what was committed."""

import csv
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from confluent_kafka import (
    ConsumerGroupTopicPartitions,
    KafkaException,
    TopicPartition,
)

from headrace.cli import group_requests, offsets, outcomes, output, partitions, values
from headrace.cli.client import ANSWER_TIMEOUT_S, Connection, explained
from headrace.cli.options import (
    DEFAULT_BOOTSTRAP,
    Bootstrap,
    ClientFile,
    ClientSettings,
    Format,
    OutputFormat,
    examples,
    noun,
)
from headrace.cli.partitions import Partition

app = noun(
    "List, describe, reset and delete consumer groups.",
    "headrace groups list",
    "headrace groups describe billing",
    "headrace groups reset billing --topic orders --to earliest --execute",
)

OptionalGroups = Annotated[list[str] | None, typer.Argument(metavar="GROUP", hidden=True)]
Groups = Annotated[list[str], typer.Argument(metavar="GROUP", hidden=True)]
Group = Annotated[str, typer.Argument(metavar="GROUP", hidden=True)]
Topics = Annotated[
    list[str] | None,
    typer.Option("--topic", metavar="TOPIC[:N,N]", help="Topic or partitions; may be repeated."),
]


def register(root: typer.Typer) -> None:
    root.add_typer(app, name="groups")


class Progress(NamedTuple):
    """How far a group is in one partition, and who reads it."""

    group: str
    topic: str
    partition: int
    committed: int | None
    log_end: int | None
    lag: int | None
    member_id: str | None
    host: str | None
    client_id: str | None


@app.command(
    "list", epilog=examples("headrace groups list", "headrace groups list --names | grep billing")
)
def list_groups(
    names_only: Annotated[
        bool, typer.Option("--names", help="Print only the names, one per line.")
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    settings: ClientSettings = None,
    client_file: ClientFile = None,
    format: OutputFormat = Format.TABLE,
) -> None:
    """List groups with their state and type."""
    rows = [
        (one.group_id, _name(one.state), _name(one.type) if one.type is not None else None)
        for one in _listed(Connection(bootstrap, settings, client_file))
    ]
    if format is Format.JSON:
        output.document([{"group": g, "state": s, "type": t} for g, s, t in rows])
    elif names_only:
        for name, _, _ in rows:
            output.line(name)
    else:
        output.table(["GROUP", "STATE", "TYPE"], rows)


@app.command(
    no_args_is_help=True,
    epilog=examples("headrace groups describe billing audit", "headrace groups describe --all"),
)
def describe(
    groups: OptionalGroups = None,
    everyone: Annotated[bool, typer.Option("--all", help="Describe all groups.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    settings: ClientSettings = None,
    client_file: ClientFile = None,
    format: OutputFormat = Format.TABLE,
) -> None:
    """Show committed offset, lag and member of each partition."""
    if bool(groups) == everyone:
        raise values.wrong("name the groups, or give --all")
    connection = Connection(bootstrap, settings, client_file)
    rows: list[Progress] = []
    failures = []
    for group in groups or [one.group_id for one in _listed(connection)]:
        try:
            described = group_requests.describe(connection, group)
        except output.CommandFailed as failure:
            failures.append(str(failure))
            continue
        _note_absence(group, described)
        rows += _progress(connection, group, described)
    if format is Format.JSON:
        output.document([row._asdict() for row in rows])
    elif rows:
        output.table(
            [
                "GROUP",
                "TOPIC",
                "PARTITION",
                "CURRENT-OFFSET",
                "LOG-END-OFFSET",
                "LAG",
                "CONSUMER-ID",
                "HOST",
                "CLIENT-ID",
            ],
            rows,
        )
    for reason in failures:
        output.error(reason)
    if failures:
        output.leave(output.FAILED)


@app.command(no_args_is_help=True, epilog=examples("headrace groups members billing"))
def members(
    group: Group,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    settings: ClientSettings = None,
    client_file: ClientFile = None,
    format: OutputFormat = Format.TABLE,
) -> None:
    """Show the members of a group and their partitions."""
    connection = Connection(bootstrap, settings, client_file)
    described = group_requests.describe(connection, group)
    _note_absence(group, described)
    if format is Format.JSON:
        output.document(
            [
                {
                    "group": group,
                    "member_id": member.member_id,
                    "instance_id": member.instance_id,
                    "client_id": member.client_id,
                    "host": member.host,
                    "partitions": [
                        {"topic": topic, "partition": number} for topic, number in member.assignment
                    ],
                }
                for member in described.members
            ]
        )
    elif described.members:
        output.table(
            ["CONSUMER-ID", "INSTANCE-ID", "CLIENT-ID", "HOST", "#PARTITIONS", "ASSIGNMENT"],
            [
                (
                    member.member_id,
                    member.instance_id,
                    member.client_id,
                    member.host,
                    len(member.assignment),
                    ", ".join(f"{topic}:{number}" for topic, number in member.assignment),
                )
                for member in described.members
            ],
        )


@app.command(
    no_args_is_help=True,
    epilog=examples(
        "headrace groups reset billing --topic orders --to earliest",
        "headrace groups reset billing --topic orders:0,1 --to 2026-11-01T00:00:00Z --execute",
        "headrace groups reset billing --shift -100 --execute",
        "headrace groups reset billing --from-file offsets.csv --execute",
    ),
)
def reset(
    group: Group,
    topics: Topics = None,
    to: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="TARGET",
            help="Target: earliest, latest, current, an offset, or a time (ISO 8601, or 2h for two "
            "hours ago).",
        ),
    ] = None,
    shift: Annotated[
        int | None,
        typer.Option("--shift", metavar="N", help="Move by N offsets; a negative N moves back."),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            "--from-file", metavar="CSV", help="File with lines of topic,partition,offset."
        ),
    ] = None,
    execute: Annotated[
        bool,
        typer.Option(
            "--execute", help="Commit the new offsets. Without this option, only print them."
        ),
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    settings: ClientSettings = None,
    client_file: ClientFile = None,
    format: OutputFormat = Format.TABLE,
) -> None:
    """Reset committed offsets.

    Without --execute, only prints the new offsets. Stop all members of the group first: they
    would commit their own offsets again.
    """
    if sum(choice is not None for choice in (to, shift, file)) != 1:
        raise values.wrong("give one of --to, --shift and --from-file")
    connection = Connection(bootstrap, settings, client_file)
    described = group_requests.describe(connection, group, missing_is_empty=True)
    if described.members:
        raise output.CommandFailed(
            f"group {group} has {values.counted(len(described.members), 'member')}; "
            "stop its consumers first, they would commit their own offsets again"
        )
    committed = _committed(connection, group)
    if file is not None:
        plan = _from_csv(file)
    else:
        chosen = sorted(partitions.named(connection, topics) if topics else committed)
        plan = _planned(connection, chosen, committed, to, shift)
    rows = [
        (group, *partition, committed.get(partition), offset)
        for partition, offset in sorted(plan.items())
    ]
    if execute and plan:
        _commit(connection, group, plan)
    if format is Format.JSON:
        names = ("group", "topic", "partition", "committed", "new_offset")
        output.document([dict(zip(names, row, strict=True)) for row in rows])
    else:
        output.table(["GROUP", "TOPIC", "PARTITION", "CURRENT-OFFSET", "NEW-OFFSET"], rows)
    if not plan and file is None and not topics:
        output.note(f"Group '{group}' has committed nothing: say which topics with --topic.")
        if execute:
            output.leave(output.FAILED)
    elif not execute:
        output.note("Nothing was changed: add --execute to do it.")


@app.command(no_args_is_help=True, epilog=examples("headrace groups delete billing"))
def delete(
    groups: Groups,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    settings: ClientSettings = None,
    client_file: ClientFile = None,
    format: OutputFormat = Format.TABLE,
) -> None:
    """Delete groups that have no members, and their offsets."""
    connection = Connection(bootstrap, settings, client_file)
    futures = connection.admin().delete_consumer_groups(groups, request_timeout=ANSWER_TIMEOUT_S)
    rows = [
        (group, *outcomes.of(connection, future, f"deleting {group}", "deleted"))
        for group, future in futures.items()
    ]
    outcomes.show(["group", "status"], rows, format)


@app.command(
    "delete-offsets",
    no_args_is_help=True,
    epilog=examples("headrace groups delete-offsets billing --topic orders:0,1"),
)
def delete_offsets(
    group: Group,
    topics: Topics = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    settings: ClientSettings = None,
    client_file: ClientFile = None,
    format: OutputFormat = Format.TABLE,
) -> None:
    """Delete the committed offsets of some partitions.

    No member of the group may be subscribed to these topics.
    """
    if not topics:
        raise values.wrong("say which with --topic")
    connection = Connection(bootstrap, settings, client_file)
    chosen = sorted(partitions.named(connection, topics))
    rows = [
        (group, *partition, "deleted" if error is None else "failed", error, None)
        for partition, error in group_requests.delete_offsets(connection, group, chosen)
    ]
    outcomes.show(["group", "topic", "partition", "status"], rows, format)


# --- what the verbs share ---------------------------------------------------------


def _name(value: Any) -> str:
    """``STABLE`` and ``PREPARING_REBALANCING`` of the client as Kafka's tools print them."""
    name = "".join(word.capitalize() for word in value.name.split("_"))
    return name.replace("Rebalancing", "Rebalance")


def _listed(connection: Connection) -> list[Any]:
    future = connection.admin().list_consumer_groups(request_timeout=ANSWER_TIMEOUT_S)
    try:
        listed = connection.answer(future, "listing groups")
    except KafkaException as failure:
        raise connection.failed(failure, "listing groups") from None
    if listed.errors:  # a broker did not answer, and its groups are missing
        raise connection.failed(listed.errors[0], "listing groups")
    return sorted(listed.valid, key=lambda one: str(one.group_id))


def _note_absence(group: str, described: group_requests.Described) -> None:
    if not described.members:
        output.note(f"Consumer group '{group}' has no active members.")


def _progress(
    connection: Connection, group: str, described: group_requests.Described
) -> list[Progress]:
    committed = _committed(connection, group)
    reader = {partition: member for member in described.members for partition in member.assignment}
    known = sorted(set(committed) | set(reader))
    ends = offsets.listed(connection, connection.admin(), known, offsets.LATEST)
    rows = []
    for partition in known:
        offset, end = committed.get(partition), ends[partition].offset
        member = reader.get(partition)
        rows.append(
            Progress(
                group,
                *partition,
                offset,
                end,
                None if offset is None or end is None else max(0, end - offset),
                member.member_id if member else None,
                member.host if member else None,
                member.client_id if member else None,
            )
        )
    return rows


def _committed(connection: Connection, group: str) -> dict[Partition, int]:
    doing = f"offsets of group {group}"
    (future,) = (
        connection.admin()
        .list_consumer_group_offsets(
            [ConsumerGroupTopicPartitions(group)], request_timeout=ANSWER_TIMEOUT_S
        )
        .values()
    )
    try:
        answer = connection.answer(future, doing)
    except KafkaException as failure:
        raise connection.failed(failure, doing) from None
    return {
        (one.topic, one.partition): one.offset for one in answer.topic_partitions if one.offset >= 0
    }


def _planned(
    connection: Connection,
    chosen: Sequence[Partition],
    committed: dict[Partition, int],
    to: str | None,
    shift: int | None,
) -> dict[Partition, int]:
    """The new offset of each partition, kept within its log."""
    admin = connection.admin()
    starts = offsets.listed(connection, admin, chosen, offsets.EARLIEST)
    ends = offsets.listed(connection, admin, chosen, offsets.LATEST)
    target: dict[Partition, int | None] = {}
    if shift is not None:
        target = {p: committed[p] + shift for p in chosen if p in committed}
    elif to == "earliest":
        target = {p: starts[p].offset for p in chosen}
    elif to == "latest":
        target = {p: ends[p].offset for p in chosen}
    elif to == "current":
        target = {p: committed.get(p) for p in chosen}
    elif to is not None and to.isdecimal():
        target = dict.fromkeys(chosen, int(to))
    elif to is not None:
        now = round(time.time() * 1000)
        others = "earliest, latest, current, an offset, "
        at = offsets.at_time(values.instant_ms(to, now, "--to", others))
        found = offsets.listed(connection, admin, chosen, at)
        # After the last record there is only the end.
        target = {p: ends[p].offset if found[p].offset is None else found[p].offset for p in chosen}
    plan = {}
    for partition, offset in target.items():
        if offset is not None:
            first, end = starts[partition].offset or 0, ends[partition].offset or 0
            plan[partition] = min(max(offset, first), end)
            if plan[partition] != offset:
                output.note(
                    f"{partition[0]}:{partition[1]} has offsets {first} to {end}, "
                    f"so {offset} becomes {plan[partition]}"
                )
    return plan


def _from_csv(file: Path) -> dict[Partition, int]:
    plan = {}
    try:
        with file.open(newline="") as lines:
            for number, row in enumerate(csv.reader(lines), 1):
                if not row:
                    continue
                try:
                    topic, partition, offset = (cell.strip() for cell in row[-3:])
                    plan[topic, int(partition)] = int(offset)
                except ValueError:
                    raise values.wrong(
                        f"{file}, line {number}: expected topic,partition,offset"
                    ) from None
    except OSError as failure:
        raise values.wrong(f"{file}: {failure.strerror}") from None
    return plan


def _commit(connection: Connection, group: str, plan: dict[Partition, int]) -> None:
    doing = f"resetting group {group}"
    request = ConsumerGroupTopicPartitions(
        group, [TopicPartition(topic, number, offset) for (topic, number), offset in plan.items()]
    )
    (future,) = (
        connection.admin()
        .alter_consumer_group_offsets([request], request_timeout=ANSWER_TIMEOUT_S)
        .values()
    )
    try:
        answer = connection.answer(future, doing)
    except KafkaException as failure:
        raise connection.failed(failure, doing) from None
    refused = [one for one in answer.topic_partitions if one.error is not None]
    if refused:
        raise output.CommandFailed(
            f"{doing}: {refused[0].topic}:{refused[0].partition}: {explained(refused[0].error)}"
        )
