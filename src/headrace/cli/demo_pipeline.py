"""``headrace demo pipeline``: a day of a website, from its events to tables and a report."""

import contextlib
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli import output
from headrace.cli.demo_live import LiveView, number
from headrace.cli.pipeline_options import require_spark, require_tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.pipeline.warehouse.load import Progress as Loaded

JOBS = ("activity", "feed", "ranking", "security", "operations")
_EVENTS = 500_000
_LIVE_RATE = 500
_LIVE_COMMIT_AGE_S = 10.0
# Of estimates of unique visitors: the standard error of the job's sketches.
_VISITORS_ERROR = "(± 1.6 %)"

# What a person wants to see of the day: a title, a table of the jobs, and a query on it.
_RESULTS = (
    (
        "Pages with the most views",
        "page_days",
        "select page, sum(views) as views, max(visitors) as visitors from page_days "
        "group by page order by views desc, page limit 5",
    ),
    (
        "The feed of one member",
        "feeds",
        "select at, actor, kind, object from (select member, inline(entries) from feeds "
        "where member = (select max_by(member, size(entries)) from feeds)) "
        "order by at desc limit 5",
    ),
    (
        "The best of each category",
        "rankings",
        "select category, item, round(score, 3) as score from rankings where rank = 1 "
        "order by score desc limit 5",
    ),
    (
        "Security incidents",
        "incidents",
        "select kind, client, since, round(score, 1) as score from incidents "
        "order by score desc limit 5",
    ),
    (
        "Alerts of services",
        "service_alerts",
        "select service, kind, state, since from service_alerts where since is not null "
        "order by since desc limit 5",
    ),
)


def demo_pipeline(
    events: Annotated[
        int, typer.Option("--events", metavar="N", help="Number of events of the day.", min=1_000)
    ] = _EVENTS,
    data: Annotated[
        Path | None,
        typer.Option(
            "--data",
            metavar="DIR",
            help="Directory for the log, the tables and the report.",
            show_default="headrace-demo",
        ),
    ] = None,
    live: Annotated[
        bool | None,
        typer.Option(
            "--live/--once",
            help="Continue with live events until Ctrl-C, or exit after the day.",
            show_default="live on a terminal",
        ),
    ] = None,
) -> None:
    """Run the pipeline of a website, from events to a report.

    Requires the extras 'pipeline' and 'report', and Java 17 or newer. The next run in the same
    directory continues with the next day.
    """
    require_tables()
    require_spark("the pipeline")
    from headrace.client.errors import ClientError
    from headrace.testing import Broker

    directory = (data or Path("headrace-demo")).absolute()
    (directory / "log").mkdir(parents=True, exist_ok=True)
    began_at = time.monotonic()
    try:
        with Broker(process=True, data=directory / "log") as broker, _session(directory) as spark:
            run = _Run(spark, broker.bootstrap_servers, directory)
            run.day(events)
            output.line(f"\nDone in {time.monotonic() - began_at:.0f} s.")
            if output.is_terminal() if live is None else live:
                run.go_on_live()
    except ClientError as failure:
        raise output.CommandFailed(str(failure)) from None


@contextlib.contextmanager
def _session(directory: Path) -> "Iterator[SparkSession]":
    from headrace.pipeline.runner.session import start_session

    with tempfile.TemporaryDirectory(
        prefix="headrace-spark-", ignore_cleanup_errors=True
    ) as scratch:
        output.heading("1. Spark starts, beside a Headrace broker")
        output.line(f"   Log, tables and report are in {directory}")
        spark = start_session(Path(scratch), master="local[2]", name="headrace-demo")
        # PySpark's own handler calls Spark first, in the middle of any other call.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        # The command prints what ends a query; Spark would add stack traces.
        spark.sparkContext.setLogLevel("FATAL")
        try:
            yield spark
        finally:
            spark.stop()


