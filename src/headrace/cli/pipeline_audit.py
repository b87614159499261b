"""``headrace pipeline audit``: whether every tier holds what the one before it counted."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli import output, values
from headrace.cli.options import (
    DEFAULT_BOOTSTRAP,
    Bootstrap,
    ClientFile,
    ClientSettings,
    Format,
    OutputFormat,
)
from headrace.cli.pipeline_options import require_tables, source_options

if TYPE_CHECKING:
    from headrace.pipeline.quality.audit import Findings

_MINUTES_SHOWN = 20
_UNREADABLE_SHOWN = 5


def audit(
    topics: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TOPIC",
            help="Topics to check. Default: all that are counted or have a raw table.",
        ),
    ] = None,
    warehouse: Annotated[
        Path, typer.Option("--warehouse", metavar="DIR", help="Directory of the tables.")
    ] = Path("warehouse"),
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    settings: ClientSettings = None,
    client_file: ClientFile = None,
    format: OutputFormat = Format.TABLE,
) -> None:
    """Compare what every tier counted, per topic and minute.

    The tiers are producers, brokers, loaded tables, and what the queries of pipelines read. The
    exit status is 1 if any record is missing or duplicated.
    """
    require_tables()

    from headrace.client.errors import ClientError
    from headrace.pipeline.quality.audit import audit as compare
    from headrace.pipeline.quality.audit import keep
    from headrace.spark.cluster import Cluster
    from headrace.spark.failures import BadOption
    from headrace.spark.options import parse_source

    try:
        options = source_options(bootstrap, settings, client_file)
        parsed = parse_source({**options, "subscribe": "unused"}, streaming=False)
        cluster = Cluster(parsed.client)
        try:
            found = compare(cluster, warehouse, topics or ())
        finally:
            cluster.close()
        keep(found.balances, warehouse, time.time_ns() // 1_000_000)
    except BadOption as wrong:
        raise values.wrong(str(wrong)) from None
    except ClientError as failure:
        raise output.CommandFailed(str(failure)) from None
    _show(found, format)
    if not all(one.is_even for one in found.balances):
        output.leave(1)


def _show(found: "Findings", format: Format) -> None:
    from headrace.pipeline.quality.balance import totals

    uneven = [one for one in found.balances if not one.is_even]
    if format is Format.JSON:
        output.document(
            {
                "totals": [one._asdict() for one in totals(found.balances)],
                "minutes": [
                    one._asdict() | {"missing": one.missing, "surplus": one.surplus}
                    for one in uneven
                ],
                "lost": [one._asdict() for one in found.lost],
                "unreadable": [one._asdict() for one in found.unreadable],
            }
        )
        return
    _show_unreadable(found)
    if not found.balances:
        output.note(
            "No topic is counted by producers or loads, no table is below the directory raw, and "
            "no pipeline has run in this warehouse."
        )
        return
    headings = ["TIER", "NAME", "TOPIC", "MINUTES", "EXPECTED", "FOUND", "MISSING", "SURPLUS"]
    output.table(headings, [list(one) for one in totals(found.balances)])
    if found.lost:
        output.heading("Deleted from the log before they were loaded, and accepted")
        output.table(["TABLE", "TOPIC", "PARTITION", "FIRST OFFSET", "OFFSET END"], found.lost)
    if not uneven:
        output.line("The books balance.")
        return
    output.heading("Minutes that differ")
    output.table(
        ["TIER", "NAME", "TOPIC", "MINUTE", "EXPECTED", "FOUND", "MISSING", "SURPLUS"],
        [
            [
                one.tier,
                one.name,
                one.topic,
                values.iso(one.minute_ms),
                one.expected,
                one.found,
                one.missing,
                one.surplus,
            ]
            for one in uneven[:_MINUTES_SHOWN]
        ],
    )
    if len(uneven) > _MINUTES_SHOWN:
        output.line(f"... and {len(uneven) - _MINUTES_SHOWN} more; --format json shows all")


def _show_unreadable(found: "Findings") -> None:
    from headrace.model.audit import AUDIT_TOPIC

    for one in found.unreadable[:_UNREADABLE_SHOWN]:
        output.note(
            f"Ignoring the record at offset {one.offset} of {AUDIT_TOPIC}-{one.partition}: "
            f"{one.reason}"
        )
    if found.unreadable:
        output.note(
            f"{values.counted(len(found.unreadable), 'record')} of {AUDIT_TOPIC} cannot be read as "
            "counts. Correct the program that writes them; a record with the same key and no "
            "value removes one"
        )
