"""``headrace pipeline status``: a table and its lag, or the queries and tables of a pipeline."""

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
)
from headrace.cli.pipeline_options import (
    DEFAULT_WAREHOUSE,
    State,
    StorageOptions,
    Warehouse,
    existing_table,
    require_tables,
    run_settings,
    source_options,
)

if TYPE_CHECKING:
    from headrace.pipeline.runner.settings import RunSettings
    from headrace.pipeline.warehouse.table import Table


def status(
    subjects: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FILE|TOPIC",
            help="A pipeline; or, with --table, topics to show in addition to topics with rows.",
        ),
    ] = None,
    table: Annotated[
        str | None, typer.Option("--table", metavar="DIR|URL", help="A loaded table.")
    ] = None,
    storage: StorageOptions = None,
    warehouse: Warehouse = DEFAULT_WAREHOUSE,
    state: State = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    settings: ClientSettings = None,
    client_file: ClientFile = None,
    format: OutputFormat = Format.TABLE,
) -> None:
    """Show the lag of a pipeline or a loaded table, and its rows."""
    require_tables()
    options = source_options(bootstrap, settings, client_file)
    if table is not None:
        _table_status(existing_table(table, storage), subjects or [], options, format)
    elif subjects is not None and len(subjects) == 1:
        chosen = run_settings(warehouse, storage, state, options)
        _pipeline_status(subjects[0], chosen, format)
    else:
        raise values.wrong("give one pipeline file, or --table")


def _pipeline_status(file: str, chosen: "RunSettings", format: Format) -> None:
    from headrace.client.errors import ClientError
    from headrace.pipeline.runner.inspection import read_status
    from headrace.spark.failures import BadOption

    try:
        found = read_status(file, chosen)
    except BadOption as wrong:
        raise values.wrong(str(wrong)) from None
    except ClientError as failure:
        raise output.CommandFailed(str(failure)) from None
    if format is Format.JSON:
        document = found._asdict()
        document["queries"] = [one._asdict() for one in found.queries]
        document["tables"] = [one._asdict() for one in found.tables]
        document["expectations"] = [one._asdict() for one in found.expectations]
        output.document(document)
        return
    output.heading(f"{found.pipeline}: {'running' if found.is_running else 'not running'}")
    output.table(["QUERY", "GROUP", "LAST-BATCH", "LAG"], found.queries)
    rows = [
        (*one[:-1], None if one.last_commit_ms is None else values.iso(one.last_commit_ms))
        for one in found.tables
    ]
    output.table(["TABLE", "QUERY", "ROWS", "FILES", "BYTES", "LAST-COMMIT"], rows)
    if found.expectations:
        headings = ["FUNCTION", "RULE", "ROWS", "FAILED", "LAST-BATCH", "ITS-ROWS", "ITS-FAILED"]
        output.table(headings, found.expectations)


def _table_status(
    opened: "Table", topics: list[str], options: dict[str, str], format: Format
) -> None:
    from headrace.client.errors import ClientError
    from headrace.pipeline.warehouse.status import read_status
    from headrace.spark.cluster import Cluster
    from headrace.spark.failures import BadOption
    from headrace.spark.options import parse_source

    try:
        parsed = parse_source({**options, "subscribe": "unused"}, streaming=False)
        cluster = Cluster(parsed.client)
        try:
            found = read_status(opened, cluster, topics)
            damaged = list(opened.damaged_files().values())
        finally:
            cluster.close()
    except BadOption as wrong:
        raise values.wrong(str(wrong)) from None
    except ClientError as failure:
        raise output.CommandFailed(str(failure)) from None
    _print_partitions([one._asdict() for one in found], format)
    if damaged:
        more = f" (and {len(damaged) - 1:,} more)" if len(damaged) > 1 else ""
        raise output.CommandFailed(
            f"{damaged[0]}{more}. The rows above are those of the other files. Restore the file, "
            "or load its records again with headrace pipeline load --reload-from"
        )


def _print_partitions(rows: list[dict[str, Any]], format: Format) -> None:
    if format is Format.JSON:
        output.document(rows)
        return
    headings = ["TOPIC", "TOPIC-ID", "PARTITION", "LOADED-UP-TO", "LAG", "LAG-SECONDS", "ROWS"]
    headings += ["FILES", "BYTES", "LAST-COMMIT", "DEAD-LETTERS", "LOST"]
    for row in rows:
        if row["last_commit_ms"] is not None:
            row["last_commit_ms"] = values.iso(row["last_commit_ms"])
    output.table(headings, [list(row.values()) for row in rows])
