"""``headrace pipeline status``: what a table holds of each partition, and its lag."""

from typing import Annotated

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
    StorageOptions,
    TableOption,
    existing_table,
    source_options,
)


def status(
    table: TableOption,
    topics: Annotated[
        list[str] | None,
        typer.Argument(metavar="TOPIC", help="Topics to show in addition to topics with rows."),
    ] = None,
    storage: StorageOptions = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    settings: ClientSettings = None,
    client_file: ClientFile = None,
    format: OutputFormat = Format.TABLE,
) -> None:
    """Show what a table holds of each partition, and its lag."""
    opened = existing_table(table, storage)
    from headrace.client.errors import ClientError
    from headrace.pipeline.warehouse.status import read_status
    from headrace.spark.cluster import Cluster
    from headrace.spark.failures import BadOption
    from headrace.spark.options import parse_source

    try:
        options = source_options(bootstrap, settings, client_file)
        parsed = parse_source({**options, "subscribe": "unused"}, streaming=False)
        cluster = Cluster(parsed.client)
        try:
            found = read_status(opened, cluster, topics or ())
        finally:
            cluster.close()
    except BadOption as wrong:
        raise values.wrong(str(wrong)) from None
    except ClientError as failure:
        raise output.CommandFailed(str(failure)) from None
    rows = [one._asdict() for one in found]
    if format is Format.JSON:
        output.document(rows)
        return
    headings = ["TOPIC", "TOPIC-ID", "PARTITION", "LOADED-UP-TO", "LAG", "LAG-SECONDS", "ROWS"]
    headings += ["FILES", "BYTES", "LAST-COMMIT", "DEAD-LETTERS", "LOST"]
    for row in rows:
        if row["last_commit_ms"] is not None:
            row["last_commit_ms"] = values.iso(row["last_commit_ms"])
    output.table(headings, [list(row.values()) for row in rows])
