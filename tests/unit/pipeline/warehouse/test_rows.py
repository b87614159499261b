"""Rows and dead letters: every record is one or the other, judged by its own timestamp."""

from datetime import UTC, date, datetime

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.arrow.columns import open_sections
from headrace.arrow.json_values import JsonParser
from headrace.arrow.selection import select_batches
from headrace.model.ids import TopicPartition
from headrace.pipeline.warehouse.rows import (
    DEAD_LETTER_SCHEMA,
    EVENT_DATE,
    EVENT_HOUR,
    METADATA_COLUMNS,
    EventTime,
    RowBuilder,
    RowSettings,
    lost_letter,
)
from headrace.records.record import Record, build_batch

PLACE = TopicPartition("views", 3)
ID = bytes(range(16))
NOW = 1_795_000_000_000
DAY = 86_400_000
SCHEMA = pa.schema([("user", pa.int64()), ("at", pa.int64()), ("page", pa.string())])


def records_of(*records):
    made = [
        Record(offset, timestamp, b"key", value, (("h", b"1"),))
        for offset, (timestamp, value) in enumerate(records)
    ]
    data = build_batch(made)
    selected = select_batches(memoryview(data), 0, len(made), None, check_crcs=True)
    (found,) = open_sections(selected.sections)
    return found


def settings(**more):
    made = RowSettings(SCHEMA, True, True, (EVENT_DATE,), EventTime("at"), NOW)
    return made._replace(**more)


def build(settings, *records):
    parse = JsonParser(pa.struct(list(settings.value_schema))).parse if settings.is_struct else None
    (built,) = RowBuilder(settings, PLACE, ID, parse).build(records_of(*records))
    return built


def event(at, user=1):
    return b'{"user": %d, "at": %d, "page": "/"}' % (user, at)


def test_a_row_has_the_columns_of_value_and_record():
    built = build(settings(), (NOW, event(NOW - DAY, user=7)))
    ((values, rows),) = built.rows
    assert values == (
        (EVENT_DATE, datetime.fromtimestamp((NOW - DAY) / 1000, UTC).date().isoformat()),
    )
    (row,) = rows.to_pylist()
    assert (row["user"], row["at"], row["page"]) == (7, NOW - DAY, "/")
    assert row["_topic"] == "views" and row["_topic_id"] == "AAECAwQFBgcICQoLDA0ODw"
    assert (row["_partition"], row["_offset"], row["_key"]) == (3, 0, b"key")
    assert row["_headers"] == [{"key": "h", "value": b"1"}]
    assert row["_timestamp"] == row["_loaded_at"] == datetime.fromtimestamp(NOW / 1000, UTC)
    assert built.letters is None


def test_one_option_drops_the_columns_of_the_record():
    made = settings(with_metadata=False)
    assert made.table_schema.names == ["user", "at", "page", EVENT_DATE]
    ((_, rows),) = build(made, (NOW, event(NOW))).rows
    assert rows.schema.names == ["user", "at", "page"]
    assert settings().file_schema.names == [*SCHEMA.names, *METADATA_COLUMNS]


def test_raw_values_are_one_column():
    made = settings(
        value_schema=pa.schema([("value", pa.binary())]), is_struct=False, event_time=EventTime()
    )
    ((_, rows),) = build(made, (NOW, b"\xff"), (NOW, None)).rows
    assert rows.column("value").to_pylist() == [b"\xff", None]


