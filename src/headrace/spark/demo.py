"""The demo: a Spark job that counts page views in a table and writes the busiest pages back.

It works like a user's job. Generated page views are produced to a topic, and a Spark stream reads
them as typed values. ``foreachBatch`` appends the counts per page and minute to a Delta table,
with the batch ID in the same commit, and writes the busiest pages of the batch to another topic,
exactly once. Each batch counts once, even if the demo is killed and run again.
"""

import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.client.cluster import ClientSettings
from headrace.model.ids import TopicPartition
from headrace.spark.cluster import LATEST, Cluster
from headrace.spark.failures import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

VIEWS, BUSIEST = "page-views", "busiest-pages"
VIEW_COUNT = 200_000
_SEED = 20_261_115
_PAGE_COUNT = 400
_MINUTES = 30
_FIRST_VIEW_MS = 1_795_000_000_000
_PARTITIONS = 4
GROUP = "headrace-demo"
_BATCH_VIEWS = 60_000
_TOP = 10
_STREAM_WITHIN_S = 300
_JAVA_MIN = 17
_JAVA_VARIABLES = ("JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS")

# Hides the JVM's log messages from the demo's output. Spark's shells set their own level.
_ERRORS_ONLY = """\
rootLogger.level = error
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
logger.shell.name = org.apache.spark.api.python.PythonGatewayServer
logger.shell.level = error
"""

Say = Callable[[str], None]


class Outcome(NamedTuple):
    top_pages: list[tuple[str, int]]
    table: Path
    views_counted: int
    busiest_sent: int
    lag: int
    seconds: float


def why_not() -> str | None:
    """What the demo lacks, and how to install it; None if it can run."""
    try:
        import deltalake  # noqa: F401
        import pyspark  # noqa: F401
    except ImportError as missing:
        return (
            f"{missing.name} is not installed. Install the extra `pipeline`: `make setup` in a "
            "clone, or pip install 'headrace[pipeline]'"
        )
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    advice = (
        f"Spark requires Java {_JAVA_MIN} or newer: apt install openjdk-17-jre-headless, "
        "brew install openjdk@17, or any other full runtime, with JAVA_HOME set to its directory"
    )
    if java is None:
        return f"Java is not installed. {advice}"
    try:
        told = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60)
    except OSError as broken:
        return f"Java cannot be started ({broken}). {advice}"
    version = _java_version(told.stderr)
    if version is None or version < _JAVA_MIN:
        return f"Java at {java} is too old or incomplete. {advice}"
    return None


def _java_version(text: str) -> int | None:
    quoted = text.partition('"')[2].partition('"')[0].split(".")
    number = quoted[1] if quoted[0] == "1" and len(quoted) > 1 else quoted[0]
    return int(number) if number.isdecimal() else None


def run(bootstrap: str, directory: Path, say: Say, view_count: int = VIEW_COUNT) -> Outcome:
    """Run the whole demo against a running broker; ``say`` gets lines of progress.

    Raises ClientError if anything fails, Spark included.
    """
    from pyspark.errors import PySparkException

    began_at = time.monotonic()
    cluster = Cluster(ClientSettings(bootstrap))
    try:
        produce_views(cluster, view_count, say)
        say("starting Spark (a JVM, about ten seconds)")
        spark = start_spark(directory)
        try:
            table = directory / "page-views-per-minute"
            _stream(spark, bootstrap, table, directory / "checkpoint", view_count, say)
        finally:
            spark.stop()
        counts = read_counts(table)
        return Outcome(
            counts.most_common(_TOP),
            table,
            sum(counts.values()),
            _record_count(cluster, BUSIEST),
            _lag(cluster),
            time.monotonic() - began_at,
        )
    except PySparkException as failure:
        raise PipelineError(str(failure)) from failure
    finally:
        cluster.close()


# --- views ----------------------------------------------------------------------------------------


