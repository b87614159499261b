"""The streaming queries of a run: one per trigger and set of inputs, each with its own pool."""

import contextlib
import json
import logging
import threading
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.model.audit import reader_name
from headrace.model.dead_letters import retry_topic
from headrace.model.ids import TopicPartition
from headrace.pipeline.errors import broken_file, python_error
from headrace.pipeline.graph import Query
from headrace.pipeline.runner.claim import ClaimCheck
from headrace.pipeline.runner.fanout import Contents, Fanout, Written
from headrace.pipeline.runner.planning import Plan
from headrace.pipeline.runner.records import arrived, deduplicated
from headrace.pipeline.runner.session import pool_of
from headrace.pipeline.runner.settings import RunSettings
from headrace.pipeline.tables import BatchName
from headrace.pipeline.warehouse.storage import for_spark, location_of
from headrace.spark.cluster import LATEST
from headrace.spark.failures import PipelineError
from headrace.spark.stream_offset import OURS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger("headrace.pipeline")

_STATE_STORE = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
_TASK_RECORDS_MIN = 5_000
_LOOK_EVERY_S = 0.05
_INITIALIZING = "Initializing"  # in Spark's words: StreamExecution, then sources
_NO_ANSWER = "Python worker failed to connect back"
_START_TRIES = 5
_FINISH_WITHIN_S = 60.0  # the batch of a query that is stopped
_FOLD_EVERY = 10  # batches; the first look is at the start of a run


class Progress(NamedTuple):
    """One finished batch of a query."""

    pipeline: str
    query: str
    batch: int | None  # None: what only the raw tables had, before the stream starts over
    rows: int  # read
    rows_per_second: float
    seconds: float
    lag: int | None  # records that the topics held beyond the batch; None: unknown
    late: int
    dropped_late: int  # late, where the file says so
    dropped_by_watermark: int  # by Spark: more than the lateness behind other partitions
    dead_letters: int
    expectations: Mapping[str, int]  # rows that broke a rule, by function and rule
    written: Mapping[str, int]  # rows by table or topic function


def prepared(spark: "SparkSession") -> "SparkSession":
    """A session for queries, with the settings that they need. Views and settings are its own."""
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", "UTC")
    session.conf.set(
        "spark.sql.shuffle.partitions", spark.conf.get("spark.sql.shuffle.partitions") or "2"
    )
    session.conf.set("spark.sql.streaming.stateStore.providerClass", _STATE_STORE)
    # Sorting a stream is refused, because most users would expect more of it than sorted batches.
    session.conf.set("spark.sql.streaming.unsupportedOperationCheck", "false")
    # A batch without records would only clean up state, and costs as much as any other.
    session.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", "false")
    # Most batches are small, and planning them takes longer than computing them. Planning stage by
    # stage costs more than it saves, and so does a job that lists the files of a table.
    session.conf.set("spark.sql.adaptive.enabled", "false")
    session.conf.set("spark.sql.sources.parallelPartitionDiscovery.threshold", "10000")
    return session


