"""``headrace pipeline deadletters``: list, show, resend and drop records that became no rows."""

import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli import output, values
from headrace.cli.options import (
    DEFAULT_BOOTSTRAP,
    Bootstrap,
    ClientFile,
    ClientSettings,
    Format,
    OutputFormat,
    Yes,
    examples,
    noun,
)
from headrace.cli.pipeline_options import (
    DEFAULT_WAREHOUSE,
    StorageOptions,
    Warehouse,
    existing_table,
    require_tables,
    source_options,
    table_location,
)
from headrace.cli.record_format import harmless, json_bytes

if TYPE_CHECKING:
    from headrace.pipeline.quality.dead_letters import LetterTable
    from headrace.pipeline.quality.letters import (
        Decision,
        Identity,
        Letter,
        Place,
        Summary,
        Wanted,
    )

app = noun(
    "List, show, resend and drop dead letters.",
    "headrace pipeline deadletters list",
    "headrace pipeline deadletters show orders:0:17",
    "headrace pipeline deadletters resend --pipeline shop --stage late",
)

Places = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="TOPIC:PARTITION:OFFSET", help="Records. Default: all that the options select."
    ),
]
OfPipeline = Annotated[
    str | None,
    typer.Option("--pipeline", metavar="NAME", help="Only dead letters of this pipeline."),
]
OfTable = Annotated[
    str | None,
    typer.Option("--table", metavar="DIR|URL", help="Only dead letters of this loaded table."),
]
OfTopic = Annotated[
    str | None, typer.Option("--topic", metavar="TOPIC", help="Only records of this topic.")
]
OfStage = Annotated[
    str | None,
    typer.Option(
        "--stage",
        metavar="STAGE",
        help="Only this stage: decode, event-time, late, expectation, step, sink or schema.",
    ),
]
Since = Annotated[
    str | None,
    typer.Option(
        "--since",
        metavar="TIME",
        help="Only dead letters written since this time: ISO 8601, or a duration before now "
        "(90s, 2h, 1d).",
    ),
]


@app.command(
    "list",
    epilog=examples(
        "headrace pipeline deadletters list --warehouse warehouse",
        "headrace pipeline deadletters list --topic orders --since 1d --each",
    ),
)
def list_(
    each: Annotated[
        bool, typer.Option("--each", help="List each dead letter instead of a summary.")
    ] = False,
    pipeline: OfPipeline = None,
    table: OfTable = None,
    topic: OfTopic = None,
    stage: OfStage = None,
    since: Since = None,
    limit: Annotated[
        int, typer.Option("--limit", metavar="N", min=1, help="Print at most N lines.")
    ] = 100,
    warehouse: Warehouse = DEFAULT_WAREHOUSE,
    storage: StorageOptions = None,
    format: OutputFormat = Format.TABLE,
) -> None:
    """Summarize dead letters by topic, stage and reason, or list each."""
    wanted = _wanted(pipeline, table, topic, stage, since)
    is_json = format is Format.JSON
    tables = _tables(warehouse, table, storage)
    found = [
        letter
        for letters in tables
        for letter in _read(letters, wanted, with_content=each and is_json)
    ]
    if each:
        count = len(found)
        _show_each(sorted(found, key=_newest_first)[:limit], format)
    else:
        from headrace.pipeline.quality.letters import summarize

        lines = summarize(found)
        count = len(lines)
        _show_summary(lines[:limit], format)
    if not count and not is_json:
        output.note("There are no dead letters.")
    if count > limit:
        output.note(f"... and {count - limit:,} more: see --limit")


