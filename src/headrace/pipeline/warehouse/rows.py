"""Turns the records of one partition into rows of a table, and the others into dead letters. Pure.

A row has the columns of the value, the columns of Kafka and the partition columns. A record that
cannot be a row gets a dead letter with the reason: its value cannot be parsed, or its event time is
out of range. No record is dropped.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.arrow.columns import HEADERS_TYPE, Records
from headrace.arrow.values import Parser
from headrace.model.ids import TopicPartition, id_to_text
from headrace.pipeline.warehouse.batch import PartitionValues

_UTC_MICROS = pa.timestamp("us", "UTC")
METADATA_COLUMNS: dict[str, pa.DataType] = {
    "_topic": pa.string(),
    "_topic_id": pa.string(),
    "_partition": pa.int32(),
    "_offset": pa.int64(),
    "_timestamp": _UTC_MICROS,
    "_key": pa.binary(),
    "_headers": HEADERS_TYPE,
    "_loaded_at": _UTC_MICROS,
}
EVENT_DATE, EVENT_HOUR = "event_date", "event_hour"
EVENT_COLUMNS: dict[str, pa.DataType] = {EVENT_DATE: pa.date32(), EVENT_HOUR: pa.int32()}

DEAD_LETTER_SCHEMA = pa.schema(
    [
        ("_topic", pa.string()),
        ("_topic_id", pa.string()),
        ("_partition", pa.int32()),
        ("_offset", pa.int64()),
        ("_offset_end", pa.int64()),  # above _offset + 1 for a range of lost records
        ("_timestamp_ms", pa.int64()),  # as the producer sent it, even if it is no date
        ("_key", pa.binary()),
        ("_headers", HEADERS_TYPE),
        ("_loaded_at", _UTC_MICROS),
        ("value", pa.binary()),
        ("stage", pa.string()),
        ("reason", pa.string()),
    ]
)

_HOUR_MS, _DAY_MS = 3_600_000, 86_400_000
# A timestamp counts microseconds in eight bytes; a date begins with the year 1 in every reader.
_TIME_MS_MAX = ((1 << 63) - 1) // 1000
_FIRST_EVENT_MS = -62_135_596_800_000
_ROWS_MAX = 32_768

Mask = npt.NDArray[np.bool_]
Millis = npt.NDArray[np.int64]


class EventTime(NamedTuple):
    """Where the event time comes from, and how far it may be from the record's timestamp."""

    column: str = ""  # of the value: a timestamp, or milliseconds since 1970; "": the record's
    past_ms: int | None = 30 * _DAY_MS  # None: no limit, for reloads
    future_ms: int = _HOUR_MS


class RowSettings(NamedTuple):
    """What the rows of a batch have in common; pickled for the tasks."""

    value_schema: pa.Schema  # the columns of the value
    is_struct: bool  # the value is parsed into these columns; otherwise it is the only one
    with_metadata: bool
    partition_by: tuple[str, ...]
    event_time: EventTime
    loaded_at_ms: int  # the driver's clock when it planned the batch
    conflict: str = ""  # why no record of this batch fits the table

    @property
    def file_schema(self) -> pa.Schema:
        fields = [field for field in self.value_schema if field.name not in self.partition_by]
        if self.with_metadata:
            fields += [pa.field(name, kind) for name, kind in METADATA_COLUMNS.items()]
        return pa.schema(fields)

    @property
    def table_schema(self) -> pa.Schema:
        fields = list(self.file_schema)
        for name in self.partition_by:
            kind = EVENT_COLUMNS.get(name)
            fields.append(self.value_schema.field(name) if kind is None else pa.field(name, kind))
        return pa.schema(fields)


class Built(NamedTuple):
    """The rows of some records, by partition values, and their dead letters."""

    rows: list[tuple[PartitionValues, pa.RecordBatch]]
    letters: pa.RecordBatch | None


