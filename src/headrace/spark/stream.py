"""The streaming source: plans each batch, and commits the progress of the query.

Spark keeps one reader for planning in a separate process on the driver, and sends copies to the
executors for reading. State that must outlive the planning process is part of the offset
(stream_offset.py), which Spark writes into the checkpoint.
"""

import time
import uuid
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from headrace.client.cluster import TopicMetadata
from headrace.client.errors import ClientError
from headrace.model.ids import TopicPartition
from headrace.spark.cluster import (
    EARLIEST,
    LATEST,
    NO_TOPIC_ID,
    Cluster,
    shared_cluster,
)
from headrace.spark.fetching import LOSS_CONFIRMED_AFTER_S, report_loss
from headrace.spark.group_progress import GroupProgress
from headrace.spark.offsets import (
    Offsets,
    Range,
    join,
    limited,
    limited_by_time,
    offsets_to_json,
    resolve,
    split,
)
from headrace.spark.options import SourceOptions
from headrace.spark.planned_batch import planned_batch
from headrace.spark.reading import RangePartition, read_partition
from headrace.spark.stream_offset import StreamOffset, parse_offset
from headrace.spark.subscription import places_of
from headrace.spark.workers import hasten

if TYPE_CHECKING:
    import pyarrow as pa

# Spark polls an idle query about every 11 ms.
_ASK_EVERY_S = 0.02
_LOOK_FOR_TOPICS_EVERY_S = 1.0
_RETRY_MS_MIN = 50
_LAST_COMMIT_WITHIN_S = 5.0


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Connects at its first request: Spark creates and copies readers freely."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._initial: dict[str, Any] | None = None
        self._drawn_query = ""
        self._available_now = False
        self._target: tuple[Offsets, dict[str, TopicMetadata]] | None = None
        self._topics_metadata: dict[str, TopicMetadata] = {}
        self._looked_at = 0.0
        self._latest: Offsets = {}
        self._asked_at = 0.0
        self._triggered_at: float | None = None
        self._progress = GroupProgress()
        self._warned: set[str] = set()

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        hasten()

    @property
    def _cluster(self) -> Cluster:
        return shared_cluster(self._options.client)

    # --- the position of the query -----------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:
        if self._initial is None:
            options = self._options
            topics_metadata = options.subscription.existing(self._cluster)
            offsets = resolve(
                options.starting,
                places_of(topics_metadata),
                self._cluster,
                read_committed=options.fetch.read_committed,
            )
            initial = StreamOffset(offsets, topic_ids=_ids(topics_metadata), start=offsets)
            self._initial = self._named(initial).to_json()
        return self._initial

    def _named(self, offset: StreamOffset) -> StreamOffset:
        """The offset with the query's ID and group: the checkpoint's, or drawn now.

        Spark does not tell a Python source the ID or the name of its query.
        """
        if not offset.query and not self._drawn_query:
            self._drawn_query = str(uuid.uuid4())
        query = offset.query or self._drawn_query
        group = self._options.group_id or offset.group
        return offset._replace(
            query=query, group=group or f"{self._options.group_id_prefix}-{query}"
        )

    def prepareForTriggerAvailableNow(self) -> None:
        self._available_now = True

    def getDefaultReadLimit(self) -> ReadLimit:
        # Spark's Python API passes one limit; any limit means that ours apply.
        if self._options.trigger_rows_max is not None:
            return ReadMaxRows(self._options.trigger_rows_max)
        if self._options.trigger_rows_min is not None:
            return ReadMinRows(self._options.trigger_rows_min)
        return ReadAllAvailable()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return offsets_to_json(self._latest) if self._latest else None

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        began = parse_offset(start)
        # Spark passes the end of a finished batch here first, also of the last batch of an
        # AvailableNow query. It calls commit() only when it plans the next batch.
        self._commit_progress(began)
        ends, topics_metadata = self._ends(began)
        starts = self._with_new_places(began, ends, topics_metadata)
        if not isinstance(limit, ReadAllAvailable):
            if self._waits_for_more(starts, ends):
                return start
            if self._options.trigger_rows_max is not None:
                ends = self._limited(starts, ends, self._options.trigger_rows_max)
        ids = {**{place.topic: NO_TOPIC_ID for place in ends}, **_ids(topics_metadata)}
        ids = {name: ids[name] for name in dict.fromkeys(place.topic for place in ends)}
        if ends == began.offsets and not _ids_changed(began.topic_ids, ids):
            return start
        self._triggered_at = time.monotonic()
        # While no batch has moved the query from its initial offsets, the next batch is the first.
        first = began.start if began.is_initial else None
        return self._named(began._replace(offsets=ends, topic_ids=ids, start=first)).to_json()

    def _limited(self, starts: Offsets, ends: Offsets, rows_max: int) -> Offsets:
        if not self._options.limits_by_time:
            return limited(starts, ends, rows_max)

        def offsets_at(timestamp_ms: int) -> Offsets:
            return self._cluster.list_offsets(
                dict.fromkeys(ends, timestamp_ms),
                read_committed=self._options.fetch.read_committed,
            )

        return limited_by_time(starts, ends, rows_max, offsets_at)

    def _waits_for_more(self, starts: Offsets, ends: Offsets) -> bool:
        rows_min = self._options.trigger_rows_min
        if rows_min is None or self._available_now:
            return False
        backlog = sum(max(0, end - starts[place]) for place, end in ends.items())
        if backlog >= rows_min or self._triggered_at is None:
            return False
        waited_ms = (time.monotonic() - self._triggered_at) * 1000
        return waited_ms < self._options.trigger_delay_ms_max

    # --- the newest offsets ------------------------------------------------------------

    def _ends(self, began: StreamOffset) -> tuple[Offsets, dict[str, TopicMetadata]]:
        """The newest offsets of all partitions; with AvailableNow, those at the first call."""
        if self._target is None:
            ends = self._newest(began)
            if not self._available_now:
                return ends, self._topics_metadata
            self._target = ends, self._topics_metadata
        ends, topics_metadata = self._target
        return dict(ends), topics_metadata

    def _newest(self, began: StreamOffset) -> Offsets:
        tries_left = self._options.offset_tries
        confirmed_at = time.monotonic() + LOSS_CONFIRMED_AFTER_S
        while True:
            now = time.monotonic()
            if now - self._asked_at >= _ASK_EVERY_S or not self._latest:
                self._ask(now)
            lost = self._lost(began)
            if not lost:
                return dict(self._latest)
            tries_left -= 1
            if tries_left <= 0 and (
                time.monotonic() >= confirmed_at or not self._options.fetch.fail_on_data_loss
            ):
                for what in lost.values():
                    self._report(what)
                return dict(self._latest)
            time.sleep(max(self._options.offset_retry_ms, _RETRY_MS_MIN) / 1000)
            self._looked_at = self._asked_at = 0.0

    def _ask(self, now: float) -> None:
        options = self._options

        def attempt() -> Offsets:
            if now - self._looked_at >= _LOOK_FOR_TOPICS_EVERY_S:
                self._topics_metadata = options.subscription.topics_metadata(self._cluster)
                self._looked_at = now
            try:
                return self._cluster.list_offsets(
                    dict.fromkeys(places_of(self._topics_metadata), LATEST),
                    read_committed=options.fetch.read_committed,
                    patient=False,
                )
            except ClientError:
                self._looked_at = 0.0  # the metadata may be wrong
                raise

        self._latest = self._cluster.persistently(attempt, "asking for the newest offsets")
        self._asked_at = time.monotonic()

    def _lost(self, began: StreamOffset) -> dict[TopicPartition, str]:
        """The partitions that the query cannot continue at its offset, and why."""
        lost = {}
        for place, offset in began.offsets.items():
            latest = self._latest.get(place)
            known_id = began.topic_ids.get(place.topic, NO_TOPIC_ID)
            if latest is None and not self._options.subscription.covers(place):
                lost[place] = (
                    f"the query was at offset {offset} of {place}, which its options (subscribe, "
                    "subscribePattern, assign) no longer name; name it again, or start with a new "
                    "checkpoint"
                )
            elif latest is None:
                lost[place] = f"{place} no longer exists; the query was at offset {offset}"
            elif _is_another(known_id, self._topics_metadata[place.topic].topic_id):
                lost[place] = (
                    f"topic {place.topic!r} was deleted and created again; the query was at "
                    f"offset {offset} of the old {place}"
                )
            elif latest < offset:
                lost[place] = (
                    f"{place} ends at offset {latest}, but the query was at {offset}: the log was "
                    "truncated, or the topic was deleted and created again"
                )
        return lost

    def _report(self, what: str) -> None:
        if self._options.fetch.fail_on_data_loss or what not in self._warned:
            report_loss(self._options.fetch.fail_on_data_loss, what)
            self._warned.add(what)

    def _with_new_places(
        self, began: StreamOffset, ends: Offsets, topics_metadata: Mapping[str, TopicMetadata]
    ) -> Offsets:
        """The start of each partition; a new or re-created partition starts at its earliest."""
        ids = _ids(topics_metadata)
        starts = {}
        fresh = []
        for place, end in ends.items():
            offset = began.offsets.get(place)
            known_id = began.topic_ids.get(place.topic, NO_TOPIC_ID)
            if offset is None or _is_another(known_id, ids.get(place.topic, NO_TOPIC_ID)):
                fresh.append(place)
            else:
                starts[place] = min(offset, end)
        if fresh:
            starts |= self._cluster.list_offsets(
                dict.fromkeys(fresh, EARLIEST), read_committed=self._options.fetch.read_committed
            )
        return starts

    # --- the ranges of one batch ---------------------------------------------------------

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        began, ended = parse_offset(start), parse_offset(end)
        if ended.start is not None:
            began = began._replace(offsets=ended.start)
        for place, offset in began.offsets.items():
            if place not in ended.offsets:
                self._report(f"{place} is gone; the query was at offset {offset}")
        ranges = []
        for place, first in self._beginnings(began, ended).items():
            offset_end = ended.offsets[place]
            if offset_end < first:
                self._report(
                    f"{place} was to be read from {first} to {offset_end}: the log was truncated, "
                    "or the topic was deleted and created again"
                )
                continue
            ranges.append(Range(place, first, offset_end))
        options = self._options
        pieces = split(
            ranges, partitions_min=options.partitions_min, rows_max=options.task_rows_max
        )
        batch = planned_batch(options.checkpoint, end) if options.checkpoint else None
        return [
            RangePartition(joined, ended.topic_ids, batch)
            for joined in join(pieces, options.task_rows_min)
        ]

    def _beginnings(self, began: StreamOffset, ended: StreamOffset) -> Offsets:
        starts: Offsets = {}
        fresh: list[TopicPartition] = []
        for place in ended.offsets:
            same = not _is_another(
                began.topic_ids.get(place.topic, NO_TOPIC_ID),
                ended.topic_ids.get(place.topic, NO_TOPIC_ID),
            )
            if place in began.offsets and same:
                starts[place] = began.offsets[place]
            else:
                fresh.append(place)
        if not fresh:
            return starts
        topics_metadata = self._cluster.persistently(
            lambda: self._options.subscription.topics_metadata(self._cluster),
            "finding new partitions",
        )
        there = set(places_of(topics_metadata))
        earliest = self._cluster.list_offsets(
            {place: EARLIEST for place in fresh if place in there},
            read_committed=self._options.fetch.read_committed,
        )
        for place in fresh:
            if place not in earliest:
                self._report(f"{place} was new to the query and is already gone")
            elif earliest[place] > 0 and place not in began.offsets:
                self._report(
                    f"{place} is new to the query and starts at {earliest[place]} instead of 0"
                )
        return starts | earliest

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        return read_partition(self._options, self._schema, partition)

    # --- progress --------------------------------------------------------------------------

    def commit(self, end: dict[str, Any]) -> None:
        self._commit_progress(parse_offset(end))

    def _commit_progress(self, done: StreamOffset) -> None:
        named = self._named(done)
        self._progress.commit(
            self._cluster,
            named.group,
            named.query,
            named.offsets,
            # A query at its initial offsets takes the group over. An ID that is not in the
            # checkpoint yet may differ from the one of the last run.
            look_for_others=bool(done.query) and not done.is_initial,
            # Spark calls an AvailableNow query only once after its last batch, so the commit
            # waits for a coordinator that is just starting; other queries commit again later.
            within_s=_LAST_COMMIT_WITHIN_S if self._available_now else 0.0,
        )


def _ids(topics_metadata: Mapping[str, TopicMetadata]) -> dict[str, bytes]:
    return {name: metadata.topic_id for name, metadata in topics_metadata.items()}


def _is_another(known_id: bytes, topic_id: bytes) -> bool:
    """True for two known IDs that differ; brokers before Kafka 2.8 have no IDs."""
    return NO_TOPIC_ID not in (known_id, topic_id) and known_id != topic_id


def _ids_changed(known: Mapping[str, bytes], now: Mapping[str, bytes]) -> bool:
    return any(_is_another(known.get(name, NO_TOPIC_ID), raw) for name, raw in now.items())