@app.command(
    no_args_is_help=True,
    epilog=examples(
        "headrace pipeline deadletters show orders:0:17",
        "headrace pipeline deadletters show orders:0:17 --table s3://warehouse/orders",
    ),
)
def show(
    place: Annotated[
        str,
        typer.Argument(
            metavar="TOPIC:PARTITION:OFFSET", help="Topic, partition and offset of the record."
        ),
    ],
    pipeline: OfPipeline = None,
    table: OfTable = None,
    warehouse: Warehouse = DEFAULT_WAREHOUSE,
    storage: StorageOptions = None,
    format: OutputFormat = Format.TABLE,
) -> None:
    """Show the dead letters of one record.

    Includes dead letters that were dropped or sent again.
    """
    wanted = _wanted(pipeline, table, places=[_place(place)])
    documents: list[dict[str, Any]] = []
    for letters in _tables(warehouse, table, storage):
        decisions = _decisions(letters)
        for one in _read(letters, wanted, with_content=True, with_decided=True):
            decided = {f"{what}_ms": at_ms for what, at_ms in decisions.get(one.identity, ())}
            times = {f"{name}_ms": decided.get(f"{name}_ms") for name in ("dropped", "resent")}
            if format is Format.TABLE:
                _show_letter(one, times, is_first=not documents)
            documents.append(_document(one) | times)
    if not documents:
        raise output.CommandFailed(f"no dead letter at {place} in {table or warehouse}")
    if format is Format.JSON:
        output.document(documents)


@app.command(
    no_args_is_help=True,
    epilog=examples(
        "headrace pipeline deadletters drop orders:0:17",
        "headrace pipeline deadletters drop --topic orders --stage late --yes",
    ),
)
def drop(
    places: Places = None,
    pipeline: OfPipeline = None,
    table: OfTable = None,
    topic: OfTopic = None,
    stage: OfStage = None,
    since: Since = None,
    yes: Yes = False,
    warehouse: Warehouse = DEFAULT_WAREHOUSE,
    storage: StorageOptions = None,
    format: OutputFormat = Format.TABLE,
) -> None:
    """Hide dead letters from lists. Asks for confirmation on a terminal.

    They stay in their tables, and the audit and reports still count them.
    """
    found = _selected(warehouse, storage, places, pipeline, table, topic, stage, since, "dropped")
    count = sum(len(chosen) for _, chosen in found)
    what = values.counted(count, "dead letter")
    if not yes and sys.stdin.isatty() and not output.confirmed(f"Drop {what}?"):
        raise output.CommandFailed("nothing dropped")
    from headrace.pipeline.quality.letters import DROPPED

    for letters, chosen in found:
        if chosen:
            with _failures():
                letters.decide(chosen, DROPPED)
    if format is Format.JSON:
        output.document({"dropped": count})
    else:
        output.line(f"Dropped {what}.")


@app.command(
    no_args_is_help=True,
    epilog=examples(
        "headrace pipeline deadletters resend orders:0:17",
        "headrace pipeline deadletters resend --pipeline shop --stage expectation --yes",
    ),
)
def resend(
    places: Places = None,
    pipeline: OfPipeline = None,
    topic: OfTopic = None,
    stage: OfStage = None,
    since: Since = None,
    again: Annotated[
        bool, typer.Option("--again", help="Include dead letters that were already sent.")
    ] = False,
    yes: Yes = False,
    warehouse: Warehouse = DEFAULT_WAREHOUSE,
    storage: StorageOptions = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    settings: ClientSettings = None,
    client_file: ClientFile = None,
    format: OutputFormat = Format.TABLE,
) -> None:
    """Send dead letters back to their pipeline. Asks for confirmation on a terminal.

    Only that pipeline reads the records again; other consumers of the topic do not. However often
    a dead letter is sent, its results are written once. A record that fails again becomes a new
    dead letter, with a higher attempt number.
    """
    found = _selected(
        warehouse, storage, places, pipeline, None, topic, stage, since, "sent",
        with_content=True, with_decided=again,
    )  # fmt: skip
    left = [one for _, chosen in found for one in chosen if one.why_not_resent]
    if places and left:
        raise output.CommandFailed(
            f"the dead letter at {left[0].place} of {left[0].origin} cannot be sent again: "
            f"{left[0].why_not_resent}. Nothing sent"
        )
    chosen = [
        (table, [one for one in letters if not one.why_not_resent]) for table, letters in found
    ]
    count = sum(len(letters) for _, letters in chosen)
    if not count:
        raise output.CommandFailed(
            f"none of these dead letters can be sent again: {left[0].why_not_resent}"
        )
    what = values.counted(count, "dead letter")
    if not yes and sys.stdin.isatty() and not output.confirmed(f"Send {what} again?"):
        raise output.CommandFailed("nothing sent")
    _resend(chosen, source_options(bootstrap, settings, client_file))
    if format is Format.JSON:
        output.document({"sent": count, "left_out": len(left)})
        return
    output.line(f"Sent {what}.")
    if left:
        output.note(
            f"Left out {values.counted(len(left), 'dead letter')}, such as {left[0].place}: "
            f"{left[0].why_not_resent}"
        )