def produce_views(cluster: Cluster, view_count: int, say: Say) -> None:
    """Produce the same views on every run: a few pages have many views, most have few."""
    import numpy as np
    import pyarrow as pa

    from headrace.arrow.encoding import Outgoing, encode
    from headrace.arrow.partitioning import partitions_by_key
    from headrace.records.batch import LZ4
    from headrace.spark.producing import BatchSender, new_identity

    for topic, partitions in ((VIEWS, _PARTITIONS), (BUSIEST, 1)):
        cluster.create_topic(topic, partitions, {})
    dice = random.Random(_SEED)
    weights = [1 / (rank + 3) for rank in range(_PAGE_COUNT)]
    pages = dice.choices(range(_PAGE_COUNT), weights, k=view_count)
    sender = BatchSender(cluster, new_identity(cluster))
    step = 50_000
    for first in range(0, view_count, step):
        views = [
            json.dumps(
                {
                    "user": dice.randrange(20_000),
                    "page": f"/page/{page}",
                    "at": _FIRST_VIEW_MS + (first + n) * _MINUTES * 60_000 // view_count,
                }
            ).encode()
            for n, page in enumerate(pages[first : first + step])
        ]
        keys = pa.array([f"/page/{page}".encode() for page in pages[first : first + step]])
        rows = Outgoing(
            [VIEWS],
            np.zeros(len(views), dtype=np.int64),
            partitions_by_key(keys, _PARTITIONS),
            keys,
            pa.array(views, pa.binary()),
            None,
        )
        sender.send(
            encode(
                rows,
                codec=LZ4,
                batch_size=500_000,
                row_size_max=1 << 20,
                now_ms=int(time.time() * 1000),
                first_row=first,
            )
        )
        say(f"produced {first + len(views):,} of {view_count:,} page views to {VIEWS!r}")
    sender.flush()


# --- the stream -----------------------------------------------------------------------------------


def _chooses_collector() -> bool:
    """Whether the environment chooses a collector for every JVM, which takes one at most."""
    given = " ".join(os.environ.get(name, "") for name in _JAVA_VARIABLES)
    return re.search(r"-XX:\+Use\w+GC\b", given) is not None


