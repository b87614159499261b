"""``headrace groups``: list, describe and delete groups and their committed offsets."""

from typing import Annotated, Any, NamedTuple

import typer
from confluent_kafka import KafkaException

from headrace.cli import group_requests, offsets, outcomes, output, partitions, values
from headrace.cli.client import ANSWER_TIMEOUT_S, Connection
from headrace.cli.groups_reset import reset
from headrace.cli.options import (
    DEFAULT_BOOTSTRAP,
    Bootstrap,
    ClientFile,
    ClientSettings,
    Format,
    GroupName,
    GroupTopics,
    OutputFormat,
    examples,
    noun,
)
from headrace.model.errors import ErrorCode

app = noun(
    "List, describe, reset and delete consumer groups.",
    "headrace groups list",
    "headrace groups describe billing",
    "headrace groups reset billing --topic orders --to earliest --execute",
)

OptionalGroups = Annotated[list[str] | None, typer.Argument(metavar="GROUP", hidden=True)]
Groups = Annotated[list[str], typer.Argument(metavar="GROUP", hidden=True)]


def register(root: typer.Typer) -> None:
    root.add_typer(app, name="groups")


class Progress(NamedTuple):
    """A group's position in one partition, and the member that reads it."""

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
    "list",
    epilog=examples(
        "headrace groups list",
        "headrace groups list --lag",
        "headrace groups list --names | grep billing",
    ),
)
def list_groups(
    names_only: Annotated[
        bool, typer.Option("--names", help="Print only the names, one per line.")
    ] = False,
    with_lag: Annotated[
        bool, typer.Option("--lag", help="Show the total lag of each group.")
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    settings: ClientSettings = None,
    client_file: ClientFile = None,
    format: OutputFormat = Format.TABLE,
) -> None:
    """List groups with their state and type."""
    connection = Connection(bootstrap, settings, client_file)
    rows: list[dict[str, object]] = [
        {
            "group": one.group_id,
            "state": state_name(one.state),
            "type": state_name(one.type) if one.type is not None else None,
        }
        for one in _listed(connection)
    ]
    if with_lag:
        for row in rows:
            row["lag"] = _total_lag(connection, str(row["group"]))
    if format is Format.JSON:
        output.document(rows)
    elif names_only:
        for row in rows:
            output.line(str(row["group"]))
    else:
        columns = ["GROUP", "STATE", "TYPE", *(["LAG"] if with_lag else [])]
        output.table(columns, [list(row.values()) for row in rows], kept={"LAG"})


@app.command(
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
        raise values.wrong("name a group, or use --all")
    connection = Connection(bootstrap, settings, client_file)
    rows: list[Progress] = []
    failures = []
    for group in groups or [one.group_id for one in _listed(connection)]:
        try:
            described = group_requests.describe(connection, group)
        except output.CommandFailed as failure:
            failures.append(str(failure))
            continue
        _note_no_members(group, described)
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
            kept={"CURRENT-OFFSET", "LAG"},
        )
        _note_total_lags(rows)
    for reason in failures:
        output.error(reason)
    if failures:
        output.leave(output.FAILED)


@app.command(no_args_is_help=True, epilog=examples("headrace groups members billing"))
def members(
    group: GroupName,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    settings: ClientSettings = None,
    client_file: ClientFile = None,
    format: OutputFormat = Format.TABLE,
) -> None:
    """Show the members of a group and their partitions."""
    connection = Connection(bootstrap, settings, client_file)
    described = group_requests.describe(connection, group)
    _note_no_members(group, described)
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


app.command(
    "reset",
    no_args_is_help=True,
    epilog=examples(
        "headrace groups reset billing --topic orders --to earliest",
        "headrace groups reset billing --topic orders:0,1 --to 2026-11-01T00:00:00Z --execute",
        "headrace groups reset billing --shift -100 --execute",
        "headrace groups reset billing --from-file offsets.csv --execute",
    ),
)(reset)


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
    missing = ErrorCode.GROUP_ID_NOT_FOUND.name
    if group_requests.can_have_groups(connection):
        admin = connection.admin()
        futures = admin.delete_consumer_groups(groups, request_timeout=ANSWER_TIMEOUT_S)
        deleted = {
            group: outcomes.of(connection, future, f"deleting {group}", "deleted")
            for group, future in futures.items()
        }
    else:
        deleted = dict.fromkeys(groups, outcomes.Outcome("failed", missing))
    rows = []
    for group, outcome in deleted.items():
        if outcome.error == missing:
            outcome = outcome._replace(detail=group_requests.no_such_group(connection, group))
        elif outcome.error == ErrorCode.NON_EMPTY_GROUP.name:
            outcome = outcome._replace(detail=group_requests.has_members(connection, group))
        rows.append((group, *outcome))
    outcomes.show(["group", "status"], rows, format)


@app.command(
    "delete-offsets",
    no_args_is_help=True,
    epilog=examples("headrace groups delete-offsets billing --topic orders:0,1"),
)
def delete_offsets(
    group: GroupName,
    topics: GroupTopics = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    settings: ClientSettings = None,
    client_file: ClientFile = None,
    format: OutputFormat = Format.TABLE,
) -> None:
    """Delete the committed offsets of some partitions.

    No member of the group may be subscribed to these topics.
    """
    if not topics:
        raise values.wrong("name the topics or partitions with --topic")
    connection = Connection(bootstrap, settings, client_file)
    chosen = sorted(partitions.named(connection, topics))
    rows = [
        (group, *partition, "deleted" if error is None else "failed", error, None)
        for partition, error in group_requests.delete_offsets(connection, group, chosen)
    ]
    outcomes.show(["group", "topic", "partition", "status"], rows, format)


def state_name(value: Any) -> str:
    """The client's ``STABLE`` or ``PREPARING_REBALANCING`` as Kafka's tools print it."""
    name = "".join(word.capitalize() for word in value.name.split("_"))
    return name.replace("Rebalancing", "Rebalance")


def _listed(connection: Connection) -> list[Any]:
    future = connection.admin().list_consumer_groups(request_timeout=ANSWER_TIMEOUT_S)
    try:
        listed = connection.answer(future, "listing groups")
    except KafkaException as failure:
        raise connection.failed(failure, "listing groups") from None
    if listed.errors:  # a broker did not answer, so its groups are missing
        raise connection.failed(listed.errors[0], "listing groups")
    return sorted(listed.valid, key=lambda one: str(one.group_id))


def _note_no_members(group: str, described: group_requests.Described) -> None:
    if not described.members:
        output.note(f"Consumer group '{group}' has no active members.")


def _note_total_lags(rows: list[Progress]) -> None:
    by_group: dict[str, list[Progress]] = {}
    for row in rows:
        by_group.setdefault(row.group, []).append(row)
    for group, own in by_group.items():
        lag = sum(row.lag or 0 for row in own)
        output.note(
            f"Total lag of {group}: {values.counted(lag, 'record')} in "
            f"{values.counted(len(own), 'partition')}"
        )


def _total_lag(connection: Connection, group: str) -> int | None:
    """The lag in all partitions with a committed offset; None if there are none."""
    committed = group_requests.committed(connection, group)
    ends = offsets.listed(connection, connection.admin(), sorted(committed), offsets.LATEST)
    lags = [
        max(0, (ends[partition].offset or 0) - offset) for partition, offset in committed.items()
    ]
    return sum(lags) if lags else None


def _progress(
    connection: Connection, group: str, described: group_requests.Described
) -> list[Progress]:
    committed = group_requests.committed(connection, group)
    readers = {partition: member for member in described.members for partition in member.assignment}
    known = sorted(set(committed) | set(readers))
    ends = offsets.listed(connection, connection.admin(), known, offsets.LATEST)
    rows = []
    for partition in known:
        offset, end = committed.get(partition), ends[partition].offset
        member = readers.get(partition)
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