def _resend(
    chosen: "Sequence[tuple[LetterTable, list[Letter]]]", options: Mapping[str, str]
) -> None:
    from headrace.client.errors import ClientError
    from headrace.pipeline.quality.letters import RESENT
    from headrace.pipeline.quality.resending import resend as send
    from headrace.spark.cluster import Cluster
    from headrace.spark.failures import BadOption
    from headrace.spark.options import parse_sink

    try:
        cluster = Cluster(parse_sink({**options, "topic": "unused"}).client)
        try:
            for table, letters in chosen:
                if letters:
                    send(cluster, letters)
                    with _failures():
                        table.decide(letters, RESENT)
        finally:
            cluster.close()
    except BadOption as wrong:
        raise values.wrong(str(wrong)) from None
    except ClientError as failure:
        raise output.CommandFailed(str(failure)) from None


# --- what is selected -------------------------------------------------------------------


def _selected(
    warehouse: str,
    storage: Sequence[str] | None,
    places: Sequence[str] | None,
    pipeline: str | None,
    table: str | None,
    topic: str | None,
    stage: str | None,
    since: str | None,
    done: str,
    **options: bool,
) -> "list[tuple[LetterTable, list[Letter]]]":
    """The letters of each table, at least one. Raises CommandFailed."""
    if not (places or pipeline or table or topic or stage or since):
        raise values.wrong(
            "name records as TOPIC:PARTITION:OFFSET, or select letters with --pipeline, --table, "
            "--topic, --stage or --since"
        )
    named = [_place(one) for one in places or ()]
    wanted = _wanted(pipeline, table, topic, stage, since, named)
    found = [
        (letters, _read(letters, wanted, **options))
        for letters in _tables(warehouse, table, storage)
    ]
    selected = [letter for _, chosen in found for letter in chosen]
    for place in named:
        if not any(letter.is_at(place) for letter in selected):
            raise output.CommandFailed(f"no dead letter at {place} is selected; nothing {done}")
    if not selected:
        raise output.CommandFailed(f"no dead letter in {table or warehouse} is selected")
    return found