class Stream:
    """One running query."""

    def __init__(
        self,
        plan: Plan,
        query: Query,
        spark: "SparkSession",
        settings: RunSettings,
        begins: Mapping[TopicPartition, int] | None = None,
    ) -> None:
        """``begins`` are the offsets at which a query that starts over reads its topics."""
        self._begins = begins
        self._plan = plan
        self._query = query
        self._settings = settings
        self._id = plan.directory.ensure_query_id(query.name)
        self._fanout = Fanout(
            plan.file.name,
            plan.nodes,
            query,
            plan.schemas,
            settings,
            counted=plan.counted(query),
        )
        self._claim: ClaimCheck | None = None
        if settings.claim is not None:
            self._claim = ClaimCheck(location_of(settings.warehouse), settings.claim)
        self._retry_topic = retry_topic(plan.file.name)
        self._foreign = [name for name in query.inputs if name not in query.tables]
        self._written: dict[int, Written] = {}
        self._told = -1
        self._batches = 0
        self.failure: BaseException | None = None
        self._finishing = threading.Event()
        self._left_batch = False  # ended the query before a batch that Spark had started
        self._spark = spark
        self._running: Any = self._start(spark)

    @property
    def id(self) -> str:
        return self._id

    @property
    def group(self) -> str:
        return group_of(self._plan.file.name, self._query.name)

    def _start(self, spark: "SparkSession") -> Any:
        reader = spark.readStream.format("headrace")
        options = {
            **self._settings.source,
            **self._starting(),
            "subscribe": ",".join([*self._topics, self._retry_topic]),
            "includeHeaders": "true",
            "maxOffsetsPerTrigger": str(self._settings.batch_records_max),
            # A task of its own for a partition with few records costs more than reading them.
            "minRecordsPerTask": str(_TASK_RECORDS_MIN),
            # A partition that is ahead would move the watermark past records of the others.
            "limitBy": "timestamp",
            "kafka.group.id": self.group,
            "kafka.isolation.level": "read_committed",
            "query.checkpoint": str(self._plan.directory.checkpoint(self._query.name)),
            "query.audit": reader_name(self._plan.file.name, self._query.name, self._id),
        }
        for name, value in options.items():
            reader = reader.option(name, value)
        rows = deduplicated(arrived(reader.load()), self._fanout.sources)
        trigger: dict[str, Any] = {"processingTime": f"{self._query.trigger_ms} milliseconds"}
        if self._settings.once:
            trigger = {"availableNow": True}
        spark.sparkContext.setLocalProperty("spark.scheduler.pool", pool_of(self._query.trigger_ms))
        return (
            rows.writeStream.queryName(self.group)
            .foreachBatch(self._land)
            .option(
                "checkpointLocation", for_spark(self._plan.directory.checkpoint(self._query.name))
            )
            .trigger(**trigger)
            .start()
        )

    @property
    def _topics(self) -> list[str]:
        return [source.topic for source in self._fanout.sources]

    def _starting(self) -> Mapping[str, str]:
        """Where a new query starts. One that starts over reads the records of retries again."""
        if self._settings.start is not None:
            return self._settings.start
        if self._begins is None:
            return {"startingOffsets": "earliest"}
        first: dict[str, dict[str, int]] = {}
        for place, offset in self._begins.items():
            first.setdefault(place.topic, {})[str(place.partition)] = offset
        retries = dict.fromkeys(map(str, range(self._settings.retry_partitions)), LATEST)
        return {"startingOffsets": json.dumps({**first, self._retry_topic: retries})}

    def _contents(self, number: int) -> Contents:
        ends = self._plan.directory.offsets(self._query.name, number)
        ours = ends[OURS]
        before = ours.get("start")
        if before is None and number:
            before = self._plan.directory.offsets(self._query.name, number - 1)
        retries = self._retry_topic
        has_retries = ends.get(retries, {}) != (before or {}).get(retries, {})
        places = {
            TopicPartition(topic, int(partition)): offset
            for (topic, partition), offset in _offsets(ends).items()
        }
        ids = {topic: ours["ids"].get(topic, "") for topic in self._topics}
        first = _offsets(before or {})
        count = None
        if first:
            count = sum(end - first.get(place, 0) for place, end in _offsets(ends).items())
        return Contents(ids, has_retries, places, count)

    def _land(self, records: "DataFrame", number: int) -> None:
        if self._finishing.is_set():
            # Nothing of this batch is written, and Spark does not record it: the next run has it.
            self._left_batch = True
            raise PipelineError(f"query {self.group} was asked to stop")
        try:
            if self._claim is not None:
                self._claim.check()
            if self._batches % _FOLD_EVERY == 0:
                self._fanout.fold(records.sparkSession)
            self._batches += 1
            pins = self._fanout.versions(self._foreign)
            if pins:
                pins = self._plan.directory.pinned(self._query.name, number, pins)
            self._written[number] = self._fanout.run(
                records, BatchName(self._id, number), pins, self._contents(number)
            )
        except BaseException as failed:
            self.failure = failed
            raise

    # --- what happened -------------------------------------------------------------------------

    @property
    def has_finished_a_batch(self) -> bool:
        """In this run: no batch of an earlier one has to run again."""
        return self._told >= 0

    def is_active(self) -> bool:
        return bool(self._running.isActive)

    def wait_until_started(self) -> None:
        """Return when the query has its source, or has ended.

        The process of a source must answer Spark within ten seconds. On a busy machine it may not,
        even if one query is started at a time. Nothing has happened then, and it is started again.
        """
        for _ in range(_START_TRIES):
            while self.is_active() and self._is_initializing():
                time.sleep(_LOOK_EVERY_S)
            failed = None if self.is_active() else self._running.exception()
            if failed is None or _NO_ANSWER not in str(failed):
                return
            log.warning("The source of query %s did not start in time; trying again", self.group)
            self._running = self._start(self._spark)

    def _is_initializing(self) -> bool:
        return str(self._running.status["message"]).startswith(_INITIALIZING)

    def finish(self) -> None:
        """Ask the query to end after the batch that it writes now. ``end_if_idle`` ends it."""
        self._finishing.set()

    def end_if_idle(self) -> None:
        """End a query that was asked to, if it waits for its trigger.

        Spark would interrupt a batch, and print how that failed.
        """
        is_asked = self._finishing.is_set() and self.is_active()
        if is_asked and not self._running.status["isTriggerActive"]:
            self._stop_now()

    def stop(self) -> None:
        """Wait for the batch that the query writes now, and end it."""
        self.finish()
        give_up_at = time.monotonic() + _FINISH_WITHIN_S
        while self.is_active() and time.monotonic() < give_up_at:
            self.end_if_idle()
            time.sleep(_LOOK_EVERY_S)
        self._stop_now()

    def _stop_now(self) -> None:
        # A query that ended with an error raises it here again.
        from pyspark.errors import PySparkException

        with contextlib.suppress(PySparkException):
            self._running.stop()

    def check(self) -> None:
        """Raises what ended the query, if anything did."""
        failed = self._running.exception()
        if failed is None or self._left_batch:
            return
        if isinstance(self.failure, PipelineError):
            raise self.failure
        broken = broken_file(str(self.failure or failed))
        if broken is not None:
            raise broken from failed
        if self.failure is not None:
            text = python_error(str(self.failure))
            raise PipelineError(f"query {self.group}: {text}") from failed
        raise PipelineError(f"query {self.group}: {python_error(str(failed))}") from failed

    def progress(self) -> Iterator[Progress]:
        """The batches that finished since the last call."""
        for number, told in sorted(self._finished().items()):
            self._told = number
            yield self._progress(told, number, self._written.pop(number))

    def _finished(self) -> dict[int, Any]:
        """What Spark tells of the batches that finished since the last call.

        Spark keeps what it told of the last hundred. To ask for all of them would cost more than a
        small batch.
        """
        found: dict[int, Any] = {}
        if not self._written:
            return found
        recent = self._running._jsq.recentProgress()
        for place in reversed(range(len(recent))):
            told = json.loads(recent[place].json())
            number = int(told["batchId"])
            if number <= self._told:
                break
            # While a query waits for records, Spark tells of the batch that will be next.
            if number in self._written and "addBatch" in told["durationMs"]:
                found[number] = told
        return found

    def _progress(self, told: Any, number: int, written: Written) -> Progress:
        seconds = told["durationMs"].get("triggerExecution", 0) / 1000
        rows = int(told["numInputRows"])
        return Progress(
            self._plan.file.name,
            self._query.name,
            number,
            rows,
            rows / seconds if seconds else 0.0,
            seconds,
            _lag(told["sources"][0]),
            written.late,
            written.dropped,
            sum(int(one["numRowsDroppedByWatermark"]) for one in told["stateOperators"]),
            written.dead_letters,
            written.expectations,
            written.written,
        )


def group_of(pipeline: str, query: str) -> str:
    """The consumer group that shows the lag of a query."""
    return f"headrace-{pipeline}-{query}"


def _lag(source: Any) -> int | None:
    """Records beyond the batch; None if the source did not tell where the topics end."""
    done, newest = (_offsets(source[name]) for name in ("endOffset", "latestOffset"))
    if not newest:
        return None
    return sum(max(0, end - done.get(place, end)) for place, end in newest.items())


def _offsets(told: Any) -> dict[tuple[str, str], int]:
    found = (json.loads(told) if isinstance(told, str) else told) or {}
    return {
        (topic, partition): offset
        for topic, partitions in found.items()
        if not topic.startswith("#")
        for partition, offset in partitions.items()
    }