def start_spark(
    directory: Path,
    *,
    master: str = "local[2]",
    name: str = "headrace-demo",
    config: Mapping[str, str] | None = None,
    is_short: bool = True,
) -> "SparkSession":
    """A session that prints only errors; ``directory`` holds its files."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    if master.startswith("local") or "PYSPARK_PYTHON" not in os.environ:
        # The executors of a cluster may have another Python.
        os.environ["PYSPARK_PYTHON"] = sys.executable
    directory.mkdir(parents=True, exist_ok=True)
    quiet = directory / "log4j2.properties"
    quiet.write_text(_ERRORS_ONLY)
    # Spark compiles code for every query. Once the JVM's cache is full, it interprets the rest.
    java_options = f"-Dlog4j2.configurationFile={quiet.as_uri()} -XX:ReservedCodeCacheSize=256m"
    # Many small batches leave much garbage, and the default collector marks it beside them: with
    # five jobs on two cores this took a tenth of each.
    if not _chooses_collector():
        java_options += " -XX:+UseParallelGC"
    if is_short:
        # The job ends before the JVM's optimizing compiler pays off.
        java_options += " -XX:TieredStopAtLevel=1"
    else:
        # Spark's code is much, and most of it runs seldom: the optimizing compiler would take a
        # third of a core for minutes. So it is left to code that is ten times as hot as usual.
        java_options += (
            " -XX:Tier4InvocationThreshold=50000 -XX:Tier4MinInvocationThreshold=6000"
            " -XX:Tier4CompileThreshold=150000 -XX:Tier4BackEdgeThreshold=400000"
        )
    # Java ignores TMPDIR; files that a killed JVM leaves belong in the same directory as ours.
    java_options += f' "-Djava.io.tmpdir={tempfile.gettempdir()}"'
    builder = (
        SparkSession.builder.master(master)
        .appName(name)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.extraJavaOptions", java_options)
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(directory / "warehouse"))
    )
    for setting, value in (config or {}).items():
        builder = builder.config(setting, value)
    return builder.getOrCreate()


def _stream(
    spark: "SparkSession",
    bootstrap: str,
    table: Path,
    checkpoint: Path,
    view_count: int,
    say: Say,
) -> None:
    views = (
        spark.readStream.format("headrace")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", VIEWS)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", _BATCH_VIEWS)
        .option("kafka.group.id", GROUP)
        .option("value.format", "json")
        .option("value.bad", "fail")
        .schema("value STRUCT<page: STRING, at: BIGINT>")
        .load()
    )
    done = 0
    # Batches are numbered per checkpoint: a new checkpoint starts at 0 again, and its batches
    # must not be taken for those of an earlier demo on the same broker.
    application = _application_id(checkpoint.parent)

    def land(batch: "DataFrame", batch_id: int) -> None:
        nonlocal done
        counts = views_per_minute(batch).toArrow()
        append_once(table, counts, application, batch_id)
        busiest = spark.createDataFrame(busiest_pages(counts, batch_id), "key STRING, value STRING")
        (
            busiest.coalesce(1).write.format("headrace")
            .mode("append")
            .option("kafka.bootstrap.servers", bootstrap)
            .option("topic", BUSIEST)
            .option("delivery", "exactly-once")
            .option("delivery.id", application)
            .option("delivery.batch", batch_id)
            .save()
        )  # fmt: skip
        done += sum(counts.column("views").to_pylist())
        say(f"batch {batch_id}: {done:,} of {view_count:,} views counted")

    query = (
        views.writeStream.foreachBatch(land)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    if not query.awaitTermination(_STREAM_WITHIN_S):
        query.stop()
        raise PipelineError(f"the stream did not end within {_STREAM_WITHIN_S} s")


def _application_id(directory: Path) -> str:
    kept = directory / "application-id"
    if not kept.exists():
        kept.write_text(f"{GROUP}-{uuid.uuid4()}")
    return kept.read_text()


def views_per_minute(views: "DataFrame") -> "DataFrame":
    """The views of each page in each minute of event time."""
    from pyspark.sql import functions as F

    return views.groupBy(
        F.col("value.page").alias("page"),
        F.date_trunc("minute", F.timestamp_millis("value.at")).alias("minute"),
    ).agg(F.count("*").alias("views"))


def busiest_pages(counts: Any, batch_id: int) -> list[tuple[str, str]]:
    """The pages of one batch with the most views, each with a line of JSON."""
    total: Counter[str] = Counter()
    for page, views in zip(*(counts.column(n).to_pylist() for n in ("page", "views")), strict=True):
        total[page] += views
    return [
        (page, json.dumps({"page": page, "views": views, "batch": batch_id}))
        for page, views in total.most_common(_TOP)
    ]


def append_once(table: Path, rows: Any, application: str, batch_id: int) -> None:
    """Append unless the table holds this batch already; batch ID and rows are one commit."""
    from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

    target: DeltaTable | str = str(table)
    if DeltaTable.is_deltatable(str(table)):
        target = DeltaTable(str(table))
        done = target.transaction_version(application)
        if done is not None and done >= batch_id:
            return
    write_deltalake(
        target,
        rows,
        mode="append",
        commit_properties=CommitProperties(app_transactions=[Transaction(application, batch_id)]),
    )


# --- results --------------------------------------------------------------------------------------


def read_counts(table: Path) -> "Counter[str]":
    """Views per page, over all minutes and batches."""
    from deltalake import DeltaTable

    found: Counter[str] = Counter()
    rows = DeltaTable(str(table)).to_pyarrow_table(columns=["page", "views"])
    for page, views in zip(*(rows.column(n).to_pylist() for n in ("page", "views")), strict=True):
        found[page] += views
    return found


def _lag(cluster: Cluster) -> int:
    """The lag of the query's consumer group."""
    committed = cluster.committed_offsets(GROUP)
    places = [TopicPartition(VIEWS, partition) for partition in range(_PARTITIONS)]
    ends = cluster.list_offsets(dict.fromkeys(places, LATEST), read_committed=False)
    return sum(end - committed.get(place, 0) for place, end in ends.items())


def _record_count(cluster: Cluster, topic: str) -> int:
    """Committed records of a topic with one partition."""
    from headrace.spark.fetching import RangeReader
    from headrace.spark.offsets import Range
    from headrace.spark.options import FetchSettings

    place = TopicPartition(topic, 0)
    end = cluster.list_offsets({place: LATEST}, read_committed=True)[place]
    reader = RangeReader(
        cluster, Range(place, 0, end), cluster.topic(topic).topic_id, FetchSettings(True)
    )
    return sum(records.size for records in reader)
