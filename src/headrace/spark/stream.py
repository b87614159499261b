"""The streaming source: what the next batch holds, and how far the query has come.

Spark keeps one reader for planning in a process of its own on the driver, and sends copies to
the executors for reading. What must outlive the planning process travels in the offset, which
Spark writes into the checkpoint before a batch runs:

    {"pages": {"0": 120, "1": 98},            where each partition's next row is, as in Spark's
                                              own source
     "#headrace": {"group": "…",              the consumer group that progress is committed to
                   "ids": {"pages": "…"},     which topic by that name was meant
                   "start": {…}}}             where the first batch began, in its end only

"#" cannot stand in a topic's name. A checkpoint without our part, as Spark's own source leaves
it, is read as well.

Why "start": Spark asks for the initial offset again when a query died in its first batch, and
"latest" would be another one by then. The rows between would be left out, so the first batch
takes its beginning from its own end.
"""

import logging
import time
import uuid
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

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
from headrace.client.errors import ClientError, Refused
from headrace.model.ids import TopicPartition, id_from_text, id_to_text
from headrace.spark.cluster import (
    EARLIEST,
    LATEST,
    NO_TOPIC_ID,
    Cluster,
    shared_cluster,
)
from headrace.spark.failures import PipelineError
from headrace.spark.fetching import LOSS_CONFIRMED_AFTER_S, report_loss
from headrace.spark.offsets import (
    Offsets,
    Range,
    limited,
    offsets_from_json,
    offsets_to_json,
    resolve,
    split,
)
from headrace.spark.options import SourceOptions
from headrace.spark.reading import RangePartition, read_partition
from headrace.spark.subscription import places_of
from headrace.spark.workers import hasten

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger("headrace.spark")

_OURS = "#headrace"
# An idle query is polled about every 11 ms; a busy one asks once per batch anyway.
_ASK_EVERY_S = 0.02
_LOOK_FOR_TOPICS_EVERY_S = 1.0
_RETRY_MS_MIN = 50
_COMMIT_AGAIN_AFTER_S = 0.5
_LAST_COMMIT_WITHIN_S = 5.0


class StreamOffset(NamedTuple):
    """Spark's offset dict, taken apart."""

    offsets: Offsets
    group: str = ""
    topic_ids: Mapping[str, bytes] = {}
    start: Offsets | None = None

    def to_json(self) -> dict[str, Any]:
        ours: dict[str, Any] = {
            "group": self.group,
            "ids": {name: id_to_text(raw) for name, raw in sorted(self.topic_ids.items())},
        }
        if self.start is not None:
            ours["start"] = offsets_to_json(self.start)
        return {**offsets_to_json(self.offsets), _OURS: ours}