class RowBuilder:
    """Builds the rows of one partition."""

    def __init__(
        self, settings: RowSettings, place: TopicPartition, topic_id: bytes, parse: Parser | None
    ) -> None:
        self._settings = settings
        self._place = place
        self._topic_id = id_to_text(topic_id)
        self._parse = parse

    def build(self, records: Records) -> Iterator[Built]:
        for start in range(0, records.size, _ROWS_MAX):
            yield self._build(records.slice(start, min(start + _ROWS_MAX, records.size)))

    def _build(self, records: Records) -> Built:
        if self._settings.conflict:
            reasons = dict.fromkeys(range(records.size), ("schema", self._settings.conflict))
            return Built([], self._letters(records, records.values(), reasons))
        raw = records.values()
        reasons = {}
        values = raw
        if self._parse is not None:
            values, bad = self._parse(raw)
            reasons = {index: ("decode", reason) for index, reason in bad.items()}
        event_ms = _event_times(self._settings, records.timestamp_ms, values)
        for index, reason in _out_of_range(self._settings, records.timestamp_ms, event_ms):
            reasons.setdefault(index, ("event-time", reason))
        letters = self._letters(records, raw, reasons) if reasons else None
        if reasons:
            kept = np.ones(records.size, dtype=bool)
            kept[list(reasons)] = False
            records, values = records.where(kept), values.filter(pa.array(kept))
            event_ms = event_ms[kept]
        return Built(self._split(self._columns(records, values), event_ms), letters)

    def _columns(self, records: Records, values: pa.Array) -> dict[str, pa.Array]:
        settings = self._settings
        names = settings.value_schema.names
        columns = dict(
            zip(names, values.flatten() if settings.is_struct else [values], strict=True)
        )
        if settings.with_metadata:
            size = records.size
            columns |= {
                "_topic": pa.repeat(pa.scalar(self._place.topic), size),
                "_topic_id": pa.repeat(pa.scalar(self._topic_id), size),
                "_partition": pa.repeat(pa.scalar(self._place.partition, pa.int32()), size),
                "_offset": pa.array(records.offset),
                "_timestamp": _micros(records.timestamp_ms),
                "_key": records.keys(),
                "_headers": records.headers(),
                "_loaded_at": pa.repeat(_instant(settings.loaded_at_ms), size),
            }
        return columns

    def _split(
        self, columns: dict[str, pa.Array], event_ms: Millis
    ) -> list[tuple[PartitionValues, pa.RecordBatch]]:
        """Rows with equal partition values together, in their order."""
        if not len(event_ms):
            return []
        schema = self._settings.file_schema
        rows = pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)
        keys = [_texts(name, columns, event_ms) for name in self._settings.partition_by]
        names = self._settings.partition_by
        groups: dict[PartitionValues, list[int]] = {}
        if all(_is_constant(key) for key in keys):
            return [(tuple(zip(names, (key[0].as_py() for key in keys), strict=True)), rows)]
        for index, texts in enumerate(zip(*(key.to_pylist() for key in keys), strict=True)):
            groups.setdefault(tuple(zip(names, texts, strict=True)), []).append(index)
        return [(values, rows.take(pa.array(indexes))) for values, indexes in groups.items()]

    def _letters(
        self, records: Records, raw: pa.Array, reasons: dict[int, tuple[str, str]]
    ) -> pa.RecordBatch:
        indexes = sorted(reasons)
        bad = np.zeros(records.size, dtype=bool)
        bad[indexes] = True
        letters = records.where(bad)
        size = letters.size
        return pa.RecordBatch.from_arrays(
            [
                pa.repeat(pa.scalar(self._place.topic), size),
                pa.repeat(pa.scalar(self._topic_id), size),
                pa.repeat(pa.scalar(self._place.partition, pa.int32()), size),
                pa.array(letters.offset),
                pa.array(letters.offset + 1),
                pa.array(letters.timestamp_ms),
                letters.keys(),
                letters.headers(),
                pa.repeat(_instant(self._settings.loaded_at_ms), size),
                raw.filter(pa.array(bad)),
                pa.array([reasons[index][0] for index in indexes], pa.string()),
                pa.array([reasons[index][1] for index in indexes], pa.string()),
            ],
            schema=DEAD_LETTER_SCHEMA,
        )