def test_rows_are_partitioned_by_date_hour_and_column():
    made = settings(partition_by=(EVENT_DATE, EVENT_HOUR, "page"))
    assert made.file_schema.names[:2] == ["user", "at"] and "page" not in made.file_schema.names
    assert made.table_schema.field("page").type == pa.string()
    midnight = NOW // DAY * DAY
    built = build(
        made,
        (NOW, event(midnight - 1)),
        (NOW, event(midnight)),
        (NOW, b'{"at": %d, "page": null}' % midnight),
        (NOW, event(midnight - 2)),
    )
    today = date.fromordinal(date(1970, 1, 1).toordinal() + midnight // DAY)
    yesterday = date.fromordinal(today.toordinal() - 1)
    found = {
        tuple(value for _, value in values): rows.column("_offset").to_pylist()
        for values, rows in built.rows
    }
    assert found == {
        (str(yesterday), "23", "/"): [0, 3],
        (str(today), "0", "/"): [1],
        (str(today), "0", None): [2],
    }


def reasons(settings, *records):
    letters = build(settings, *records).letters
    if letters is None:
        return {}
    assert letters.schema == DEAD_LETTER_SCHEMA
    return {row["_offset"]: (row["stage"], row["reason"]) for row in letters.to_pylist()}


def test_event_time_is_judged_against_the_records_timestamp():
    old = NOW - 400 * DAY  # a load that starts a year late decides as one that kept up
    found = reasons(
        settings(),
        (old, event(old)),
        (old, event(old - 30 * DAY)),
        (old, event(old - 30 * DAY - 1)),
        (old, event(old + 3_600_000)),
        (old, event(old + 3_600_001)),
        (NOW, event(4_102_444_800_000)),
        (NOW, event(0)),
    )
    assert {offset: stage for offset, (stage, _) in found.items()} == dict.fromkeys(
        (2, 4, 5, 6), "event-time"
    )
    assert f"{old - 30 * DAY - 1} ms" in found[2][1] and f"{old} ms" in found[2][1]


def test_a_timestamp_after_the_drivers_clock_is_not_believed():
    year_2100 = 4_102_444_800_000
    found = reasons(settings(), (year_2100, event(year_2100)), (year_2100, event(NOW)))
    assert list(found) == [0]
    found = reasons(settings(event_time=EventTime()), (year_2100, event(NOW)), (NOW, event(0)))
    assert list(found) == [0]


def test_a_reload_has_no_lower_bound():
    assert reasons(settings(event_time=EventTime("at", past_ms=None)), (NOW, event(0))) == {}


def test_a_value_without_event_time_takes_the_records_timestamp():
    built = build(settings(), (NOW, b'{"user": 1}'), (NOW, None))
    assert built.letters is None
    ((values, rows),) = built.rows
    assert values[0][1] == datetime.fromtimestamp(NOW / 1000, UTC).date().isoformat()
    assert rows.column("user").to_pylist() == [1, None]


def test_records_without_a_usable_timestamp_are_dead_letters():
    plain = settings(event_time=EventTime())
    assert "has no timestamp" in reasons(plain, (-1, event(NOW)))[0][1]
    assert "is not a time" in reasons(plain, ((1 << 63) - 1, event(NOW)))[0][1]
    # With an event time, a missing timestamp only means that the driver's clock is compared with.
    assert reasons(settings(), (-1, event(NOW))) == {}


def test_a_dead_letter_keeps_the_record():
    built = build(settings(), (NOW, b"no json"), (NOW, event(NOW)))
    (letter,) = built.letters.to_pylist()
    assert letter["value"] == b"no json" and letter["_key"] == b"key"
    assert letter["_headers"] == [{"key": "h", "value": b"1"}]
    assert (letter["_offset"], letter["_offset_end"], letter["stage"]) == (0, 1, "decode")
    assert letter["_timestamp_ms"] == NOW


def test_records_that_do_not_fit_the_table_are_all_dead_letters():
    built = build(settings(conflict="column 'user' is long"), (NOW, event(NOW)), (NOW, None))
    assert built.rows == []
    assert built.letters.column("stage").to_pylist() == ["schema", "schema"]
    assert built.letters.column("reason").to_pylist() == ["column 'user' is long"] * 2


def test_the_letter_of_a_lost_range():
    (letter,) = lost_letter(PLACE, ID, 5, 12, NOW, "retention").to_pylist()
    assert (letter["_offset"], letter["_offset_end"], letter["stage"]) == (5, 12, "lost")


times = st.one_of(
    st.integers(NOW - 60 * DAY, NOW + 2 * DAY), st.sampled_from([-1, 0, 4_102_444_800_000])
)
values = st.one_of(
    st.none(), st.just(b"no json"), times.map(event), st.just(b'{"user": 1}'), st.just(b"{}")
)


@given(st.lists(st.tuples(times, values), min_size=1, max_size=12), st.booleans())
def test_every_record_is_a_row_or_a_dead_letter(records, from_value):
    made = settings(
        event_time=EventTime("at" if from_value else ""), partition_by=(EVENT_DATE, EVENT_HOUR)
    )
    built = build(made, *records)
    offsets = [n for _, rows in built.rows for n in rows.column("_offset").to_pylist()]
    if built.letters is not None:
        offsets += built.letters.column("_offset").to_pylist()
    assert sorted(offsets) == list(range(len(records)))
    for texts, rows in built.rows:
        assert rows.num_rows > 0
        latest = np.datetime64(NOW + 3_600_000, "ms").astype("datetime64[D]")
        assert np.datetime64(texts[0][1]) <= latest


@pytest.mark.parametrize("count", [32_768, 40_000])
def test_many_records_are_built_in_pieces(count):
    made = settings(
        value_schema=pa.schema([("value", pa.binary())]), is_struct=False, event_time=EventTime()
    )
    pieces = list(RowBuilder(made, PLACE, ID, None).build(records_of(*[(NOW, b"v")] * count)))
    assert sum(rows.num_rows for built in pieces for _, rows in built.rows) == count
