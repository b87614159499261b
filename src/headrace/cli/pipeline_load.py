"""``headrace pipeline load``: load topics into a Delta table, exactly once."""

import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

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
    Archives,
    Master,
    SparkSettings,
    StorageOptions,
    TableOption,
    bad_share,
    require_spark,
    require_tables,
    source_options,
    spark_config,
    table_location,
)

if TYPE_CHECKING:
    from headrace.pipeline.warehouse.load import Progress, Report
    from headrace.pipeline.warehouse.settings import LoadSettings

_NO_LIMIT = "none"


Topics = Annotated[list[str], typer.Argument(metavar="TOPIC", hidden=True)]
Once = Annotated[
    bool, typer.Option("--once", help="Load what the topics hold now, and exit. The default.")
]
Every = Annotated[
    str | None,
    typer.Option(
        "--every",
        metavar="TIME",
        help="Keep loading, and commit at least this often while records arrive: 10s, 5m.",
    ),
]
Continuous = Annotated[
    bool, typer.Option("--continuous", help="Keep loading, and commit at least every 60s.")
]
Value = Annotated[
    str,
    typer.Option(
        "--value",
        metavar="raw|string|json|avro",
        help="How to read values. The fields of JSON and Avro values become columns.",
    ),
]
ValueSchema = Annotated[
    str | None,
    typer.Option(
        "--schema",
        metavar="SCHEMA|@FILE",
        help="Fields of the value: DDL (user BIGINT, page STRING) or an Avro schema.",
    ),
]
EventTimeColumn = Annotated[
    str,
    typer.Option(
        "--event-time",
        metavar="COLUMN",
        help="Field with the event time: a TIMESTAMP, or a BIGINT of milliseconds. Default: the "
        "timestamp of the record.",
    ),
]
EventPast = Annotated[
    str,
    typer.Option(
        "--event-past", metavar="TIME|none", help="How much older than its record an event may be."
    ),
]
EventFuture = Annotated[
    str,
    typer.Option(
        "--event-future", metavar="TIME", help="How much newer than its record an event may be."
    ),
]
PartitionBy = Annotated[
    str,
    typer.Option(
        "--partition-by",
        metavar="COLUMNS",
        help="Partition columns of the table: event_date, event_hour, fields of the value.",
    ),
]
Metadata = Annotated[
    bool,
    typer.Option(
        "--metadata/--no-metadata",
        help="Add _topic, _topic_id, _partition, _offset, _timestamp, _key, _headers and "
        "_loaded_at.",
    ),
]
AcceptLoss = Annotated[
    bool,
    typer.Option(
        "--accept-loss", help="Skip records that retention deleted before they were loaded."
    ),
]
BadMax = Annotated[
    str,
    typer.Option(
        "--bad-max",
        metavar="PERCENT",
        help="Stop if a larger share of the records would be dead letters.",
    ),
]
BatchSize = Annotated[
    str, typer.Option("--batch-size", metavar="BYTES", help="Commit at this size of the log.")
]
SourceOption = Annotated[
    list[str] | None,
    typer.Option(
        "--option",
        metavar="KEY=VALUE",
        help="Option of the Spark source (docs/spark.md); may be repeated.",
    ),
]
ReloadFrom = Annotated[
    str | None,
    typer.Option(
        "--reload-from",
        metavar="offset:N|TIME",
        help="Load everything at or after this offset or time again, and replace its rows.",
    ),
]


def load(
    topics: Topics,
    table: TableOption,
    once: Once = False,
    continuous: Continuous = False,
    every: Every = None,
    value: Value = "raw",
    schema: ValueSchema = None,
    event_time: EventTimeColumn = "",
    event_past: EventPast = "30d",
    event_future: EventFuture = "1h",
    partition_by: PartitionBy = "event_date",
    metadata: Metadata = True,
    accept_loss: AcceptLoss = False,
    bad_max: BadMax = "5%",
    batch_size: BatchSize = "1G",
    reload_from: ReloadFrom = None,
    more: SourceOption = None,
    storage: StorageOptions = None,
    master: Master = "local[*]",
    archives: Archives = None,
    conf: SparkSettings = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    settings: ClientSettings = None,
    client_file: ClientFile = None,
    format: OutputFormat = Format.TABLE,
) -> None:
    """Load topics into a Delta table, each record exactly once."""
    forever = continuous or every is not None
    if forever and (once or reload_from is not None):
        raise values.wrong("give --once or --reload-from without --continuous and --every")
    since = _reload_start(reload_from)
    source = source_options(bootstrap, settings, client_file, more)
    source |= _value_options(value, schema)
    age_ms = _milliseconds(every, "--every") if every is not None else None
    past_ms = None if event_past == _NO_LIMIT else _milliseconds(event_past, "--event-past")
    future_ms = _milliseconds(event_future, "--event-future")
    batch_bytes = max(1, values.size(batch_size))
    share = bad_share(bad_max)
    require_tables()
    location = table_location(table, storage)
    require_spark("the load")

    from headrace.pipeline.warehouse.planning import Limits
    from headrace.pipeline.warehouse.rows import EventTime
    from headrace.pipeline.warehouse.settings import LoadSettings

    limits = Limits(batch_bytes=batch_bytes)
    if age_ms is not None:
        limits = limits._replace(batch_age_s=age_ms / 1000)
    checked = LoadSettings(
        tuple(dict.fromkeys(topics)),
        location,
        source,
        metadata,
        tuple(name.strip() for name in partition_by.split(",") if name.strip()),
        EventTime(event_time, past_ms, future_ms),
        limits,
        accept_loss,
        share,
    )
    report = _report_json if format is Format.JSON else report_progress
    session = _Session(master, spark_config(master, archives, conf))
    _run(checked, session, report, forever=forever, since=since)


