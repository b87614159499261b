"""The operations job: the same events in any batches give the same windows and the same alerts."""

from datetime import UTC, datetime, timedelta
from functools import partial

import numpy as np
import pyarrow as pa
import pytest

from headrace.pipeline.jobs import operations
from tests.spark.batches import (
    Batches,
    computed_by_duckdb,
    sorted_rows,
)
from tests.spark.streamed import finished_job

pytestmark = [pytest.mark.spark, pytest.mark.slow]

BATCHES = (1, 7, "streamed")

START = datetime(2026, 3, 7, 23, 30, tzinfo=UTC)
WAIT = timedelta(minutes=1)
RANK_ERROR = 0.017
OUTAGE = ("checkout", 20, 29)  # service, first minute and end: many errors, and slow


def events(seed, minutes=45):
    """Requests and metrics of three services on two hosts each; one has an outage.

    Some requests arrive too late for the alerts, and a few seem to arrive before they happen.
    """
    dice = np.random.default_rng(seed)
    count = minutes * 100
    services = np.array(["search", "checkout", "feed"])
    names = services[dice.integers(0, 3, count)]
    millis = np.sort(dice.integers(0, minutes * 60_000, count))
    service, first, end = OUTAGE
    is_out = (names == service) & (millis >= first * 60_000) & (millis < end * 60_000)
    failed = dice.random(count) < np.where(is_out, 0.4, 0.01)
    delay = dice.integers(0, np.where(dice.random(count) < 0.05, 540_000, 60_000))
    delay = np.where(dice.random(count) < 0.01, -240_000, delay)
    host = np.char.add(np.char.add(names, "-"), dice.integers(1, 3, count).astype(str))

    def happened(millis):
        at = np.datetime64(START.replace(tzinfo=None), "ms") + millis
        return pa.array(at).cast(pa.timestamp("us", "UTC"))

    requests = {
        "event_id": [f"request-{number}" for number in range(count)],
        "at": happened(millis),
        "host": host,
        "service": names,
        "method": ["GET"] * count,
        "path": ["/"] * count,
        "status": pa.array(np.where(failed, 503, 200), pa.int32()),
        "_arrived": happened(millis + delay),
        "duration_ms": np.round(dice.lognormal(3, 1, count) * np.where(is_out, 30, 1), 3),
    }
    samples = minutes * 6 * 6
    number = np.arange(samples)
    metrics = {
        "event_id": [f"metric-{n}" for n in number],
        "at": happened(number // 6 * 10_000),
        "host": np.char.add(np.char.add(services[number % 3], "-"), (number % 2 + 1).astype(str)),
        "service": services[number % 3],
        "cpu": np.round(dice.beta(2, 5, samples), 4),
        "io_read": dice.integers(0, 1_000_000, samples),
        "io_write": dice.integers(0, 1_000_000, samples),
    }
    return {"requests": pa.table(requests), "metrics": pa.table(metrics)}


@pytest.fixture(scope="module")
def raw():
    return events(seed=14)


@pytest.fixture(scope="module")
def job(batches, spark, raw, tmp_path_factory):
    directory = tmp_path_factory.mktemp("warehouse")
    with finished_job(spark, operations, raw, batches, directory) as job:
        yield job


@pytest.fixture(scope="module")
def states():
    """The rows of alerts of the first job that was checked."""
    return {}


@pytest.fixture
def expected(raw):
    """Rows that DuckDB computes from all events."""
    return partial(computed_by_duckdb, raw)


def test_hosts(job, expected):
    ours = job.table("host_minutes").toArrow()
    true = expected("""
        select host, date_trunc('minute', time) as minute,
            sum(cpu::decimal(28, 6))::decimal(38, 6) as cpu_sum, max(cpu) as cpu_max,
            sum(io_read)::bigint as io_read, sum(io_write)::bigint as io_write,
            count(*) as samples
        from metrics group by all
    """)
    assert ours.schema.field("cpu_sum").type == pa.decimal128(38, 6)
    assert ours.column_names == true.column_names
    assert sorted_rows(ours) == sorted_rows(true)


def test_services(job, expected):
    ours = job.table("service_minutes").toArrow()
    true = expected("""
        select service, host, date_trunc('minute', time) as minute, count(*) as requests,
            count(*) filter (status >= 500) as errors,
            count(*) filter (duration_ms >= 1000) as slow, list(duration_ms) as durations
        from requests group by all
    """)
    exact = true.column_names[:-1]
    assert sorted_rows(ours.select(exact)) == sorted_rows(true.select(exact))
    durations = {row[:3]: np.sort(row[-1]) for row in sorted_rows(true)}
    for row in ours.to_pylist():
        sample = durations[row["service"], row["host"], row["minute"]]
        for percent in (50, 95, 99):
            found = row[f"duration_p{percent}"]
            below = np.searchsorted(sample, found, "left") / len(sample)
            up_to = np.searchsorted(sample, found, "right") / len(sample)
            assert below - RANK_ERROR <= percent / 100 <= up_to + RANK_ERROR


def expected_alerts(counts, clock):
    """What the rules of the job say, in plain Python, of (service, minute, requests, bad...)."""
    found = []
    for place, (kind, (high, low)) in enumerate(operations.RULES.items()):
        for service in sorted({row[0] for row in counts}):
            state, streak, last = "ok", 0, None
            for _, minute, requests, *bad in sorted(row for row in counts if row[0] == service):
                if minute >= clock - WAIT:
                    break
                value = bad[place] / requests
                is_judged = requests >= operations.REQUESTS_TO_JUDGE
                follows = last is not None and minute - last == timedelta(minutes=1)
                streak = (streak if follows else 0) + 1 if is_judged and value >= high else 0
                last, before = minute, state
                if streak >= operations.MINUTES_TO_RAISE:
                    state = "raised"
                elif is_judged and value < low:
                    state = "ok"
                if state != before:
                    found.append((service, kind, minute, state, value))
    return sorted(found)


def test_alerts(job, expected, states):
    counts = expected("""
        select service, date_trunc('minute', least(time, _arrived)) as minute,
            count(*) as requests, count(*) filter (status >= 500) as errors,
            count(*) filter (duration_ms >= 1000) as slow
        from requests where _arrived <= time + interval 1 minute group by all
    """)
    arrived = expected("""
        select max(_arrived) as newest from requests where _arrived <= time + interval 1 minute
    """)
    clock = arrived["newest"][0].as_py().replace(second=0, microsecond=0)
    true = expected_alerts(sorted_rows(counts), clock)
    sent = [tuple(row.values()) for row in job.sent("operations-alerts")]
    assert sorted(sent) == true
    assert {alert[1] for alert in true} == {"errors", "slow"}
    rows = sorted_rows(job.table("service_alerts").toArrow())
    assert len(rows) == 6
    assert rows == states.setdefault("any", rows)  # also the state that people do not look at
    last = {alert[:2]: (alert[3], alert[2], alert[4]) for alert in sorted(true)}
    for row in rows:
        assert row[2:5] == last.get(row[:2], ("ok", None, None))


def test_an_alert_is_raised_after_three_minutes_and_cleared_below_the_lower_threshold(spark):
    job = Batches(spark, operations, only=["operations_alerts"])
    errors = {  # by minute: errors, requests
        0: (9, 20),
        1: (9, 20),
        2: (4, 4),  # too few requests
        3: (2, 20),
        4: (2, 20),  # no request in the next minute
        6: (9, 20),
        7: (9, 20),
        8: (2, 20),  # the third in a row
        9: (1, 20),  # between the thresholds
        10: (0, 4),
        11: (0, 20),
        12: (9, 20),
        13: (9, 20),
        14: (9, 20),
        15: (0, 20),  # not yet closed
        16: (0, 20),
    }
    rows = [
        {
            "event_id": f"{minute}-{number}",
            "at": START + timedelta(minutes=minute),
            "_arrived": START + timedelta(minutes=minute, seconds=1),
            "service": "feed",
            "status": 500 if number < failed else 200,
            "duration_ms": 1.0,
        }
        for minute, (failed, requests) in errors.items()
        for number in range(requests)
    ]
    schema = events(seed=1, minutes=1)["requests"].schema
    job.run({"requests": pa.Table.from_pylist(rows, schema)})
    sent = [
        (row["kind"], (row["since"] - START) // timedelta(minutes=1), row["state"], row["value"])
        for row in job.sent("operations-alerts")
    ]
    assert sent == [
        ("errors", 8, "raised", 0.1),
        ("errors", 11, "ok", 0.0),
        ("errors", 14, "raised", 0.45),
    ]
