"""The warehouse load: a loop of Spark batches, planned from the offsets that the table records.

There is no streaming query and no checkpoint. A load that is killed anywhere, or started twice,
continues from the table; two loads of one table at once share the work without doubling a row.
"""

import logging
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from headrace.model.ids import TopicPartition
from headrace.pipeline.errors import CommitRefused, LoadStopped, SchemaRefused
from headrace.pipeline.warehouse.bad_share import BadShare
from headrace.pipeline.warehouse.batch import Batch, NewFile
from headrace.pipeline.warehouse.compaction import Compacted, compact_closed
from headrace.pipeline.warehouse.conditional_puts import check_conditional_puts
from headrace.pipeline.warehouse.files import PartitionedFiles, unique_name
from headrace.pipeline.warehouse.letter_topic import send_letters
from headrace.pipeline.warehouse.load_counts import LoadCounts
from headrace.pipeline.warehouse.offsets import Bounds, Decision, Span, lost_span, pending_span
from headrace.pipeline.warehouse.planning import (
    BYTES_PER_RECORD_GUESS,
    is_due,
    next_batch,
    plan_tasks,
)
from headrace.pipeline.warehouse.reload import (
    OtherRows,
    files_with_other_rows,
    files_with_rows,
    in_tasks,
    span_to_reload,
)
from headrace.pipeline.warehouse.rows import DEAD_LETTER_SCHEMA, EventTime, RowSettings, lost_letter
from headrace.pipeline.warehouse.schema import compare, fields_of
from headrace.pipeline.warehouse.settings import LoadSettings, value_columns
from headrace.pipeline.warehouse.storage import location_of
from headrace.pipeline.warehouse.table import delta_json, now_ms, open_or_create
from headrace.pipeline.warehouse.tasks import DEAD_LETTERS, Job, TaskResult
from headrace.spark.cluster import EARLIEST, LATEST, NO_TOPIC_ID, Cluster
from headrace.spark.failures import PipelineError
from headrace.spark.fetching import LOSS_CONFIRMED_AFTER_S
from headrace.spark.subscription import places_of

log = logging.getLogger("headrace.pipeline")

# Attempts of a reload, if other loads and rewrites change the table. Each reads everything again.
_RELOAD_TRIES = 20
# Time between two searches for files to join; listing them costs time on a large table.
_JOIN_FILES_EVERY_S = 60.0


class Progress(NamedTuple):
    """One finished batch."""

    decision: Decision
    spans: tuple[Span, ...]
    row_count: int
    letter_count: int
    file_count: int
    bytes_written: int
    seconds: float


class _Log(NamedTuple):
    """The log of one partition, as the cluster shows it."""

    place: TopicPartition
    topic_id: bytes
    bounds: Bounds


Report = Callable[[Progress], None]


