"""Builds the rows of a table from the records of one partition: Kafka's columns, in Arrow.

Only the columns of the requested schema are built. Columns that are the same for a whole batch
are built once and cut to size.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from headrace.arrow.columns import Records
from headrace.arrow.errors import BadRecord
from headrace.arrow.values import Parsed, Parser
from headrace.model.ids import TopicPartition

# Rows per Arrow batch: enough to make the cost per batch small, and few enough that a batch of
# 1 KB rows stays below 32 MB on its way through the JVM.
_BATCH_ROWS_MAX = 32_768

# A timestamp counts microseconds in eight bytes.
_TIME_MS_MAX = ((1 << 63) - 1) // 1000

BAD_TYPE = pa.struct(
    [
        ("reason", pa.string()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("value", pa.binary()),
    ]
)


class RejectedRecord(NamedTuple):
    """A record whose value cannot be parsed."""

    place: TopicPartition
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    reason: str


class RowBuilder:
    """Builds the Arrow batches of one partition's records.

    ``parse`` turns values into the column ``value``; None leaves them bytes. A record whose
    value is bad goes to ``reject`` and gets no row. Without ``reject`` it gets a row whose
    column ``bad_column`` holds the reason. ``constants`` are columns with one value.
    """

    def __init__(
        self,
        schema: pa.Schema,
        place: TopicPartition,
        parse: Parser | None = None,
        *,
        bad_column: str = "",
        reject: Callable[[RejectedRecord], None] | None = None,
        constants: Mapping[str, Any] | None = None,
    ) -> None:
        self._schema = schema
        self._place = place
        self._parse = parse if "value" in schema.names else None
        self._bad_column = bad_column
        self._reject = reject
        self._constants: dict[str, pa.Array] = {}
        self._makers: dict[str, Callable[[Records], pa.Array]] = {
            "key": Records.keys,
            "value": Records.values,
            "topic": lambda records: self._repeated("topic", place.topic, records.size),
            "partition": lambda records: self._repeated("partition", place.partition, records.size),
            "offset": lambda records: pa.array(records.offset),
            "timestamp": self._timestamps,
            "timestampType": lambda records: pa.array(records.timestamp_type.astype(np.int32)),
            "headers": Records.headers,
        }
        for name, value in (constants or {}).items():
            self._makers[name] = self._constant(name, value)

    def batches(self, records: Records) -> Iterator[pa.RecordBatch]:
        for start in range(0, records.size, _BATCH_ROWS_MAX):
            piece = records
            if records.size > _BATCH_ROWS_MAX:
                piece = records.slice(start, min(start + _BATCH_ROWS_MAX, records.size))
            batch = self._batch(piece)
            if batch.num_rows:
                yield batch

    def _batch(self, records: Records) -> pa.RecordBatch:
        made: dict[str, pa.Array] = {}
        bad: dict[int, str] = {}
        if self._parse is not None:
            raw = records.values()
            parsed = self._parse(raw)
            made["value"], bad = parsed.array, parsed.bad
            if bad and self._reject is not None:
                records, made["value"] = self._without_bad(records, raw, parsed)
                bad = {}
        if self._bad_column and self._reject is None:
            made[self._bad_column] = self._bad_records(records, bad)
        arrays = []
        for field in self._schema:
            array = made[field.name] if field.name in made else self._makers[field.name](records)
            arrays.append(array if array.type == field.type else array.cast(field.type))
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _without_bad(
        self, records: Records, raw: pa.Array, parsed: Parsed
    ) -> tuple[Records, pa.Array]:
        """Reject the bad records; return the others and their values."""
        assert self._reject is not None
        keys = records.keys()
        for index in sorted(parsed.bad):
            self._reject(
                RejectedRecord(
                    self._place,
                    int(records.offset[index]),
                    int(records.timestamp_ms[index]),
                    keys[index].as_py(),
                    raw[index].as_py(),
                    parsed.bad[index],
                )
            )
        kept = np.ones(records.size, dtype=bool)
        kept[list(parsed.bad)] = False
        return records.where(kept), parsed.array.filter(pa.array(kept))

    def _bad_records(self, records: Records, bad: dict[int, str]) -> pa.Array:
        if not bad:
            return pa.nulls(records.size, BAD_TYPE)
        values = records.values()
        rows: list[dict[str, Any] | None] = [None] * records.size
        for index, reason in bad.items():
            rows[index] = {
                "reason": reason,
                "topic": self._place.topic,
                "partition": self._place.partition,
                "offset": int(records.offset[index]),
                "value": values[index].as_py(),
            }
        return pa.array(rows, BAD_TYPE)

    def _constant(self, name: str, value: Any) -> Callable[[Records], pa.Array]:
        return lambda records: self._repeated(name, value, records.size)

    def _repeated(self, name: str, value: Any, count: int) -> pa.Array:
        made = self._constants.get(name)
        if made is None or len(made) < count:
            kind = self._schema.field(name).type
            made = self._constants[name] = pa.repeat(pa.scalar(value, kind), max(count, 1024))
        return made.slice(0, count)

    def _timestamps(self, records: Records) -> pa.Array:
        beyond = (records.timestamp_ms > _TIME_MS_MAX) | (records.timestamp_ms < -_TIME_MS_MAX)
        if beyond.any():
            at = int(beyond.argmax())
            raise BadRecord(
                f"the record at offset {records.offset[at]} of {self._place} has the timestamp "
                f"{records.timestamp_ms[at]} ms, which a column cannot hold; leave out the column "
                "timestamp, with the option columns"
            )
        return pa.array(records.timestamp_ms * 1000).view(pa.timestamp("us", "UTC"))
