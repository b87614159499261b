"""``headrace groups reset``: commit other offsets for a group."""

import csv
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicPartition

from headrace.cli import group_requests, offsets, output, partitions, values
from headrace.cli.client import ANSWER_TIMEOUT_S, Connection, explained
from headrace.cli.group_requests import Described
from headrace.cli.options import (
    DEFAULT_BOOTSTRAP,
    Bootstrap,
    ClientFile,
    ClientSettings,
    Format,
    GroupName,
    GroupTopics,
    OutputFormat,
)
from headrace.cli.partitions import Partition

Target = Annotated[
    str | None,
    typer.Option(
        "--to",
        metavar="TARGET",
        help="Target: earliest, latest, current, an offset, or a time: ISO 8601 (local time unless "
        "it has a time zone), or a duration before now (2h).",
    ),
]
Shift = Annotated[
    int | None,
    typer.Option("--shift", metavar="N", help="Move by N offsets; a negative N moves back."),
]
PlanFile = Annotated[
    Path | None,
    typer.Option("--from-file", metavar="CSV", help="File with lines of topic,partition,offset."),
]
Execute = Annotated[
    bool,
    typer.Option("--execute", help="Commit the new offsets. Without this option, only print them."),
]


def reset(
    group: GroupName,
    topics: GroupTopics = None,
    to: Target = None,
    shift: Shift = None,
    file: PlanFile = None,
    execute: Execute = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    settings: ClientSettings = None,
    client_file: ClientFile = None,
    format: OutputFormat = Format.TABLE,
) -> None:
    """Reset committed offsets.

    Without --topic, resets all topics for which the group has committed offsets. Without --execute,
    only prints the new offsets. Stop all members of the group first: they would commit their own
    offsets again.
    """
    if sum(choice is not None for choice in (to, shift, file)) != 1:
        raise values.wrong("use exactly one of --to, --shift and --from-file")
    connection = Connection(bootstrap, settings, client_file)
    described = group_requests.find(connection, group)
    committed = group_requests.committed(connection, group)
    needs_commits = file is None and not topics
    _check(connection, group, described, has_partitions=bool(committed) or not needs_commits)
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
    if described is None and plan and execute:
        output.note(f"Group {group} did not exist; it has been created.")
    elif described is None and plan:
        output.note(f"Group {group} does not exist; --execute will create it. Check the name.")
    if not execute:
        output.note("Nothing was changed. Add --execute to commit these offsets.")


def _check(
    connection: Connection, group: str, described: Described | None, *, has_partitions: bool
) -> None:
    """Refuse a group with members, and one for which no partition is known."""
    if described is not None and described.members:
        raise output.CommandFailed(
            f"group {group} has {values.counted(len(described.members), 'member')}; "
            "stop its consumers first, they would commit their own offsets again"
        )
    if has_partitions:
        return
    if described is None:
        raise output.CommandFailed(
            f"{group_requests.no_such_group(connection, group)}. "
            "To create it with offsets, name the topics with --topic"
        )
    raise output.CommandFailed(
        f"group {group} has no committed offsets to reset; name the topics with --topic"
    )


def _planned(
    connection: Connection,
    chosen: Sequence[Partition],
    committed: dict[Partition, int],
    to: str | None,
    shift: int | None,
) -> dict[Partition, int]:
    """The new offset of each partition, limited to the offsets of its log."""
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
        # A time after the last record means the end.
        target = {p: ends[p].offset if found[p].offset is None else found[p].offset for p in chosen}
    plan = {}
    for partition, offset in target.items():
        if offset is not None:
            first, end = starts[partition].offset or 0, ends[partition].offset or 0
            plan[partition] = min(max(offset, first), end)
            if plan[partition] != offset:
                output.note(
                    f"{partition[0]}:{partition[1]} has offsets {first} to {end}: "
                    f"using {plan[partition]} instead of {offset}"
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
