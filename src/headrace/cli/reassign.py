"""``headrace reassign``: move partitions between brokers."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from headrace.cli import output, reassignment_run, values
from headrace.cli.broker_requests import open_cluster
from headrace.cli.client import Connection
from headrace.cli.cluster_view import numbers
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
from headrace.cli.reassignment_files import document, read_reassignment, read_topics
from headrace.cli.reassignment_plan import (
    Assignment,
    NotEnoughBrokers,
    Partition,
    spread,
)
from headrace.cli.reassignment_requests import (
    Snapshot,
    alter_reassignments,
    list_reassignments,
    snapshot,
)
from headrace.cli.reassignment_tables import as_document, parse_rate, show_moves
from headrace.client.cluster import Cluster

app = noun(
    "Move partitions between brokers.",
    "headrace reassign generate --brokers 1-4 > moves.json",
    "headrace reassign plan --file moves.json",
    "headrace reassign execute --file moves.json --throttle 50M",
)

MovesFile = Annotated[
    Path,
    typer.Option(
        "--file",
        metavar="FILE",
        show_default=False,
        help="Assignments in the format of kafka-reassign-partitions.",
    ),
]
Throttle = Annotated[
    str | None,
    typer.Option(
        "--throttle",
        metavar="BYTES",
        show_default="unlimited",
        help="Bytes per second that each broker copies for the moves: 500k, 50M.",
    ),
]
Additional = Annotated[
    bool,
    typer.Option(
        "--additional",
        help="Allow other moves in progress, and replace those of the same partitions.",
    ),
]
KeepThrottles = Annotated[
    bool, typer.Option("--preserve-throttles", help="Do not remove the throttles at the end.")
]


def register(root: typer.Typer) -> None:
    root.add_typer(app, name="reassign")


@app.command(
    epilog=examples(
        "headrace reassign generate > moves.json",
        "headrace reassign generate --brokers 1-4 > moves.json",
        "headrace reassign generate orders users --brokers 2,3,4 > moves.json",
        "headrace reassign generate --topics-file topics.json --brokers 1-4 > moves.json",
    ),
)
def generate(
    topics: Annotated[
        list[str] | None,
        typer.Argument(metavar="TOPIC", help="Topics to spread; all if none is given."),
    ] = None,
    topics_file: Annotated[
        Path | None,
        typer.Option(
            "--topics-file",
            metavar="FILE",
            help="Topics in the format of kafka-reassign-partitions.",
        ),
    ] = None,
    brokers: Annotated[
        str,
        typer.Option(
            "--brokers",
            metavar="IDS",
            show_default="all live brokers",
            help="Brokers that may hold the partitions: 1-4 or 1,3,5.",
        ),
    ] = "",
    factor: Annotated[
        int | None,
        typer.Option(
            "--replication-factor",
            metavar="N",
            min=1,
            show_default="as it is",
            help="New number of replicas per partition.",
        ),
    ] = None,
    ignore_racks: Annotated[
        bool, typer.Option("--disable-rack-aware", help="Ignore the racks of the brokers.")
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    settings: ClientSettings = None,
    client_file: ClientFile = None,
) -> None:
    """Print assignments that spread topics evenly.

    Moves as few replicas as possible. Prints one line of JSON, the input of 'plan' and 'execute'.
    It includes the current replicas: if they change, 'plan' and 'execute' refuse the file. This
    command changes nothing.
    """
    if topics and topics_file is not None:
        raise values.wrong("give topics or --topics-file, not both")
    names = read_topics(topics_file) if topics_file is not None else topics
    with open_cluster(Connection(bootstrap, settings, client_file)) as cluster:
        now = snapshot(cluster)
    allowed = _allowed(now, brokers)
    chosen = _chosen(now, names)
    racks = dict.fromkeys(now.racks) if ignore_racks else now.racks
    try:
        targets = spread(now.assigned, chosen, allowed, racks, factor=factor)
    except NotEnoughBrokers as failure:
        raise output.CommandFailed(str(failure)) from None
    changed = {one: replicas for one, replicas in targets.items() if now.assigned[one] != replicas}
    if not changed:
        output.note("The partitions are spread evenly already: nothing has to move")
    output.line_of_json(document(changed or targets, now.assigned))


@app.command(
    no_args_is_help=True,
    epilog=examples(
        "headrace reassign plan --file moves.json",
        "headrace reassign plan --file moves.json --out checked.json    # refused when outdated",
    ),
)
def plan(
    file: MovesFile,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="FILE",
            help="Write the assignments with the current replicas to a file. If the replicas "
            "change, 'execute' refuses the file.",
        ),
    ] = None,
    additional: Additional = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    settings: ClientSettings = None,
    client_file: ClientFile = None,
    format: OutputFormat = Format.TABLE,
) -> None:
    """Show what would move, and how many bytes. Changes nothing.

    The exit status is 1 if the plan would be refused.
    """
    with _opened(file, bootstrap, settings, client_file) as (cluster, now, targets):
        reassignment_run.check_in_progress(now, targets, additional=additional)
        todo = reassignment_run.planned(cluster, now, targets)
    if out is not None:
        try:
            out.write_text(json.dumps(document(targets, now.assigned)) + "\n")
        except OSError as failure:
            raise values.wrong(f"--out {output.reason(failure)}") from None
    show_moves(todo, format)


@app.command(
    no_args_is_help=True,
    epilog=examples(
        "headrace reassign execute --file moves.json --throttle 50M",
        "headrace reassign execute --file moves.json --no-wait",
    ),
)
def execute(
    file: MovesFile,
    throttle: Throttle = None,
    additional: Additional = False,
    keeps_factor: Annotated[
        bool,
        typer.Option(
            "--disallow-replication-factor-change",
            help="Refuse the file if it changes the number of replicas of a partition.",
        ),
    ] = False,
    waits: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Wait until all partitions have moved.")
    ] = True,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    settings: ClientSettings = None,
    client_file: ClientFile = None,
    format: OutputFormat = Format.TABLE,
) -> None:
    """Move partitions to the brokers in the file.

    Prints the current assignment first; keep it to move the partitions back. Shows the progress
    until all partitions have moved, then removes the throttles. If the command is interrupted, the
    moves continue; run it again to wait for them.
    """
    rate = parse_rate(throttle)
    with _opened(file, bootstrap, settings, client_file) as (cluster, now, targets):
        if keeps_factor:
            reassignment_run.check_factors(now, targets)
        reassignment_run.check_in_progress(now, targets, additional=additional)
        todo = reassignment_run.planned(cluster, now, targets)
        before = {one: now.assigned[one] for one in targets}
        if format is Format.TABLE:
            output.line("Current assignment (keep it to move the partitions back):")
            output.line_of_json(document(before))
        done = reassignment_run.run_moves(
            cluster,
            now,
            todo,
            rate,
            topics={topic for topic, _ in targets},
            waits=waits,
            how_to_cancel=f"headrace reassign cancel --file {file}",
            may_change_factor=not keeps_factor,
        )
    if format is Format.JSON:
        output.document(
            {"completed": done, "before": document(before), "moves": list(map(as_document, todo))}
        )
    elif not todo:
        output.line("All partitions have these replicas already")
    elif done:
        output.line(f"Reassigned {values.counted(len(todo), 'partition')}")
    else:
        output.line(
            f"Started to reassign {values.counted(len(todo), 'partition')}; 'headrace reassign "
            f"verify --file {file}' shows the state and removes the throttles"
        )


@app.command(no_args_is_help=True, epilog=examples("headrace reassign verify --file moves.json"))
def verify(
    file: MovesFile,
    keep_throttles: KeepThrottles = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    settings: ClientSettings = None,
    client_file: ClientFile = None,
    format: OutputFormat = Format.TABLE,
) -> None:
    """Show the progress of moves; remove throttles at the end.

    Removes the throttles once none of the moves is in progress. The exit status is 0 if all moves
    are completed, and 1 otherwise.
    """
    targets = read_reassignment(file).targets
    with open_cluster(Connection(bootstrap, settings, client_file)) as cluster:
        now = snapshot(cluster)
        states = reassignment_run.statuses(now, targets)
        removed = False
        if not keep_throttles and not any(one in now.reassigning for one in targets):
            removed = reassignment_run.end_throttles(
                cluster,
                {topic for topic, _ in targets},
                {broker for replicas in targets.values() for broker in replicas},
            )
    rows = [
        {"topic": topic, "partition": number, "replicas": targets[topic, number], "status": state}
        for (topic, number), state in sorted(states.items())
    ]
    if format is Format.JSON:
        output.document(rows)
    else:
        output.table(
            ["TOPIC", "PARTITION", "REPLICAS", "STATUS"],
            [
                (row["topic"], row["partition"], numbers(targets[one]), row["status"])
                for row, one in zip(rows, sorted(states), strict=True)
            ],
        )
    if removed:
        output.note("Throttles removed")
    if any(state != "completed" for state in states.values()):
        output.leave(output.FAILED)


@app.command(
    no_args_is_help=True,
    epilog=examples("headrace reassign cancel --file moves.json", "headrace reassign cancel --all"),
)
def cancel(
    file: Annotated[
        Path | None,
        typer.Option("--file", metavar="FILE", help="Cancel the moves of these partitions."),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Cancel all moves.")] = False,
    keep_throttles: KeepThrottles = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    settings: ClientSettings = None,
    client_file: ClientFile = None,
    format: OutputFormat = Format.TABLE,
) -> None:
    """Cancel moves in progress and remove the throttles.

    The partitions get their old replicas back. Moves that are completed stay as they are.
    """
    if everything == (file is not None):
        raise values.wrong("give one of --file and --all")
    named = None if file is None else set(read_reassignment(file).targets)
    with open_cluster(Connection(bootstrap, settings, client_file)) as cluster:
        moving = list_reassignments(cluster)
        chosen = sorted(one for one in moving if named is None or one in named)
        refused = alter_reassignments(cluster, dict.fromkeys(chosen)) if chosen else {}
        if not keep_throttles:
            topics = None if named is None else {topic for topic, _ in named}
            involved = {b for one in chosen for b in (*moving[one].origin, *moving[one].target)}
            reassignment_run.end_throttles(cluster, topics, involved)
    rows = [
        {
            "topic": topic,
            "partition": number,
            "replicas": moving[topic, number].origin,
            "status": refused.get((topic, number), "cancelled"),
        }
        for topic, number in chosen
    ]
    if format is Format.JSON:
        output.document(rows)
    elif rows:
        output.table(
            ["TOPIC", "PARTITION", "REPLICAS", "STATUS"],
            [
                (*one, numbers(moving[one].origin), row["status"])
                for one, row in zip(chosen, rows, strict=True)
            ],
        )
    else:
        output.line("No such move is in progress")
    if refused:
        output.leave(output.FAILED)


@app.command("list", epilog=examples("headrace reassign list"))
def list_moves(
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    settings: ClientSettings = None,
    client_file: ClientFile = None,
    format: OutputFormat = Format.TABLE,
) -> None:
    """List the moves in progress."""
    with open_cluster(Connection(bootstrap, settings, client_file)) as cluster:
        moving = sorted(list_reassignments(cluster).items())
    if format is Format.JSON:
        output.document(
            [
                {
                    "topic": topic,
                    "partition": number,
                    "replicas": one.target,
                    "adding": one.added,
                    "removing": one.removed,
                }
                for (topic, number), one in moving
            ]
        )
    elif moving:
        output.table(
            ["TOPIC", "PARTITION", "TO", "ADDING", "REMOVING"],
            [
                (topic, number, numbers(one.target), numbers(one.added), numbers(one.removed))
                for (topic, number), one in moving
            ],
        )
    else:
        output.line("No moves are in progress")


def _allowed(now: Snapshot, text: str) -> list[int]:
    """The live brokers that ``--brokers`` names; without it, all."""
    found = values.numbers(text, "--brokers") if text else list(now.view.brokers)
    for broker in found:
        if broker not in now.view.brokers:
            raise output.CommandFailed(
                f"--brokers: broker {broker} is not registered. Live brokers: "
                f"{numbers(now.view.brokers)}"
            )
    return found


def _chosen(now: Snapshot, names: list[str] | None) -> list[Partition]:
    """The partitions of these topics; of all topics without names."""
    existing = {topic for topic, _ in now.assigned}
    for name in names or ():
        if name not in existing:
            raise output.CommandFailed(
                f"topic {name} does not exist; 'headrace topics list' lists the topics"
            )
    return [one for one in now.assigned if not names or one[0] in names]


@contextlib.contextmanager
def _opened(
    file: Path, bootstrap: str, settings: list[str] | None, client_file: Path | None
) -> Iterator[tuple[Cluster, Snapshot, Assignment]]:
    """The cluster, its state, and the file's targets, which are possible."""
    read = read_reassignment(file)
    with open_cluster(Connection(bootstrap, settings, client_file)) as cluster:
        now = snapshot(cluster)
        try:
            reassignment_run.check_targets(now, read.targets, read.planned_for)
        except output.CommandFailed as failure:
            raise output.CommandFailed(f"{file}: {failure}") from None
        yield cluster, now, read.targets
