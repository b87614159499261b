"""A day of records: the same for one seed, valid by its schema, and balanced with its counts."""

import json
from collections import Counter
from datetime import UTC, date, datetime

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema

from headrace.arrow.json_values import JsonParser
from headrace.pipeline.events import SCHEMAS
from headrace.pipeline.generate.block import DAY_MS, make_block, make_day
from headrace.pipeline.generate.faults import LATE_MS, Count
from headrace.pipeline.generate.site import make_site
from headrace.spark.ddl import parse_fields

DAY = date(2026, 11, 16)
START = int(datetime(2026, 11, 16, tzinfo=UTC).timestamp() * 1000)
COUNT = 40_000
SITE = make_site(1, 500)


def records_of(block, rows=10_000):
    """Timestamps, keys and values of each topic."""
    found = {}
    for pieces in block.pieces(rows):
        for piece in pieces:
            found.setdefault(piece.topic, []).append(piece)
    return {
        topic: (
            np.concatenate([piece.timestamp_ms for piece in pieces]),
            pa.concat_arrays([piece.key for piece in pieces]),
            pa.concat_arrays([piece.value for piece in pieces]),
        )
        for topic, pieces in found.items()
    }


@pytest.fixture(scope="module")
def day():
    return make_day(SITE, DAY, COUNT, 1)


@pytest.fixture(scope="module")
def records(day):
    return records_of(day)


def parsed(topic, values):
    kind = pa.struct(list(to_arrow_schema(parse_fields(SCHEMAS[topic]), timezone="UTC")))
    return JsonParser(kind).parse(values)


def test_a_day_has_as_many_records_as_asked_for(records):
    assert set(records) == set(SCHEMAS)
    assert sum(len(values) for _, _, values in records.values()) == COUNT


def test_one_seed_gives_the_same_bytes(records):
    again = records_of(make_day(make_site(1, 500), DAY, COUNT, 1), rows=7_777)
    for topic, (timestamps, keys, values) in records.items():
        assert (again[topic][0] == timestamps).all()
        assert again[topic][1] == keys and again[topic][2] == values
    other = records_of(make_day(SITE, DAY, COUNT, 2))
    assert other["page-views"][2] != records["page-views"][2]


def test_days_share_no_event_ids(records):
    next_day = records_of(make_day(SITE, date(2026, 11, 17), COUNT, 1))
    ids = [
        set(pa.compute.binary_slice(found[topic][2], 13, 29).to_pylist())
        for found in (records, next_day)
        for topic in SCHEMAS
    ]
    assert sum(map(len, ids)) == len(set.union(*ids))


@pytest.mark.parametrize("topic", SCHEMAS)
def test_events_have_their_schema_and_are_counted(day, records, topic):
    timestamps, _, values = records[topic]
    found = parsed(topic, values)
    count = day.counts[topic]
    assert len(found.bad) == count.broken
    good = np.flatnonzero(found.array.is_valid())
    assert set(json.loads(values[int(good[0])].as_py())) == set(found.array.type.names)
    at = found.array.field("at").cast(pa.timestamp("ms")).cast(pa.int64()).to_numpy(False)[good]
    delay = timestamps[good] - at
    in_time = (at >= START) & (at < START + 2 * DAY_MS)
    assert (~in_time).sum() == count.out_of_time
    ids = found.array.field("event_id").take(pa.array(good[in_time])).to_pylist()
    repeated = Counter(ids)
    assert len(repeated) == count.unique
    assert sum(repeated.values()) - len(repeated) == count.doubled
    first = np.unique(ids, return_index=True)[1]
    late = delay[in_time][first]
    assert ((late >= 60_000) & (late <= LATE_MS)).sum() == count.late
    assert (late > LATE_MS).sum() == count.too_late
    assert found.array.field("event_id").null_count == len(found.bad)


def test_a_few_events_after_the_day_close_it(records):
    for timestamps, _, values in records.values():
        after = timestamps >= START + DAY_MS
        assert after.sum() == 4 and after[-4:].all()
        assert timestamps[-1] >= START + DAY_MS + 3_600_000
        assert json.loads(values[-1].as_py())["at"].startswith("2026-11-17T01:0")


def test_timestamps_ascend_over_all_topics(day):
    last = 0
    for pieces in day.pieces(5_000):
        assert min(int(piece.timestamp_ms[0]) for piece in pieces) >= last
        assert all((np.diff(piece.timestamp_ms) >= 0).all() for piece in pieces)
        last = max(int(piece.timestamp_ms[-1]) for piece in pieces)


def test_the_day_has_its_rhythm(records):
    # Bots, which come at any hour, see no impressions.
    hours = np.bincount((records["impressions"][0] - START) // 3_600_000, minlength=24)[:24]
    assert hours[20] > 3 * hours[3]


def test_keys_are_the_people_and_machines_of_the_events(records):
    key_fields = {"page-views": "visitor", "posts": "member", "logins": "client", "metrics": "host"}
    for topic, field in key_fields.items():
        _, keys, values = records[topic]
        assert str(json.loads(values[0].as_py())[field]).encode() == keys[0].as_py()


def test_a_block_is_evenly_busy_and_may_be_cut_anywhere():
    block = make_block(SITE, START, 60_000, 6_000, 1, broken=False)
    total = Count()
    for since in range(START, START + 60_000, 1_000):
        pieces = block.between(since, since + 1_000)
        assert 20 < sum(len(piece.value) for piece in pieces) < 500
        for piece in pieces:
            total = total.plus(piece.counts)
    assert total.sent == 6_000 and total.broken == 0 and total.out_of_time == 0
    assert block.between(START + 60_000, START + 61_000) == []