class Load:
    """Loads topics into one table. Close it after use."""

    def __init__(self, spark: Any, settings: LoadSettings) -> None:
        self._spark = spark
        self._settings = settings
        self._location = location_of(settings.table)
        self._source = settings.source_options()
        self._columns = value_columns(settings, self._source)
        self._cluster = Cluster(self._source.client)
        self._audit = LoadCounts(self._cluster, self._location)
        self._bytes_per_record = BYTES_PER_RECORD_GUESS
        self._join_files_at = 0.0
        self._bad_share = BadShare(settings.bad_share_max)
        check_conditional_puts(self._location)
        self._table = open_or_create(
            self._location, self._row_settings(0).table_schema, settings.partition_by
        )

    def close(self) -> None:
        self._cluster.close()

    def once(self, report: Report) -> None:
        """Load what the topics hold now, in as many commits as its size needs."""
        ends: dict[str, int] | None = None
        while True:
            logs = self._logs()
            if ends is None:
                ends = {_txn_id(one): one.bounds.latest for one in logs}
            pending = [
                span._replace(offset_end=min(span.offset_end, ends[span.txn_id]))
                for span in self._pending(logs)
                if span.first_offset < ends.get(span.txn_id, 0)
            ]
            if not pending:
                return
            self._load_or_plan_again(pending, report)

    def keep_loading(self, report: Report, wait: Callable[[float], bool]) -> None:
        """Load until ``wait``, which sleeps for the given seconds, returns True."""
        limits = self._settings.limits
        committed_at = (
            time.monotonic() - limits.batch_age_s
        )  # what the topics hold has waited long enough
        while True:
            pending = self._pending(self._logs())
            waited_s = time.monotonic() - committed_at
            if is_due(pending, waited_s, self._bytes_per_record, limits):
                self._load_or_plan_again(pending, report)
                committed_at = time.monotonic()
                pause_s = 0.0
            else:
                pause_s = min(1.0, limits.batch_age_s)
            self._join_files()
            if wait(pause_s):
                return

    def _join_files(self) -> None:
        """Join files of a date that is over: one group at a time, between two batches."""
        if time.monotonic() < self._join_files_at:
            return
        try:
            done = compact_closed(self._table)
        except PipelineError as failure:
            log.warning("Could not join files of %s: %s", self._location, failure)
            done = Compacted(0, 0, 0)
        if done.removed:
            log.info("Joined %d files of %s into %d", done.removed, self._location, done.added)
        else:
            self._join_files_at = time.monotonic() + _JOIN_FILES_EVERY_S

    def again(
        self, report: Report, *, offset: int | None = None, since_ms: int | None = None
    ) -> None:
        """Load everything at or after an offset or a time again, and replace its rows."""
        if not self._settings.with_metadata:
            raise LoadStopped(
                "a table without the columns _topic_id and _offset cannot be reloaded"
            )
        for _ in range(_RELOAD_TRIES):
            spans = self._spans_again(self._logs(), offset, since_ms)
            if not spans or self._replace(spans, report):
                return
        raise CommitRefused(
            f"gave up after {_RELOAD_TRIES} attempts: other loads and rewrites changed "
            f"{self._location} each time. Nothing was reloaded; run it again"
        )

    def _spans_again(
        self, logs: list[_Log], offset: int | None, since_ms: int | None
    ) -> list[Span]:
        firsts = dict.fromkeys((one.place for one in logs), offset or 0)
        if since_ms is not None:
            firsts = self._cluster.list_offsets(
                dict.fromkeys(firsts, since_ms), read_committed=True
            )
        recorded = self._table.next_offsets(map(_txn_id, logs))
        spans = []
        for one in logs:
            first = firsts[one.place]
            if first >= 0:  # -1: no record is that new
                span = span_to_reload(
                    one.place, one.topic_id, first, recorded[_txn_id(one)], one.bounds
                )
                spans += [span] if span is not None else []
        return spans

    def _replace(self, spans: list[Span], report: Report) -> bool:
        """False if the table changed meanwhile."""
        began_at = time.monotonic()
        rows, results = self._run(spans, self._settings.event_time._replace(past_ms=None))
        if rows.conflict:
            raise SchemaRefused(
                f"the schema of the load does not fit {self._location}: {rows.conflict}"
            )
        self._table.ensure_columns(rows.table_schema)
        removed = files_with_rows(self._table.files(), spans)
        others = OtherRows(
            self._location,
            self._table.file_schema(),
            in_tasks(files_with_other_rows(removed, spans)),
            tuple(spans),
            f"reloaded-{unique_name()}",
        ).run(self._spark)
        self._commit_letters(results, rows.loaded_at_ms)
        files = tuple(file for result in results for file in result.files)
        loaded = {span.txn_id: span.offset_end for span in spans}
        done = self._table.rewrite(removed, (*files, *others), rows.loaded_at_ms, loaded)
        if done:
            report(_progress(Decision.COMMIT, spans, files, results, began_at))
        return done

    def _load_or_plan_again(self, pending: list[Span], report: Report) -> None:
        """Load the next batch. A refusal because another load committed first is no error."""
        try:
            report(self._load(pending))
        except CommitRefused as refused:
            recorded = self._table.next_offsets(span.txn_id for span in pending)
            if all(recorded[span.txn_id] in (None, span.first_offset) for span in pending):
                raise
            log.info("Planning again: %s", refused)

    # --- what is there ---------------------------------------------------------------------

    def _logs(self) -> list[_Log]:
        topics = self._source.subscription.existing(self._cluster)
        for name, metadata in topics.items():
            if metadata.topic_id == NO_TOPIC_ID:
                raise LoadStopped(
                    f"the brokers give topic {name!r} no ID, so a topic that was created again "
                    "could not be told apart. The load needs Kafka 2.8 or newer"
                )
        places = places_of(topics)
        earliest, latest = (
            self._cluster.list_offsets(dict.fromkeys(places, which), read_committed=True)
            for which in (EARLIEST, LATEST)
        )
        return [
            _Log(place, topics[place.topic].topic_id, Bounds(earliest[place], latest[place]))
            for place in places
        ]

    def _pending(self, logs: list[_Log]) -> list[Span]:
        recorded = self._table.next_offsets(map(_txn_id, logs))
        if any((recorded[_txn_id(one)] or 0) > one.bounds.latest for one in logs):
            # A broker that has just become leader may briefly report an older end.
            time.sleep(LOSS_CONFIRMED_AFTER_S)
            logs = self._logs()
            recorded = self._table.next_offsets(map(_txn_id, logs))
        pending = []
        for one in logs:
            next_offset = recorded[_txn_id(one)]
            lost = lost_span(one.place, one.topic_id, next_offset, one.bounds)
            if lost is not None and self._settings.accept_loss:
                self._accept(lost)
                next_offset = lost.offset_end
            span = pending_span(one.place, one.topic_id, next_offset, one.bounds)
            if span is not None:
                pending.append(span)
        return pending

    def _accept(self, lost: Span) -> None:
        """Record the lost range, then move the offset beyond it in a commit of its own."""
        reason = (
            f"retention deleted offsets {lost.first_offset} to {lost.offset_end - 1} of "
            f"{lost.place} before they were loaded; accepted with --accept-loss"
        )
        log.warning("%s", reason)
        written_at = now_ms()
        letters = PartitionedFiles(self._location / DEAD_LETTERS, DEAD_LETTER_SCHEMA, unique_name())
        letters.add((), lost_letter(*lost, written_at, reason))
        self._commit_letters([TaskResult((), letters.finish(), 0, 0)], written_at)
        self._audit.publish_lost(lost)
        rows = self._row_settings(written_at)
        self._table.commit(Batch((lost,), (), rows.table_schema, written_at, reason))

    # --- one batch -------------------------------------------------------------------------

    def _load(self, pending: list[Span]) -> Progress:
        began_at = time.monotonic()
        batch = next_batch(pending, self._bytes_per_record, self._settings.limits)
        rows, results = self._run(batch, self._settings.event_time)
        self._commit_letters(results, rows.loaded_at_ms)
        self._audit.publish(one for result in results for one in result.counts)
        files = tuple(file for result in results for file in result.files)
        decision = self._table.commit(
            Batch(tuple(batch), files, rows.table_schema, rows.loaded_at_ms)
        )
        self._bad_share.add(*_counts(results))
        return _progress(decision, batch, files, results, began_at)

    def _run(
        self, batch: list[Span], event_time: EventTime
    ) -> tuple[RowSettings, list[TaskResult]]:
        """Write the files of a batch, and check that few enough records are bad."""
        self._columns = value_columns(self._settings, self._source)
        rows = self._row_settings(now_ms())._replace(event_time=event_time)
        rows = rows._replace(conflict=self._conflict(rows, batch))
        tasks = plan_tasks(
            batch, self._parallelism(), self._bytes_per_record, self._settings.limits
        )
        job = Job(
            unique_name(),
            self._location,
            self._source,
            self._columns,
            rows,
            tuple(tasks),
        )
        results = job.run(self._spark)
        self._measure_record_size(results)
        self._check_share(results)
        return rows, results

    def _row_settings(self, loaded_at_ms: int) -> RowSettings:
        settings, columns = self._settings, self._columns
        return RowSettings(
            columns.schema,
            columns.is_struct,
            settings.with_metadata,
            settings.partition_by,
            settings.event_time,
            loaded_at_ms,
        )

    def _conflict(self, rows: RowSettings, batch: list[Span]) -> str:
        """Why records of this schema do not fit the table; empty if they do.

        All of them are bad then. A load that must stop for that need not read them first.
        """
        found = compare(self._table.fields(), fields_of(delta_json(rows.table_schema)))
        conflict = "; ".join(found.conflicts)
        count = sum(span.size for span in batch)
        if conflict and self._bad_share.too_many(count, count):
            raise SchemaRefused(
                f"the schema of the load does not fit {self._location}: {conflict}. Nothing "
                "was committed. Correct --schema, or load into another table; --bad-max 100% "
                "sends all records to the dead letters"
            )
        return conflict

    def _parallelism(self) -> int:
        return max(1, int(self._spark.sparkContext.defaultParallelism))

    def _measure_record_size(self, results: list[TaskResult]) -> None:
        """The size of a record, for the next plan."""
        offsets = sum(result.offsets_fetched for result in results)
        if offsets:
            fetched = sum(result.bytes_fetched for result in results)
            self._bytes_per_record = max(1.0, fetched / offsets)

    def _check_share(self, results: list[TaskResult]) -> None:
        judged = self._bad_share.too_many(*_counts(results))
        if judged is None:
            return
        reason = self._first_reason(results)
        for result in results:
            for file in result.files:
                self._location.delete(file.path)
            for file in result.letters:
                (self._location / DEAD_LETTERS).delete(file.path)
        raise LoadStopped(
            f"{judged.bad} of the last {judged.total} records would be dead letters, more than "
            f"{self._settings.bad_share_max:.0%}. {reason}Nothing of this batch was committed. "
            "Correct the load or the producer, or allow more with --bad-max"
        )

    def _first_reason(self, results: list[TaskResult]) -> str:
        letters = self._location / DEAD_LETTERS
        for file in (file for result in results for file in result.letters):
            with letters.reading(file.path) as opened:
                row = next(opened.iter_batches(1)).to_pylist()[0]
            place = TopicPartition(row["_topic"], row["_partition"])
            return f"The first is offset {row['_offset']} of {place}: {row['reason']}. "
        return ""

    def _commit_letters(self, results: list[TaskResult], written_at_ms: int) -> None:
        """Before the rows: a record must not be in neither table after a crash between the two."""
        files = tuple(file for result in results for file in result.letters)
        if files:
            directory = self._location / DEAD_LETTERS
            table = open_or_create(directory, DEAD_LETTER_SCHEMA, [])
            table.commit(Batch((), files, DEAD_LETTER_SCHEMA, written_at_ms))
            send_letters(self._cluster, str(self._location), directory, files)


def _counts(results: list[TaskResult]) -> tuple[int, int]:
    """The bad records of a batch, and all of its records."""
    bad = sum(file.row_count for result in results for file in result.letters)
    good = sum(file.row_count for result in results for file in result.files)
    return bad, bad + good


def _txn_id(one: _Log) -> str:
    return Span(one.place, one.topic_id, 0, 0).txn_id


def _progress(
    decision: Decision,
    spans: list[Span],
    files: tuple[NewFile, ...],
    results: list[TaskResult],
    began_at: float,
) -> Progress:
    return Progress(
        decision,
        tuple(spans),
        sum(file.row_count for file in files),
        sum(file.row_count for result in results for file in result.letters),
        len(files),
        sum(file.size for file in files),
        time.monotonic() - began_at,
    )