def parse_offset(json: Mapping[str, Any]) -> StreamOffset:
    try:
        ours = json.get(_OURS, {})
        start = ours.get("start")
        return StreamOffset(
            offsets_from_json({name: entry for name, entry in json.items() if name != _OURS}),
            ours.get("group", ""),
            {name: id_from_text(text) for name, text in ours.get("ids", {}).items()},
            None if start is None else offsets_from_json(start),
        )
    except (ValueError, TypeError, AttributeError) as broken:
        raise PipelineError(
            'the checkpoint must hold offsets like {"topicA":{"0":23}} for this source, not '
            f"{str(json)[:1000]} ({broken})"
        ) from broken


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Opens nothing before it is asked: Spark makes and copies readers freely."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._initial: dict[str, Any] | None = None
        self._drawn_group = ""
        self._available_now = False
        self._target: tuple[Offsets, dict[str, TopicMetadata]] | None = None
        self._topics_metadata: dict[str, TopicMetadata] = {}
        self._looked_at = 0.0
        self._latest: Offsets = {}
        self._asked_at = 0.0
        self._triggered_at: float | None = None
        self._committed: Offsets | None = None
        self._commit_again_at = 0.0
        self._warned: set[str] = set()

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        hasten()

    @property
    def _cluster(self) -> Cluster:
        return shared_cluster(self._options.client)

    # --- where the query stands --------------------------------------------------------

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
            self._initial = StreamOffset(
                offsets, self._group(""), _ids(topics_metadata), start=offsets
            ).to_json()
        return self._initial

    def _group(self, kept: str) -> str:
        """The option's, else the checkpoint's, else one drawn now for the query's whole life."""
        if self._options.group_id or kept:
            return self._options.group_id or kept
        if not self._drawn_group:
            self._drawn_group = f"{self._options.group_id_prefix}-{uuid.uuid4()}"
        return self._drawn_group

    def prepareForTriggerAvailableNow(self) -> None:
        self._available_now = True

    def getDefaultReadLimit(self) -> ReadLimit:
        # Spark's Python API carries one limit; that there is any says that ours apply.
        if self._options.trigger_rows_max is not None:
            return ReadMaxRows(self._options.trigger_rows_max)
        if self._options.trigger_rows_min is not None:
            return ReadMinRows(self._options.trigger_rows_min)
        return ReadAllAvailable()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return offsets_to_json(self._latest) if self._latest else None

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        began = parse_offset(start)
        # Spark shows the end of a finished batch here first, the last one of an AvailableNow
        # query included; its own commit() comes only when the next batch is planned.
        self._commit_progress(began)
        ends, topics_metadata = self._ends(began)
        starts = self._with_new_places(began, ends, topics_metadata)
        if not isinstance(limit, ReadAllAvailable):
            if self._waits_for_more(starts, ends):
                return start
            if self._options.trigger_rows_max is not None:
                ends = limited(starts, ends, self._options.trigger_rows_max)
        ids = {**{place.topic: NO_TOPIC_ID for place in ends}, **_ids(topics_metadata)}
        ids = {name: ids[name] for name in dict.fromkeys(place.topic for place in ends)}
        if ends == began.offsets and not _ids_changed(began.topic_ids, ids):
            return start
        self._triggered_at = time.monotonic()
        # As long as no batch moved the query away from where it began, the next one is the first.
        first = began.start if began.start == began.offsets else None
        return StreamOffset(ends, self._group(began.group), ids, first).to_json()

    def _waits_for_more(self, starts: Offsets, ends: Offsets) -> bool:
        rows_min = self._options.trigger_rows_min
        if rows_min is None or self._available_now:
            return False
        backlog = sum(max(0, end - starts[place]) for place, end in ends.items())
        if backlog >= rows_min or self._triggered_at is None:
            return False
        waited_ms = (time.monotonic() - self._triggered_at) * 1000
        return waited_ms < self._options.trigger_delay_ms_max

    # --- what is there -----------------------------------------------------------------

    def _ends(self, began: StreamOffset) -> tuple[Offsets, dict[str, TopicMetadata]]:
        """The newest offsets of all partitions; with AvailableNow those of the first call."""
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
                self._looked_at = 0.0  # the metadata may be what is wrong
                raise

        self._latest = self._cluster.persistently(attempt, "asking for the newest offsets")
        self._asked_at = time.monotonic()

    def _lost(self, began: StreamOffset) -> dict[TopicPartition, str]:
        """Why the query cannot go on where it stands, for each partition where that is so."""
        lost = {}
        for place, offset in began.offsets.items():
            latest = self._latest.get(place)
            known_id = began.topic_ids.get(place.topic, NO_TOPIC_ID)
            if latest is None and not self._options.subscription.covers(place):
                lost[place] = (
                    f"the query stood at {offset} of {place}, which its options (subscribe, "
                    "subscribePattern, assign) do not name any more; name it again, or begin with "
                    "a new checkpoint"
                )
            elif latest is None:
                lost[place] = f"{place} does not exist any more; the query stood at {offset}"
            elif _is_another(known_id, self._topics_metadata[place.topic].topic_id):
                lost[place] = (
                    f"topic {place.topic!r} was deleted and made anew; the query stood at "
                    f"{offset} of the old {place}"
                )
            elif latest < offset:
                lost[place] = (
                    f"{place} ends at {latest}, but the query stood at {offset}: records were cut "
                    "off or the topic was made anew"
                )
        return lost

    def _report(self, what: str) -> None:
        if self._options.fetch.fail_on_data_loss or what not in self._warned:
            report_loss(self._options.fetch.fail_on_data_loss, what)
            self._warned.add(what)

    def _with_new_places(
        self, began: StreamOffset, ends: Offsets, topics_metadata: Mapping[str, TopicMetadata]
    ) -> Offsets:
        """Where each partition's batch begins; one that is new, or new again, at its earliest."""
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

    # --- what one batch reads ------------------------------------------------------------

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        began, ended = parse_offset(start), parse_offset(end)
        if ended.start is not None:
            began = began._replace(offsets=ended.start)
        for place, offset in began.offsets.items():
            if place not in ended.offsets:
                self._report(f"{place} is gone; the query stood at {offset}")
        ranges = []
        for place, first in self._beginnings(began, ended).items():
            offset_end = ended.offsets[place]
            if offset_end < first:
                self._report(
                    f"{place} was to be read from {first} to {offset_end}: records were cut off "
                    "or the topic was made anew"
                )
                continue
            ranges.append(Range(place, first, offset_end))
        options = self._options
        return [
            RangePartition(range_, ended.topic_ids.get(range_.place.topic, NO_TOPIC_ID))
            for range_ in split(
                ranges, partitions_min=options.partitions_min, rows_max=options.task_rows_max
            )
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
                self._report(f"{place}, which was new to the query, is gone already")
            elif earliest[place] > 0 and place not in began.offsets:
                self._report(
                    f"{place} is new to the query and begins at {earliest[place]} instead of 0"
                )
        return starts | earliest

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        return read_partition(self._options, self._schema, partition)

    # --- who else may know -----------------------------------------------------------------

    def commit(self, end: dict[str, Any]) -> None:
        self._commit_progress(parse_offset(end))

    def _commit_progress(self, done: StreamOffset) -> None:
        """Tells the consumer group; a refusal is a warning, the checkpoint is the truth."""
        if not done.offsets or done.offsets == self._committed:
            return
        if time.monotonic() < self._commit_again_at:
            return
        group = self._group(done.group)
        # An AvailableNow query is asked only once after its last batch, so it must wait for a
        # coordinator that is just being made; others come by again.
        patience_s = _LAST_COMMIT_WITHIN_S if self._available_now else 0.0
        give_up_at = time.monotonic() + patience_s
        while True:
            try:
                self._cluster.commit_offsets(group, done.offsets)
            except ClientError as failed:
                hopeless = isinstance(failed, Refused) and not failed.retriable
                if hopeless or time.monotonic() >= give_up_at:
                    self._warn_of_commit(group, failed)
                    self._commit_again_at = time.monotonic() + _COMMIT_AGAIN_AFTER_S
                    if hopeless:
                        self._committed = done.offsets  # not again before the query has moved
                    return
                self._cluster.forget()
                time.sleep(self._options.client.retry_backoff_ms / 1000)
            else:
                self._committed = done.offsets
                return

    def _warn_of_commit(self, group: str, failed: ClientError) -> None:
        if str(failed) not in self._warned:
            self._warned.add(str(failed))
            log.warning(
                "the query goes on, but its progress could not be committed to group %r, so its "
                "lag cannot be seen there: %s",
                group,
                failed,
            )


def _ids(topics_metadata: Mapping[str, TopicMetadata]) -> dict[str, bytes]:
    return {name: metadata.topic_id for name, metadata in topics_metadata.items()}


def _is_another(known_id: bytes, topic_id: bytes) -> bool:
    """Two ids, both known, that differ; brokers before Kafka 2.8 know none."""
    return NO_TOPIC_ID not in (known_id, topic_id) and known_id != topic_id


def _ids_changed(known: Mapping[str, bytes], now: Mapping[str, bytes]) -> bool:
    return any(_is_another(known.get(name, NO_TOPIC_ID), raw) for name, raw in now.items())