class _Session(NamedTuple):
    """What the Spark session of a load needs."""

    master: str
    config: Mapping[str, str]


def _run(
    settings: "LoadSettings",
    session: _Session,
    report: "Report",
    *,
    forever: bool,
    since: Mapping[str, int],
) -> None:
    from headrace.client.errors import ClientError
    from headrace.pipeline.warehouse.load import Load, Progress
    from headrace.spark.demo import start_spark
    from headrace.spark.failures import BadOption

    done: list[Progress] = []

    def counting(batch: Progress) -> None:
        done.append(batch)
        report(batch)

    with tempfile.TemporaryDirectory(
        prefix="headrace-load-", ignore_cleanup_errors=True
    ) as scratch:
        spark = start_spark(
            Path(scratch), master=session.master, name="headrace-load", config=session.config
        )
        try:
            loader = Load(spark, settings)
            try:
                if since:
                    loader.again(report, **since)
                elif forever:
                    loader.keep_loading(report, _wait)
                else:
                    loader.once(counting)
                    if not done:
                        output.note("nothing to load: the table holds all records of the topics")
            finally:
                loader.close()
        except BadOption as wrong:
            raise values.wrong(str(wrong)) from None
        except ClientError as failure:
            raise output.CommandFailed(str(failure)) from None
        finally:
            spark.stop()


def _wait(seconds: float) -> bool:
    time.sleep(seconds)
    return False


def report_progress(done: "Progress") -> None:
    from headrace.pipeline.warehouse.offsets import Decision

    if done.decision is Decision.REPEATED:
        count = values.counted(done.row_count, "row")
        output.line(f"dropped {count}: the table already has the offsets of this batch")
        return
    letters = (
        f" and {values.counted(done.letter_count, 'dead letter')}" if done.letter_count else ""
    )
    output.line(
        f"committed {values.counted(done.row_count, 'row')}{letters} in "
        f"{values.counted(done.file_count, 'file')}, {done.bytes_written:,} bytes, in "
        f"{done.seconds:.1f} s"
    )


def _report_json(done: "Progress") -> None:
    """One line per batch: a load that keeps running has no end to wait for."""
    offsets = [
        {
            "topic": span.place.topic,
            "partition": span.place.partition,
            "first_offset": span.first_offset,
            "offset_end": span.offset_end,
        }
        for span in done.spans
    ]
    output.line_of_json({**done._asdict(), "decision": done.decision.value, "spans": offsets})


def _value_options(value: str, schema: str | None) -> dict[str, str]:
    found = {}
    if value not in ("raw", "string", "json", "avro"):
        raise values.wrong(f"--value {value!r}: expected raw, string, json or avro")
    if value != "raw":
        found["value.format"] = value
    if schema is not None:
        if schema.startswith("@"):
            try:
                schema = Path(schema[1:]).read_text()
            except (OSError, UnicodeDecodeError) as failure:
                raise values.wrong(f"--schema {schema}: {output.reason(failure)}") from None
        found["value.schema"] = schema
    return found


def _reload_start(text: str | None) -> dict[str, int]:
    """The argument of ``Load.again``; empty if nothing is to be loaded again."""
    if text is None:
        return {}
    if text.startswith("offset:") and text[7:].isdecimal():
        return {"offset": int(text[7:])}
    now = round(time.time() * 1000)
    return {"since_ms": values.instant_ms(text, now, "--reload-from", "offset:N, ")}


def _milliseconds(text: str, option: str) -> int:
    found = values.duration_ms(text)
    if found is None:
        raise values.wrong(f"{option} {text!r}: expected a time such as 90s, 5m or 1d")
    return found
