"""``headrace pipeline compact`` and ``vacuum``: the files of a table."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli import output, values
from headrace.cli.options import Format, OutputFormat
from headrace.cli.pipeline_options import TableOption, local_directory, require_tables

if TYPE_CHECKING:
    from headrace.pipeline.warehouse.table import Table

OlderThan = Annotated[
    str,
    typer.Option(
        "--older-than",
        metavar="TIME",
        help="Keep files of this time, so that older versions can be read. At least 24h.",
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only list the files.")]


def compact(table: TableOption, format: OutputFormat = Format.TABLE) -> None:
    """Join small files of a table into larger ones."""
    from headrace.client.errors import ClientError

    opened = _opened(table)
    from headrace.pipeline.warehouse.compaction import compact as join

    try:
        done = join(opened)
    except ClientError as failure:
        raise output.CommandFailed(str(failure)) from None
    if format is Format.JSON:
        output.document(done._asdict())
        return
    output.line(
        f"joined {values.counted(done.removed, 'file')} into {done.added}, "
        f"with {values.counted(done.row_count, 'row')}"
    )


def vacuum(
    table: TableOption,
    older_than: OlderThan = "7d",
    dry_run: DryRun = False,
    format: OutputFormat = Format.TABLE,
) -> None:
    """Delete files that are no longer, or never were, part of a table."""
    age_ms = values.duration_ms(older_than)
    if age_ms is None:
        raise values.wrong(f"--older-than {older_than!r}: expected a time such as 24h or 7d")
    from headrace.client.errors import ClientError

    opened = _opened(table)
    from headrace.pipeline.warehouse.compaction import vacuum as delete

    try:
        deleted = delete(opened, age_ms // 3_600_000, dry_run=dry_run)
    except ClientError as failure:
        raise output.CommandFailed(str(failure)) from None
    if format is Format.JSON:
        output.document(deleted)
        return
    for path in deleted:
        output.line(path)
    output.note(f"{'found' if dry_run else 'deleted'} {values.counted(len(deleted), 'file')}")


def _opened(table: Path) -> "Table":
    require_tables()
    from headrace.pipeline.warehouse.table import open_table

    location = local_directory(table)
    opened = open_table(location)
    if opened is None:
        raise output.CommandFailed(f"{location} holds no Delta table")
    return opened
