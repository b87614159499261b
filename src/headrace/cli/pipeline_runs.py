"""``headrace pipeline plan``, ``run``, ``test``, ``backfill``, ``state`` and ``stop``."""

import signal
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
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
)
from headrace.cli.pipeline_options import (
    DEFAULT_WAREHOUSE,
    Archives,
    Master,
    PipelineArgument,
    SparkSettings,
    State,
    StorageOptions,
    Warehouse,
    bad_share,
    require_spark,
    run_settings,
    source_options,
    spark_config,
)

if TYPE_CHECKING:
    from headrace.pipeline.runner.planning import Plan
    from headrace.pipeline.runner.settings import RunSettings
    from headrace.pipeline.runner.streams import Progress

_STOP_WITHIN_S = 120
# With a few rows Spark spends its time on compiling code and on planning stage by stage.
_FOR_EXAMPLES = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.shuffle.partitions": "1",
}

Once = Annotated[bool, typer.Option("--once", help="Process what the topics hold now, and exit.")]
From = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="earliest|latest|TIME",
        help="Keep the tables and start reading here, after a change that does not fit the "
        "checkpoint.",
    ),
]
Reset = Annotated[
    bool,
    typer.Option(
        "--reset",
        help="Delete the tables and checkpoints, and start over, from raw tables and topics.",
    ),
]
BatchRecords = Annotated[
    int | None,
    typer.Option(
        "--batch-records",
        metavar="N",
        min=1,
        help="Maximum number of records per batch. Default: 2,000,000.",
    ),
]
BadMax = Annotated[
    str,
    typer.Option(
        "--bad-max",
        metavar="PERCENT",
        help="Stop if a larger share of the records of a topic would be dead letters, or the rules "
        "of a function would quarantine a larger share of its rows.",
    ),
]
Since = Annotated[
    str | None, typer.Option("--since", metavar="TIME", help="First event time to compute again.")
]
Until = Annotated[
    str | None, typer.Option("--until", metavar="TIME", help="Event time to stop before.")
]


def plan(
    file: PipelineArgument,
    warehouse: Warehouse = DEFAULT_WAREHOUSE,
    state: State = None,
    storage: StorageOptions = None,
    master: Master = "local[*]",
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    settings: ClientSettings = None,
    client_file: ClientFile = None,
    format: OutputFormat = Format.TABLE,
) -> None:
    """Show what a pipeline file would do, and its mistakes. Changes nothing."""
    chosen = _settings(warehouse, storage, state, bootstrap, settings, client_file)
    with _session([file], master) as spark:
        from headrace.pipeline.loading import load
        from headrace.pipeline.runner.planning import make_plan

        made = make_plan(load(file), spark, chosen)
        refusal = _refusal(made, chosen)
    if format is Format.JSON:
        output.document(_plan_document(made) | {"refused": refusal})
    else:
        _print_plan(made)
        if refusal is not None:
            output.line(f"A run would be refused: {refusal}")


def run(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE",
            help="Pipeline files, or names of shipped pipelines: activity, operations, feed, "
            "ranking, security.",
        ),
    ],
    once: Once = False,
    from_: From = None,
    reset: Reset = False,
    batch_records: BatchRecords = None,
    bad_max: BadMax = "5%",
    warehouse: Warehouse = DEFAULT_WAREHOUSE,
    state: State = None,
    storage: StorageOptions = None,
    master: Master = "local[*]",
    archives: Archives = None,
    conf: SparkSettings = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    settings: ClientSettings = None,
    client_file: ClientFile = None,
    format: OutputFormat = Format.TABLE,
) -> None:
    """Run pipeline files together until they are stopped, or once."""
    if from_ is not None and reset:
        raise values.wrong("give --from or --reset, not both")
    start = _start(from_)
    chosen = _settings(warehouse, storage, state, bootstrap, settings, client_file)._replace(
        once=once, start=start, reset=reset, bad_share_max=bad_share(bad_max)
    )
    if batch_records is not None:
        chosen = chosen._replace(batch_records_max=batch_records)
    config = spark_config(master, archives, conf)
    with _session(files, master, config, is_short=once) as spark:
        from headrace.pipeline.runner.run import run as run_files

        with stopped_by_interrupt() as stop:
            for done in run_files(files, spark, chosen, stop):
                if format is Format.JSON:
                    output.line_of_json(done._asdict())
                else:
                    output.line(progress_line(done))


def test(
    file: PipelineArgument, master: Master = "local[*]", format: OutputFormat = Format.TABLE
) -> None:
    """Run the examples of a pipeline file, each on an own broker."""
    failed = count = 0
    with _session([file], master, _FOR_EXAMPLES) as spark:
        from headrace.pipeline.loading import load
        from headrace.pipeline.runner.examples import run_examples

        for outcome in run_examples(load(file), spark, _broker):
            count += 1
            failed += bool(outcome.problems)
            if format is Format.JSON:
                output.line_of_json(outcome._asdict())
                continue
            verdict = "FAILED" if outcome.problems else "ok"
            output.line(f"{verdict} {outcome.example} ({outcome.seconds:.1f} s)")
            for problem in outcome.problems:
                output.line(f"    {problem}")
    if not count:
        output.note(f"{file} has no mistakes and declares no example")
    if failed:
        raise output.CommandFailed(f"{failed} of {values.counted(count, 'example')} failed")