def _wanted(
    pipeline: str | None,
    table: str | None,
    topic: str | None = None,
    stage: str | None = None,
    since: str | None = None,
    places: "Sequence[Place]" = (),
) -> "Wanted":
    require_tables()
    from headrace.pipeline.quality.letters import Wanted

    if pipeline is not None and table is not None:
        raise values.wrong("give --pipeline or --table: the letters of a table are those of a load")
    since_ms = None
    if since is not None:
        since_ms = values.instant_ms(since, time.time_ns() // 1_000_000, "--since")
    return Wanted(pipeline, topic, stage, since_ms, places)


def _place(text: str) -> "Place":
    from headrace.pipeline.quality.letters import Place

    # The rows of a step have partition -1, because they are no records.
    found = re.fullmatch(r"([^:]+):(-?\d+):(\d+)", text)
    if found is None:
        raise values.wrong(f"{text!r}: expected TOPIC:PARTITION:OFFSET, such as orders:0:17")
    return Place(found[1], int(found[2]), int(found[3]))


def _tables(
    warehouse: str, table: str | None, storage: Sequence[str] | None
) -> "list[LetterTable]":
    from headrace.pipeline.quality.dead_letters import LetterTable, letter_tables

    if table is not None:
        return [LetterTable(existing_table(table, storage).location, table)]
    location = table_location(warehouse, storage, "--warehouse")
    if location.is_directory and not Path(location).is_dir():
        raise output.CommandFailed(f"--warehouse {warehouse} is not a directory")
    with _failures():
        return letter_tables(location)


def _read(letters: "LetterTable", wanted: "Wanted", **options: bool) -> "list[Letter]":
    with _failures():
        return letters.read(wanted, **options)


def _decisions(letters: "LetterTable") -> "dict[Identity, list[Decision]]":
    with _failures():
        return letters.decisions()


@contextmanager
def _failures() -> Iterator[None]:
    from headrace.spark.failures import PipelineError

    try:
        yield
    except PipelineError as failure:
        raise output.CommandFailed(str(failure)) from None


# --- what is printed --------------------------------------------------------------------


def _newest_first(letter: "Letter") -> "tuple[int, Place]":
    return -letter.written_ms, letter.place


def _show_summary(lines: "Sequence[Summary]", format: Format) -> None:
    if format is Format.JSON:
        output.document([one._asdict() for one in lines])
    elif lines:
        output.table(
            ["FROM", "TOPIC", "STAGE", "RULE", "RECORDS", "LAST-WRITTEN", "EXAMPLE", "REASON"],
            [
                [
                    one.origin,
                    one.topic,
                    one.stage,
                    one.rule,
                    one.records,
                    values.iso(one.last_written_ms),
                    one.example,
                    _text(one.reason),
                ]
                for one in lines
            ],
        )


def _show_each(letters: "Sequence[Letter]", format: Format) -> None:
    if format is Format.JSON:
        output.document([_document(one) for one in letters])
    elif letters:
        output.table(
            ["RECORD", "FROM", "STAGE", "RULE", "WRITTEN", "REASON"],
            [
                [
                    one.place,
                    one.origin,
                    one.stage,
                    one.rule,
                    values.iso(one.written_ms),
                    _text(one.reason),
                ]
                for one in letters
            ],
        )


def _show_letter(letter: "Letter", times: "Mapping[str, int | None]", *, is_first: bool) -> None:
    if not is_first:
        output.line("")
    rows = [
        ("record", str(letter.place)),
        ("topic id", letter.topic_id),
        ("from", letter.origin),
        ("stage", letter.stage),
        ("rule", letter.rule),
        ("reason", _text(letter.reason)),
        ("timestamp", None if letter.timestamp_ms is None else values.iso(letter.timestamp_ms)),
        ("written", values.iso(letter.written_ms)),
        ("attempt", str(letter.attempt) if letter.attempt else None),
        ("lacking in", letter.sinks),
    ]
    rows += [
        (name.removesuffix("_ms"), None if at_ms is None else values.iso(at_ms))
        for name, at_ms in times.items()
    ]
    if letter.offset_end > letter.offset + 1:
        rows.append(("last offset", str(letter.offset_end - 1)))
    else:
        rows.append(("key", _bytes_text(letter.key)))
        rows += [
            ("header", f"{_text(name)}={_bytes_text(value)}") for name, value in letter.headers
        ]
        rows.append(("value", _bytes_text(letter.value)))
    output.line(
        "\n".join(output.aligned([(name, text) for name, text in rows if text is not None]))
    )


def _document(letter: "Letter") -> dict[str, Any]:
    document = letter._asdict()
    for name in ("key", "value"):
        document |= json_bytes(name, document.pop(name))
    headers = [{"name": name, **json_bytes("value", value)} for name, value in letter.headers]
    return document | {"headers": headers}


def _text(text: str) -> str:
    """A reason may quote the record, whose bytes must not control the terminal."""
    return harmless(text.encode()).decode()


def _bytes_text(data: bytes | None) -> str:
    """Text, or hex if it is not UTF-8."""
    if data is None:
        return "null"
    try:
        return _text(data.decode())
    except UnicodeDecodeError:
        return f"0x{data.hex()}"