class _Run:
    """The steps of the demo, on one broker and one Spark session."""

    def __init__(self, spark: "SparkSession", bootstrap: str, directory: Path) -> None:
        self._spark = spark
        self._bootstrap = bootstrap
        self._warehouse = directory / "warehouse"
        self._directory = directory
        self._source = {"kafka.bootstrap.servers": bootstrap}

    def day(self, events: int) -> None:
        day = self._next_day()
        self._generate(day, events)
        self._load()
        self._run_jobs()
        self._show_results()
        self._audit()
        self._report(day)

    def _next_day(self) -> date:
        """A day of last week, or the one after the last that an earlier run made."""
        today = datetime.now(UTC).date()
        made = [path.stem.removeprefix("daily-") for path in self._directory.glob("daily-*.html")]
        if not made:
            return today - timedelta(days=7)
        day = date.fromisoformat(max(made)) + timedelta(days=1)
        if day >= today:
            raise output.CommandFailed(
                f"{self._directory} has the days up to {max(made)}. Remove it, or choose another "
                "directory with --data, to start again"
            )
        return day

    def _generate(self, day: date, events: int) -> None:
        from headrace.pipeline.generate.sending import generate_day

        output.heading(f"\n2. A website's {day:%A, %B %-d}: visits, posts, votes, requests, bots")
        began_at = time.monotonic()
        done = generate_day(
            self._bootstrap,
            day,
            events=events,
            seed=day.toordinal(),
            progress=lambda sent: output.progress(f"   sent {sent:,} of {events:,} events"),
        )
        output.progress_over()
        took = time.monotonic() - began_at
        output.line(
            f"   {done.sent:,} events to {len(done.topics)} topics in {took:.1f} s, "
            f"{done.sent / took:,.0f} per second"
        )

    def _load(self) -> None:
        from headrace.pipeline.raw import load_events

        output.heading("\n3. Topics into Delta tables, rows and offsets in one commit")
        rows: Counter[str] = Counter()

        def report(topic: str, batch: "Loaded") -> None:
            rows["rows"] += batch.row_count
            rows["dead letters"] += batch.letter_count
            output.progress(f"   loaded {topic}")

        began_at = time.monotonic()
        load_events(self._spark, self._source, self._warehouse, report)
        output.progress_over()
        output.line(
            f"   {rows['rows']:,} rows and {rows['dead letters']:,} dead letters in "
            f"{time.monotonic() - began_at:.1f} s"
        )

    def _run_jobs(self) -> None:
        from headrace.pipeline.runner.run import run_once

        output.heading("\n4. Five jobs on Spark, each exactly once")
        began_at = time.monotonic()
        read: Counter[str] = Counter()
        written: Counter[str] = Counter()
        for batch in run_once(JOBS, self._spark, self._settings()):
            read[batch.pipeline] += batch.rows
            written[batch.pipeline] += sum(batch.written.values())
            output.progress(f"   {batch.pipeline}: {read[batch.pipeline]:,} events")
        output.progress_over()
        for job in JOBS:
            output.line(f"   {job:<11} {read[job]:>9,} events → {written[job]:>9,} rows")
        output.line(f"   {time.monotonic() - began_at:.0f} s")

    def _settings(self) -> Any:
        from headrace.pipeline.runner.settings import RunSettings

        return RunSettings(self._warehouse, self._source)

    def _show_results(self) -> None:
        from headrace.pipeline.runner.inspection import read_status
        from headrace.pipeline.sql import SqlSettings, find_views, make_frame

        views = find_views(self._warehouse, ())
        for title, table, query in _RESULTS:
            output.heading(f"\n   {title}")
            if table not in views:  # a short day may have none
                output.line("   none")
                continue
            frame = make_frame(
                self._spark, query, views, SqlSettings(self._warehouse, self._source)
            )
            rows = [
                [_text(*cell) for cell in zip(frame.columns, row, strict=True)]
                for row in frame.collect()
            ]
            _lines([frame.columns, *rows] if rows else [["none"]])
        output.heading("\n   The lag of each query, by its consumer group")
        found = [one for job in JOBS for one in read_status(job, self._settings()).queries]
        _lines([["group", "lag"], *([one.group, number(one.lag)] for one in found)])

    def _audit(self) -> None:
        from headrace.client.cluster import ClientSettings
        from headrace.pipeline.quality.audit import audit, keep
        from headrace.pipeline.quality.balance import totals
        from headrace.spark.cluster import Cluster

        output.heading("\n5. The audit: what each tier should hold, and what it holds")
        with contextlib.closing(Cluster(ClientSettings(self._bootstrap))) as cluster:
            found = audit(cluster, self._warehouse).balances
        keep(found, self._warehouse, time.time_ns() // 1_000_000)
        sums: dict[str, list[int]] = {}
        for total in totals(found):
            tier = sums.setdefault(str(total.tier), [0, 0, 0, 0])
            for index, value in enumerate(total[4:]):
                tier[index] += value
        rows = [[tier, *(f"{value:,}" for value in values)] for tier, values in sums.items()]
        _lines([["tier", "expected", "found", "missing", "surplus"], *rows])

    def _report(self, day: date) -> None:
        from headrace.cli.report import daily

        output.heading("\n6. The report of the day, with exact visitors from the raw events")
        daily(str(day), self._warehouse, self._directory / f"daily-{day}.html")

    # --- live ------------------------------------------------------------------------------

    def go_on_live(self) -> None:
        """Events at a steady rate through the load and all jobs, until Ctrl-C."""
        from headrace.cli.pipeline_runs import stopped_by_interrupt
        from headrace.client.cluster import ClientSettings
        from headrace.pipeline.generate.sending import generate_live
        from headrace.pipeline.raw import keep_events_loaded
        from headrace.pipeline.runner.run import run
        from headrace.spark.cluster import Cluster

        output.heading(f"\n7. Live: {_LIVE_RATE} events per second, until Ctrl-C")
        output.line(f"   headrace sql 'select * from alerts' --live -b {self._bootstrap}")
        with (
            contextlib.closing(Cluster(ClientSettings(self._bootstrap))) as cluster,
            stopped_by_interrupt() as stop,
            ThreadPoolExecutor(2) as pool,
        ):
            view = LiveView(cluster, self._warehouse)
            given = self._spark, self._source, self._warehouse, _LIVE_COMMIT_AGE_S, view.loaded
            beside: list[Future[Any]] = [
                pool.submit(generate_live, self._bootstrap, _LIVE_RATE, stop, progress=view.sent),
                pool.submit(keep_events_loaded, *given, stop),
            ]
            try:
                for batch in run(JOBS, self._spark, self._settings(), stop):
                    view.ran(batch)
                    for task in beside:
                        if task.done():
                            task.result()
            finally:
                stop.set()
            for task in beside:
                task.result()


def _text(column: str, value: Any) -> str:
    if column == "visitors":
        return f"≈ {value:,} {_VISITORS_ERROR}"
    return f"{value:,}" if column == "views" else str(value)


def _lines(rows: list[list[str]]) -> None:
    for line in output.aligned(rows):
        output.line(f"   {line}")
