"""``headrace pipeline compact``, ``retention`` and ``vacuum``: the files of a table."""

from typing import Annotated

import typer

from headrace.cli import output, values
from headrace.cli.options import Format, OutputFormat
from headrace.cli.pipeline_options import StorageOptions, TableOption, existing_table

OlderThan = Annotated[
    str,
    typer.Option(
        "--older-than",
        metavar="TIME",
        help="Keep the versions of this period readable. At least 24h.",
    ),
]
RowsOlderThan = Annotated[
    str,
    typer.Option("--older-than", metavar="TIME", help="Remove rows of days before this: 30d."),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only list the files.")]


def compact(
    table: TableOption, storage: StorageOptions = None, format: OutputFormat = Format.TABLE
) -> None:
    """Join small files of a table into larger ones."""
    from headrace.client.errors import ClientError

    opened = existing_table(table, storage)
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


def retention(
    table: TableOption,
    older_than: RowsOlderThan,
    storage: StorageOptions = None,
    format: OutputFormat = Format.TABLE,
) -> None:
    """Remove the rows of old events from a table, by event date."""
    age_ms = _age_ms(older_than)
    from headrace.client.errors import ClientError

    opened = existing_table(table, storage)
    from headrace.pipeline.warehouse.retention import first_day_kept, remove_before
    from headrace.pipeline.warehouse.table import now_ms

    day = first_day_kept(age_ms, now_ms())
    try:
        done = remove_before(opened, day)
    except ClientError as failure:
        raise output.CommandFailed(str(failure)) from None
    if format is Format.JSON:
        output.document({"first_day_kept": day.isoformat(), **done._asdict()})
        return
    output.line(
        f"removed {values.counted(done.row_count, 'row')} of events before {day}, in "
        f"{values.counted(done.removed, 'file')}"
    )


def vacuum(
    table: TableOption,
    older_than: OlderThan = "7d",
    dry_run: DryRun = False,
    storage: StorageOptions = None,
    format: OutputFormat = Format.TABLE,
) -> None:
    """Delete files that no recent version of a table needs."""
    age_ms = _age_ms(older_than)
    from headrace.client.errors import ClientError

    opened = existing_table(table, storage)
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


def _age_ms(older_than: str) -> int:
    found = values.duration_ms(older_than)
    if found is None:
        raise values.wrong(f"--older-than {older_than!r}: expected a time such as 24h or 7d")
    return found