def backfill(
    file: PipelineArgument,
    since: Since = None,
    until: Until = None,
    warehouse: Warehouse = DEFAULT_WAREHOUSE,
    state: State = None,
    storage: StorageOptions = None,
    master: Master = "local[*]",
    archives: Archives = None,
    conf: SparkSettings = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    settings: ClientSettings = None,
    client_file: ClientFile = None,
    format: OutputFormat = Format.TABLE,
) -> None:
    """Compute tables again from raw tables and topics."""
    first, end = _instant(since, "--since"), _instant(until, "--until")
    chosen = _settings(warehouse, storage, state, bootstrap, settings, client_file)
    with _session([file], master, spark_config(master, archives, conf)) as spark:
        from headrace.pipeline.runner.backfill import Span
        from headrace.pipeline.runner.backfill import backfill as compute

        for done in compute(file, spark, chosen, Span(first, end)):
            if format is Format.JSON:
                output.line_of_json(done._asdict())
            elif done.rows is None:
                output.line(f"{done.table}: left as it is: {done.reason}")
            else:
                output.line(f"{done.table}: {values.counted(done.rows, 'row')}")


def state(
    file: PipelineArgument,
    warehouse: Warehouse = DEFAULT_WAREHOUSE,
    state: State = None,
    storage: StorageOptions = None,
    master: Master = "local[*]",
    format: OutputFormat = Format.TABLE,
) -> None:
    """Show the state of the queries: keys, size, and examples."""
    chosen = _settings(warehouse, storage, state, DEFAULT_BOOTSTRAP)
    with _session([], master) as spark:
        from headrace.pipeline.runner.inspection import read_state

        found = read_state(file, spark, chosen)
    if format is Format.JSON:
        output.document([one._asdict() for one in found])
    else:
        output.table(
            ["QUERY", "OPERATOR", "KEYS", "BYTES", "BATCH", "EXAMPLES"],
            [(*one[:-1], _examples(one.examples)) for one in found],
        )


def stop(
    file: PipelineArgument,
    warehouse: Warehouse = DEFAULT_WAREHOUSE,
    state: State = None,
    storage: StorageOptions = None,
) -> None:
    """Stop a running pipeline, and wait until it has stopped."""
    from headrace.cli.pipeline_options import require_tables

    require_tables()
    from headrace.pipeline.runner.directory import PipelineDirectory
    from headrace.pipeline.runner.inspection import pipeline_name

    chosen = _settings(warehouse, storage, state, DEFAULT_BOOTSTRAP)
    name = pipeline_name(file)
    directory = PipelineDirectory(chosen.state(name))
    if not directory.is_running():
        raise output.CommandFailed(f"{name} is not running in the warehouse {chosen.warehouse}")
    directory.ask_to_stop()
    give_up_at = time.monotonic() + _STOP_WITHIN_S
    while directory.is_running():
        if time.monotonic() > give_up_at:
            raise output.CommandFailed(f"{name} did not stop within {_STOP_WITHIN_S} s")
        time.sleep(0.1)
    output.line(f"stopped {name}")


@contextmanager
def stopped_by_interrupt() -> Iterator[threading.Event]:
    """Set by the first Ctrl-C. A second one raises KeyboardInterrupt.

    An exception in the middle of a call to the JVM would leave its connection unusable.
    """
    asked = threading.Event()

    def ask(number: int, frame: Any) -> None:
        if asked.is_set():
            signal.default_int_handler(number, frame)
        asked.set()
        output.note("finishing the batches; press Ctrl-C again to stop at once")

    before = signal.signal(signal.SIGINT, ask)
    try:
        yield asked
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _broker() -> Iterator[str]:
    """The address of an empty broker in this process, for one example."""
    from headrace.cli.demo import Node

    settings = {
        # Examples have any time.
        "log.retention.ms": "-1",
        # One writer is all there is: fifty partitions would only take time to create.
        "transaction.state.log.num.partitions": "1",
    }
    with tempfile.TemporaryDirectory(prefix="headrace-example-") as data:
        node = Node(Path(data), "127.0.0.1:0", settings)
        try:
            yield node.address
        finally:
            node.stop()


# --- shared -------------------------------------------------------------------------------


def _settings(
    warehouse: str,
    storage: list[str] | None,
    state: Path | None,
    bootstrap: str,
    settings: list[str] | None = None,
    client_file: Path | None = None,
) -> "RunSettings":
    source = source_options(bootstrap, settings, client_file)
    require_spark("a pipeline")
    return run_settings(warehouse, storage, state, source)


