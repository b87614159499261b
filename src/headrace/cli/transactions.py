"""``headrace transactions``: list, describe and abort transactions."""

import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from headrace.cli import output, partitions, values
from headrace.cli import transaction_requests as requests
from headrace.cli.broker_requests import require_plaintext
from headrace.cli.client import Connection
from headrace.cli.options import (
    DEFAULT_BOOTSTRAP,
    Bootstrap,
    ClientFile,
    ClientSettings,
    Format,
    OptionalPlaces,
    OutputFormat,
    Yes,
    examples,
    noun,
)
from headrace.cli.partitions import Partition
from headrace.cli.transaction_requests import ActiveProducer, Described

app = noun(
    "List, describe and abort transactions.",
    "headrace transactions list --state Ongoing",
    "headrace transactions find-hanging",
)

# The default of transaction.max.timeout.ms: no transaction is open for longer.
_DEFAULT_AGE = "15m"
_STATES = ("Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort")


def register(root: typer.Typer) -> None:
    root.add_typer(app, name="transactions")


@app.command(
    "list",
    epilog=examples(
        "headrace transactions list",
        "headrace transactions list --state Ongoing --longer-than 10m",
        "headrace transactions list --pattern 'orders-.*'",
    ),
)
def list_transactions(
    states: Annotated[
        list[str] | None,
        typer.Option(
            "--state",
            metavar="STATE",
            help=f"Only this state: {', '.join(_STATES[:-1])} or {_STATES[-1]}; may be repeated.",
        ),
    ] = None,
    producer_ids: Annotated[
        list[int] | None,
        typer.Option("--producer-id", metavar="N", help="Only this producer ID; may be repeated."),
    ] = None,
    longer_than: Annotated[
        str | None,
        typer.Option(
            "--longer-than",
            metavar="DURATION",
            help="Only transactions that started longer ago than this (90s, 2h), in any state; add "
            "--state Ongoing for open ones.",
        ),
    ] = None,
    pattern: Annotated[
        str | None,
        typer.Option(
            "--pattern", metavar="REGEX", help="Only transactional IDs that fully match (RE2)."
        ),
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    settings: ClientSettings = None,
    client_file: ClientFile = None,
    format: OutputFormat = Format.TABLE,
) -> None:
    """List transactional IDs with their transaction states."""
    connection = _connection(bootstrap, settings, client_file)
    found = requests.list_all(
        connection,
        states=[_state(text) for text in states or ()],
        producer_ids=producer_ids or (),
        longer_than_ms=-1 if longer_than is None else _duration_ms(longer_than),
        pattern=pattern,
    )
    if format is Format.JSON:
        output.document([one._asdict() for one in found])
    else:
        output.table(["TRANSACTIONAL-ID", "COORDINATOR", "PRODUCER-ID", "STATE"], found)


@app.command(no_args_is_help=True, epilog=examples("headrace transactions describe orders-1"))
def describe(
    names: Annotated[list[str], typer.Argument(metavar="TRANSACTIONAL-ID", hidden=True)],
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    settings: ClientSettings = None,
    client_file: ClientFile = None,
    format: OutputFormat = Format.TABLE,
) -> None:
    """Show state, producer, start time and partitions."""
    connection = _connection(bootstrap, settings, client_file)
    described: list[Described] = []
    failures = []
    for name in names:
        try:
            described.append(requests.describe(connection, name))
        except output.CommandFailed as failure:
            failures.append(str(failure))
    if format is Format.JSON:
        output.document([_document(one) for one in described])
    elif described:
        now = _now()
        output.table(
            [
                "TRANSACTIONAL-ID",
                "COORDINATOR",
                "PRODUCER-ID",
                "EPOCH",
                "STATE",
                "TIMEOUT-MS",
                "STARTED",
                "OPEN-FOR-MS",
                "PARTITIONS",
            ],
            [_row(one, now) for one in described],
        )
    for reason in failures:
        output.error(reason)
    if failures:
        output.leave(output.FAILED)


@app.command(
    "find-hanging",
    epilog=examples(
        "headrace transactions find-hanging",
        "headrace transactions find-hanging orders:0 payments --older-than 1h",
    ),
)
def find_hanging(
    names: OptionalPlaces = None,
    older_than: Annotated[
        str,
        typer.Option(
            "--older-than",
            metavar="DURATION",
            help="Minimum time since the producer last wrote.",
        ),
    ] = _DEFAULT_AGE,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    settings: ClientSettings = None,
    client_file: ClientFile = None,
    format: OutputFormat = Format.TABLE,
) -> None:
    """Find hanging transactions, which never time out.

    A transaction is hanging if it is open in a partition but unknown to its coordinator. It blocks
    compaction and consumers with isolation.level=read_committed. End it with 'headrace transactions
    abort'.
    """
    connection = _connection(bootstrap, settings, client_file)
    silent_since = _now() - _duration_ms(older_than)
    # Transactions also contain offset commits, so internal topics are included.
    leaders = partitions.named(connection, names or [], internal=True)
    hanging = [
        producer
        for producer in requests.producers_of(connection, leaders, leaders)
        if producer.start_offset >= 0 and producer.last_timestamp <= silent_since
    ]
    found = _unknown_to_coordinators(connection, hanging)
    if format is Format.JSON:
        output.document([one._asdict() for one in found])
        return
    output.table(
        ["TOPIC", "PARTITION", "PRODUCER-ID", "EPOCH", "START-OFFSET", "LAST-WRITTEN"],
        [
            (
                one.topic,
                one.partition,
                one.producer_id,
                one.producer_epoch,
                one.start_offset,
                values.iso(one.last_timestamp),
            )
            for one in found
        ],
    )
    if found:
        output.note(
            "Abort one: headrace transactions abort TOPIC:PARTITION --start-offset START-OFFSET"
        )


@app.command(
    no_args_is_help=True,
    epilog=examples("headrace transactions abort orders:0 --start-offset 4711"),
)
def abort(
    place: Annotated[str, typer.Argument(metavar="TOPIC:PARTITION", hidden=True)],
    start_offset: Annotated[
        int,
        typer.Option("--start-offset", metavar="N", help="First offset of the transaction.", min=0),
    ],
    yes: Yes = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    settings: ClientSettings = None,
    client_file: ClientFile = None,
    format: OutputFormat = Format.TABLE,
) -> None:
    """Abort a hanging transaction in one partition. Asks for confirmation on a terminal.

    Do not abort a transaction that its coordinator still knows: stop the producer, and the
    transaction times out.
    """
    connection = _connection(bootstrap, settings, client_file)
    leaders = partitions.named(connection, [place])
    if ":" not in place or len(leaders) != 1:
        raise values.wrong(f"{place}: expected one partition, as TOPIC:PARTITION")
    ((partition, leader),) = leaders.items()
    found = [
        producer
        for producer in requests.producers_of(connection, leaders, leaders)
        if producer.start_offset == start_offset
    ]
    if not found:
        raise output.CommandFailed(
            f"no open transaction starts at offset {start_offset} of {place}; "
            "'headrace transactions find-hanging' shows the start offsets"
        )
    (hanging,) = found
    if not _unknown_to_coordinators(connection, found):
        output.note(
            f"warning: the coordinator knows this transaction of producer {hanging.producer_id} "
            "and will end it automatically"
        )
    if not yes and sys.stdin.isatty():
        question = (
            f"Abort the transaction of producer {hanging.producer_id} at offset {start_offset} "
            f"of {place}?"
        )
        if not output.confirmed(question):
            raise output.CommandFailed("nothing aborted")
    requests.abort(connection, leader, hanging)
    row = {
        "topic": partition[0],
        "partition": partition[1],
        "producer_id": hanging.producer_id,
        "status": "aborted",
    }
    if format is Format.JSON:
        output.document([row])
    else:
        output.table(["TOPIC", "PARTITION", "PRODUCER-ID", "STATUS"], [list(row.values())])


def _state(text: str) -> str:
    """A state in Kafka's capitalization; the broker checks unknown ones."""
    return next((state for state in _STATES if state.lower() == text.lower()), text)


def _connection(bootstrap: str, settings: list[str] | None, client_file: Path | None) -> Connection:
    connection = Connection(bootstrap, settings, client_file)
    require_plaintext(connection)
    return connection


def _unknown_to_coordinators(
    connection: Connection, candidates: Iterable[ActiveProducer]
) -> list[ActiveProducer]:
    """The candidates whose coordinator does not list the partition in a transaction."""
    open_ones = list(candidates)
    if not open_ones:
        return []
    listed = requests.list_all(connection, producer_ids={one.producer_id for one in open_ones})
    known: set[tuple[int, Partition]] = set()
    for one in listed:
        try:
            described = requests.describe(connection, one.transactional_id)
        except output.CommandFailed:
            continue  # it has just expired, so no coordinator will end it
        known.update((described.producer_id, partition) for partition in described.partitions)
    return [one for one in open_ones if (one.producer_id, (one.topic, one.partition)) not in known]


def _document(one: Described) -> dict[str, object]:
    document: dict[str, object] = one._asdict()
    document["partitions"] = [
        {"topic": topic, "partition": partition} for topic, partition in one.partitions
    ]
    return document


def _row(one: Described, now: int) -> tuple[object, ...]:
    is_open = one.state in ("Ongoing", "PrepareCommit", "PrepareAbort")
    return (
        one.transactional_id,
        one.coordinator,
        one.producer_id,
        one.producer_epoch,
        one.state,
        one.timeout_ms,
        values.iso(one.started_at) if one.started_at >= 0 else None,
        now - one.started_at if is_open else None,
        ",".join(f"{topic}:{partition}" for topic, partition in one.partitions) or None,
    )


def _duration_ms(text: str) -> int:
    duration_ms = values.duration_ms(text)
    if duration_ms is None:
        raise values.wrong(f"duration {text!r}: expected a duration such as 90s, 15m, 2h or 1d12h")
    return duration_ms


def _now() -> int:
    return time.time_ns() // 1_000_000
