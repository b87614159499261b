"""``headrace sql``: query topics and tables with SQL, once or live."""

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli import output, values
from headrace.cli.client import Connection
from headrace.cli.options import (
    DEFAULT_BOOTSTRAP,
    Bootstrap,
    ClientFile,
    ClientSettings,
    Format,
    OutputFormat,
    examples,
)
from headrace.cli.pipeline_generate import stopped_by_signals
from headrace.cli.pipeline_options import (
    DEFAULT_WAREHOUSE,
    Master,
    StorageOptions,
    Warehouse,
    require_spark,
    require_tables,
    source_options,
    table_location,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.pipeline.sql import View
    from headrace.pipeline.warehouse.storage import Location

_ROWS = 1_000

Query = Annotated[
    str | None, typer.Argument(metavar="QUERY", help="A query. Without one, lists the views.")
]
Live = Annotated[
    bool, typer.Option("--live", help="Keep running, and print rows as records arrive.")
]
FromBeginning = Annotated[
    bool,
    typer.Option("--from-beginning", help="With --live, start at the first records of the topics."),
]
Limit = Annotated[
    int | None,
    typer.Option(
        "--limit", metavar="N", help=f"Print at most N rows. Default: {_ROWS:,}; live: all."
    ),
]
Schema = Annotated[
    list[str] | None,
    typer.Option(
        "--schema",
        metavar="TOPIC=DDL",
        help="Columns of a topic's JSON values, such as alerts='client STRING, score DOUBLE'; may "
        "be repeated. Not needed for the activity events.",
    ),
]


def register(root: typer.Typer) -> None:
    root.command(
        "sql",
        epilog=examples(
            'headrace sql "select page, count(*) from page_views group by page order by 2 desc"',
            'headrace sql "select * from incidents" --warehouse warehouse --format json',
            'headrace sql --live "select client, account from logins where not succeeded"',
            "headrace sql --schema orders='id BIGINT, price DOUBLE' \"select * from orders\"",
            "headrace sql",
        ),
    )(sql)


def sql(
    query: Query = None,
    live: Live = False,
    from_beginning: FromBeginning = False,
    limit: Limit = None,
    schema: Schema = None,
    warehouse: Warehouse = DEFAULT_WAREHOUSE,
    storage: StorageOptions = None,
    master: Master = "local[*]",
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    settings: ClientSettings = None,
    client_file: ClientFile = None,
    format: OutputFormat = Format.TABLE,
) -> None:
    """Query topics and tables with SQL, once or live.

    Every table of the warehouse and every topic is a view. A view has the name of its table or
    topic with _ in place of other characters; tables of raw events begin with raw_.
    """
    if limit is not None and limit < 1:
        raise values.wrong(f"--limit {limit}: expected at least 1")
    if from_beginning and not live:
        raise values.wrong("--from-beginning is for --live; other queries read whole topics")
    require_tables()
    source = source_options(bootstrap, settings, client_file)
    place = table_location(warehouse, storage, "--warehouse")

    from headrace.pipeline.sql import SqlSettings, find_views, follow, make_frame

    with _failures_shown():
        topics = _topics(Connection(bootstrap, settings, client_file), source, live, place)
        schemas = _schemas(schema, topics)
        views = find_views(place, topics)
        if query is None:
            _list(views.values(), format)
            return
        require_spark("a query")
        chosen = SqlSettings(place, source, schemas, live, from_beginning)
        with _session(master) as (spark, scratch), stopped_by_signals() as stop:
            frame = make_frame(spark, query, views, chosen)
            if live:
                printer = LivePrinter(format, limit)
                follow(frame, scratch / "checkpoint", printer.show, stop.is_set)
            else:
                show(frame, limit or _ROWS, format)


def _topics(
    connection: Connection, source: dict[str, str], live: bool, warehouse: "Location"
) -> list[str]:
    """The topics of the cluster. Tables can be queried without a broker."""
    from headrace.spark.cluster import Cluster
    from headrace.spark.options import parse_source

    parsed = parse_source({**source, "subscribe": "unused"}, streaming=False)
    try:
        connection.reach()
    except output.CommandFailed as unreachable:
        if live or (warehouse.is_directory and not Path(warehouse).is_dir()):
            raise
        output.note(f"note: only tables can be queried: {unreachable}")
        return []
    cluster = Cluster(parsed.client)
    try:
        return sorted(cluster.topics())
    finally:
        cluster.close()


def _schemas(texts: list[str] | None, topics: list[str]) -> dict[str, str]:
    from headrace.model.spelling import did_you_mean
    from headrace.spark.ddl import parse_fields

    found = values.pairs(texts or (), "--schema")
    for topic, ddl in found.items():
        if topic not in topics:
            raise values.wrong(
                f"--schema {topic}={ddl}: there is no topic {topic!r}{did_you_mean(topic, topics)}"
            )
        parse_fields(ddl)
    return found


@contextmanager
def _failures_shown() -> Iterator[None]:
    from pyspark.errors import PySparkException

    from headrace.client.errors import ClientError
    from headrace.pipeline.errors import BadQuery
    from headrace.spark.failures import BadOption

    try:
        yield
    except (BadOption, BadQuery) as wrong:
        raise values.wrong(str(wrong)) from None
    except (ClientError, PySparkException) as failure:
        raise output.CommandFailed(str(failure).partition("\n\nJVM stacktrace")[0]) from None


@contextmanager
def _session(master: str) -> Iterator[tuple[Any, Path]]:
    """A Spark session and the directory of its files."""
    from headrace.spark.demo import start_spark

    output.progress("starting Spark")
    with tempfile.TemporaryDirectory(prefix="headrace-sql-", ignore_cleanup_errors=True) as scratch:
        spark = start_spark(Path(scratch), master=master, name="headrace-sql")
        output.progress_over()
        try:
            yield spark, Path(scratch)
        finally:
            spark.stop()


# --- output -------------------------------------------------------------------------------


def _list(views: Any, format: Format) -> None:
    rows: list[View] = list(views)
    if format is Format.JSON:
        output.document([view._asdict() for view in rows])
    else:
        output.table(["VIEW", "KIND", "PLACE"], rows)


def show(frame: Any, limit: int, format: Format) -> None:
    found = frame.limit(limit + 1).toArrow()
    rows = _rows(found)
    if format is Format.JSON:
        output.document([_document(found.column_names, row) for row in rows[:limit]])
    else:
        body = [[_cell(value) for value in row] for row in rows[:limit]]
        output.table(found.column_names, body, kept=found.column_names)
    if len(rows) > limit:
        output.note(f"note: these are the first {values.counted(limit, 'row')}; see --limit")


class LivePrinter:
    """Prints the rows of every batch: under one heading, or as lines of JSON."""

    def __init__(self, format: Format, limit: int | None) -> None:
        self._format = format
        self._left = limit
        self._widths: list[int] = []

    def show(self, batch: "pa.Table") -> bool:
        """True when the limit is reached."""
        rows = _rows(batch)[: self._left]
        if self._format is Format.JSON:
            for row in rows:
                output.line(json.dumps(_document(batch.column_names, row), ensure_ascii=False))
        elif rows:
            self._print(batch.column_names, [[output.cell(_cell(v)) for v in row] for row in rows])
        if self._left is not None:
            self._left -= len(rows)
        return self._left == 0

    def _print(self, names: list[str], cells: list[list[str]]) -> None:
        if not self._widths:
            self._widths = [len(name) for name in names]
            cells = [names, *cells]
        for row in cells:
            self._widths = [
                max(width, len(cell)) for width, cell in zip(self._widths, row, strict=True)
            ]
        for row in cells:
            padded = (cell.ljust(width) for cell, width in zip(row, self._widths, strict=True))
            output.line("  ".join(padded).rstrip())


def _rows(found: "pa.Table") -> list[tuple[object, ...]]:
    """Not as mappings: a query may give two columns one name."""
    if not found.num_columns:
        return []
    return list(zip(*(column.to_pylist() for column in found.columns), strict=True))


def _cell(value: object) -> object:
    """A value as text of one line, or as it is if the table knows better."""
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, list | tuple | dict):
        return json.dumps(_plain(value), ensure_ascii=False)
    return _plain(value)


def _document(names: list[str], row: tuple[object, ...]) -> dict[str, object]:
    return {name: _plain(value) for name, value in zip(names, row, strict=True)}


def _plain(value: object) -> object:
    """A value as JSON knows it."""
    if isinstance(value, dict):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, bytes):
        return value.hex()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return value.isoformat() if isinstance(value, datetime | date) else str(value)