@contextmanager
def _session(
    files: Sequence[str],
    master: str,
    config: Mapping[str, str] | None = None,
    *,
    is_short: bool = True,
) -> Iterator[Any]:
    """A Spark session, with failures as the command line shows them."""
    require_spark("a pipeline")
    from pyspark.errors import PySparkException

    from headrace.client.errors import ClientError
    from headrace.pipeline.errors import BadPipeline
    from headrace.pipeline.loading import check_syntax
    from headrace.pipeline.runner.session import start_session
    from headrace.spark.failures import BadOption

    try:
        for file in files:
            check_syntax(file)
        with tempfile.TemporaryDirectory(
            prefix="headrace-pipeline-", ignore_cleanup_errors=True
        ) as scratch:
            spark = start_session(
                Path(scratch),
                master=master,
                name="headrace-pipeline",
                config=config,
                is_short=is_short,
            )
            # The command prints what ends a query; Spark would add stack traces.
            spark.sparkContext.setLogLevel("FATAL")
            try:
                yield spark
            finally:
                spark.stop()
    except BadPipeline as bad:
        raise values.wrong(f"{values.counted(len(bad.mistakes), 'mistake')}\n{bad}") from None
    except BadOption as wrong:
        raise values.wrong(str(wrong)) from None
    except (ClientError, PySparkException) as failure:
        raise output.CommandFailed(str(failure)) from None


def _start(text: str | None) -> Mapping[str, str] | None:
    if text is None:
        return None
    if text in ("earliest", "latest"):
        return {"startingOffsets": text}
    at_ms = values.instant_ms(text, round(time.time() * 1000), "--from", "earliest, latest, ")
    return {
        "startingTimestamp": str(at_ms),
        "startingOffsetsByTimestampStrategy": "latest",
    }


def _instant(text: str | None, option: str) -> datetime | None:
    if text is None:
        return None
    at_ms = values.instant_ms(text, round(time.time() * 1000), option)
    return datetime.fromtimestamp(at_ms / 1000, UTC)


def progress_line(done: "Progress") -> str:
    """A batch in one line."""
    told = [f"{name} {count:,}" for name, count in done.written.items() if count]
    counts = {
        "late": done.late,
        "late and dropped": done.dropped_late,
        "dropped by Spark's watermark": done.dropped_by_watermark,
        "dead letters": done.dead_letters,
    }
    told += [f"{count:,} {what}" for what, count in counts.items() if count]
    told += [f"{count:,} break {rule}" for rule, count in done.expectations.items() if count]
    lag = "" if done.lag is None else f", lag {done.lag:,}"
    batch = "before its topics" if done.batch is None else f"batch {done.batch}"
    return (
        f"{done.pipeline}/{done.query} {batch}: {values.counted(done.rows, 'record')} "
        f"in {done.seconds:.1f} s, {done.rows_per_second:,.0f}/s{lag}"
        + (f"; {', '.join(told)}" if told else "")
    )


def _examples(found: Sequence[Mapping[str, Any]]) -> str:
    """The parts of each key."""
    return "; ".join(" ".join(map(str, one["key"].values())) for one in found) or output.ABSENT


def _refusal(made: "Plan", settings: "RunSettings") -> str | None:
    """Why a run would be refused."""
    from headrace.pipeline.errors import RunRefused

    try:
        made.check(settings)
    except RunRefused as refused:
        return str(refused)
    return None


def _plan_document(made: "Plan") -> dict[str, Any]:
    return {
        "pipeline": made.file.name,
        "first_run": made.is_first,
        "requires": made.requires or None,
        "changes": [change._asdict() for change in made.changes],
        "reads": [reading._asdict() for reading in made.readings],
        "queries": [query._asdict() for query in made.queries],
        "columns": {name: entry["columns"] for name, entry in made.declaration["table"].items()},
    }


def _print_plan(made: "Plan") -> None:
    output.heading(f"{made.file.name}: {values.counted(len(made.queries), 'query', 'queries')}")
    output.table(
        ["QUERY", "READS", "PARTITIONS", "PENDING"],
        [(one.query, one.topic, one.partitions, one.pending) for one in made.readings],
    )
    rows = []
    for query in made.queries:
        for name in query.sinks:
            node = made.nodes[name]
            key = node.option("key")
            target = node.declared.topic if node.kind == "topic" else name
            columns = ", ".join(made.schemas[name].fieldNames())
            keys = key if isinstance(key, str) else ", ".join(key)
            rows.append((query.name, node.kind, target, keys, columns))
    output.table(["QUERY", "WRITES", "NAME", "KEY", "COLUMNS"], rows)
    if made.is_first:
        output.line("It has not run in this warehouse yet: all records will be read.")
    elif not made.changes:
        output.line("Nothing changed since the last run.")
    for change in made.changes:
        cure = {"": "compatible", "from": "needs --from or --reset", "reset": "needs --reset"}
        output.line(f"changed: {change.text} ({cure[change.requires]})")