def lost_letter(
    place: TopicPartition, topic_id: bytes, first: int, end: int, at_ms: int, reason: str
) -> pa.RecordBatch:
    """The entry for a range of offsets that left the log before they were loaded."""
    row = {
        "_topic": place.topic,
        "_topic_id": id_to_text(topic_id),
        "_partition": place.partition,
        "_offset": first,
        "_offset_end": end,
        "_loaded_at": _instant(at_ms).as_py(),
        "stage": "lost",
        "reason": reason,
    }
    return pa.RecordBatch.from_pylist([row], schema=DEAD_LETTER_SCHEMA)


def _event_times(settings: RowSettings, timestamp_ms: Millis, values: pa.Array) -> Millis:
    """The event time of each record; its timestamp where the value has none."""
    name = settings.event_time.column
    if not name:
        return timestamp_ms
    column = values.field(settings.value_schema.get_field_index(name))
    missing = column.is_null().to_numpy(zero_copy_only=False)
    # A bad value is null as a whole; its fields may hold anything.
    missing |= values.is_null().to_numpy(zero_copy_only=False)
    given = column.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    if pa.types.is_timestamp(column.type):
        given = given // 1000
    return np.where(missing, timestamp_ms, given)


def _out_of_range(
    settings: RowSettings, timestamp_ms: Millis, event_ms: Millis
) -> Iterator[tuple[int, str]]:
    """The records whose time makes no row, and why.

    An event is compared with the timestamp of its record, not with now: a load that starts late
    must decide as one that kept up. A timestamp after the driver's clock counts as that clock.
    """
    limits = settings.event_time
    now = settings.loaded_at_ms
    too_large = (timestamp_ms > _TIME_MS_MAX) | (timestamp_ms < -_TIME_MS_MAX)
    reference_ms = np.where((timestamp_ms < 0) | (timestamp_ms > now), now, timestamp_ms)
    late = event_ms < _FIRST_EVENT_MS
    if limits.past_ms is not None and limits.column:
        late |= event_ms < reference_ms - limits.past_ms
    early = event_ms > reference_ms + limits.future_ms
    unknown = (timestamp_ms < 0) & (event_ms == timestamp_ms)
    for index in np.flatnonzero(too_large | late | early | unknown).tolist():
        event, timestamp = int(event_ms[index]), int(timestamp_ms[index])
        if too_large[index]:
            yield index, f"the timestamp of the record, {timestamp} ms, is not a time"
        elif unknown[index]:
            yield index, f"the record has no timestamp ({timestamp} ms)"
        elif early[index]:
            yield (
                index,
                (
                    f"the event time, {event} ms, is more than {limits.future_ms} ms after the "
                    f"record's timestamp, {int(reference_ms[index])} ms"
                ),
            )
        else:
            yield (
                index,
                (
                    f"the event time, {event} ms, is more than {limits.past_ms} ms before the "
                    f"record's timestamp, {int(reference_ms[index])} ms"
                ),
            )


def _texts(name: str, columns: dict[str, pa.Array], event_ms: Millis) -> pa.Array:
    """Partition values in Delta's notation."""
    if name == EVENT_DATE:
        days = (event_ms // _DAY_MS).astype(np.int32)
        if days.min() == days.max():
            return pa.repeat(pa.array(days[:1]).view(pa.date32()).cast(pa.string())[0], len(days))
        return pa.array(days).view(pa.date32()).cast(pa.string())
    if name == EVENT_HOUR:
        return pa.array(event_ms // _HOUR_MS % 24).cast(pa.string())
    return columns[name].cast(pa.string())


def _is_constant(texts: pa.Array) -> bool:
    return len(texts.unique()) == 1


def _micros(millis: Millis) -> pa.Array:
    return pa.array(millis * 1000).view(_UTC_MICROS)


def _instant(millis: int) -> pa.Scalar:
    return pa.scalar(millis * 1000, pa.int64()).cast(_UTC_MICROS)
