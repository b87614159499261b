"""A small warehouse of two days with the tables of the activity pipeline, from a seed."""

from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from deltalake import write_deltalake

DAY = date(2026, 11, 16)
START = datetime(2026, 11, 16, tzinfo=UTC)
LOADED = datetime(2026, 11, 17, 0, 20, tzinfo=UTC)
US = pa.timestamp("us", "UTC")
RHYTHM = np.array(
    [3, 2, 1, 1, 1, 2, 4, 7, 9, 10, 10, 11, 12, 11, 10, 10, 11, 12, 13, 14, 13, 10, 7, 5]
)
PAGES = [
    "/",
    "/shop/",
    "/shop/lamps",
    "/shop/chairs",
    "/blog/",
    "/blog/how-to-hang-a-lamp",
    "/about",
    "/help",
    "/cart",
    "/members/17",
    "/a/very/long/path/that/no/plot/has/room/for/in/one/line",
]
QUERIES = ["lamp", "red chair", "desk", "=cmd()", "<script>alert(1)</script>", "sofa bed", "zzz"]
SERVICES = ["web", "search", "feed", "images"]
KINDS = ["crawler", "login-guessing", "spam", "api-limit"]
Columns = dict[str, Any]


def write_warehouse(
    directory: Path, seed: int = 7, until: datetime | None = None, size: int = 6_000
) -> Path:
    """All tables. ``until`` cuts the second day off; otherwise events after midnight end it."""
    dice = np.random.default_rng(seed)
    end = until or START + timedelta(days=1)
    for topic, count, columns in _topics(dice, size):
        at = np.concatenate(
            [_times(dice, count, START - timedelta(days=1), 0.9), _times(dice, count, START, 1)]
        )
        at = np.sort(at)
        kept = at < _us(end)
        rows = {name: values[: len(at)][kept] for name, values in columns(2 * count).items()}
        at = at[kept]
        if until is None:  # events that end the day
            at = np.concatenate([at, _us(end) + np.arange(15, 20) * 60_000_000])
            rows = {name: np.concatenate([values, values[:5]]) for name, values in rows.items()}
        _write_topic(directory, topic, at, rows, dice)
    _write_letters(directory)
    _write_jobs(directory, dice, end)
    return directory


def _us(time: datetime) -> int:
    return round(time.timestamp() * 1_000_000)


def _times(dice, count, start, share):
    """Event times with a daily rhythm, in microseconds."""
    hours = dice.choice(24, round(count * share), p=RHYTHM / RHYTHM.sum())
    return _us(start) + hours * 3_600_000_000 + dice.integers(0, 3_600_000_000, len(hours))


def _topics(dice, size):
    def visit(count):
        return {"visitor": np.char.add("v", dice.zipf(1.3, count).clip(max=900).astype(str))}

    def views(count):
        pages = np.array(PAGES, object)[np.minimum(dice.geometric(0.28, count) - 1, len(PAGES) - 1)]
        return visit(count) | {"client": np.array(["c1"] * count, object), "page": pages}

    def searches(count):
        found = np.minimum(dice.geometric(0.35, count) - 1, len(QUERIES) - 1)
        results = np.where(found == len(QUERIES) - 1, 0, dice.integers(1, 90, count))
        return visit(count) | {
            "page": np.array(["/search"] * count, object),
            "query": np.array(QUERIES, object)[found],
            "results": results.astype("int32"),
        }

    def requests(count):
        service = dice.integers(0, len(SERVICES), count)
        outage = (service == 1) & (np.arange(count) % 97 < 30) & (np.arange(count) > count * 0.8)
        failed = outage | (dice.random(count) < 0.004)
        return {
            "service": np.array(SERVICES, object)[service],
            "host": np.array(["h1"] * count, object),
            "status": np.where(failed, 503, 200).astype("int32"),
            "duration_ms": dice.lognormal(3 + service * 0.5, 0.7),
        }

    def logins(count):
        return {"client": np.array(["c1"] * count, object), "succeeded": dice.random(count) < 0.9}

    return [
        ("page-views", size, views),
        ("searches", size // 5, searches),
        ("requests", 2 * size, requests),
        ("logins", size // 20, logins),
    ]


def _write_topic(directory, topic, at, rows, dice):
    """Rows as the load writes them; 2 % are doubled, and some are late."""
    count = len(at)
    ids = np.char.add(f"{topic}-", np.arange(count).astype(str))
    arrived = at + np.where(dice.random(count) < 0.01, 1_800_000_000, 500_000)
    order = np.argsort(arrived, kind="stable")
    order = np.concatenate([order, dice.choice(order, count // 50)])  # sent again
    places = np.arange(len(order))
    table = pa.table(
        {
            "event_id": pa.array(ids[order].tolist()),
            "at": pa.array(at[order], pa.int64()).cast(US),
            **{
                name: pa.array(values[order].tolist(), _type(values))
                for name, values in rows.items()
            },
            "_topic": pa.array([topic] * len(order)),
            "_topic_id": pa.array(["id-" + topic] * len(order)),
            "_partition": pa.array(places % 2, pa.int32()),
            "_offset": pa.array(places // 2, pa.int64()),
            "_timestamp": pa.array(arrived[order], pa.int64()).cast(US),
            "_loaded_at": pa.array([LOADED] * len(order), US),
            "event_date": pa.array(at[order], pa.int64()).cast(US).cast(pa.date32()),
        }
    )
    write_deltalake(str(directory / "raw" / topic), table, partition_by=["event_date"])


def _type(values):
    return pa.int32() if values.dtype == "int32" else None


def _write_letters(directory):
    rows = [
        ("page-views", 0, 4_000, "decode", "the value is no JSON: expected a value at 3"),
        ("page-views", 0, 4_000, "decode", "the value is no JSON: expected a value at 3"),  # again
        ("page-views", 1, 4_700, "decode", "the value is no JSON: expected a value at 41"),
        ("page-views", 1, 4_800, "event-time", "the event time, 4102444800000 ms, is too late"),
        (
            "page-views",
            1,
            900,
            "decode",
            "the value is no JSON: expected a value at 0",
        ),  # of the day before
    ]
    table = pa.table(
        {
            "_topic": [row[0] for row in rows],
            "_topic_id": ["id-" + row[0] for row in rows],
            "_partition": pa.array([row[1] for row in rows], pa.int32()),
            "_offset": pa.array([row[2] for row in rows], pa.int64()),
            "_offset_end": pa.array([row[2] + 1 for row in rows], pa.int64()),
            "_timestamp_ms": pa.array([0] * len(rows), pa.int64()),
            "_loaded_at": pa.array([LOADED] * len(rows), US),
            "stage": [row[3] for row in rows],
            "reason": [row[4] for row in rows],
        }
    )
    write_deltalake(str(directory / "raw" / "page-views" / "_dead_letters"), table)


def write_job(directory, name, rows, batch, written_at, query="q", types=None):
    """Append one batch to a job's table."""
    table = pa.Table.from_pylist(rows, schema=types)
    for column, value, kind in (
        ("_query", query, pa.string()),
        ("_batch", batch, pa.int64()),
        ("_written_at", written_at, US),
    ):
        table = table.append_column(column, pa.array([value] * len(rows), kind))
    write_deltalake(str(directory / name), table, mode="append", schema_mode="merge")


def _write_jobs(directory, dice, end):
    sessions = [
        _session(dice, number, START - timedelta(days=1) * (number % 2), end)
        for number in range(600)
    ]
    for batch, written in ((0, START), (1, LOADED)):
        write_job(directory, "sessions", sessions[batch * 300 : batch * 300 + 300], batch, written)
    write_job(directory, "sessions", [{**sessions[0], "_deleted": True}], 2, LOADED)
    for batch, as_of in ((0, START - timedelta(hours=1)), (1, end)):
        write_job(directory, "rankings", _rankings(dice, as_of), batch, LOADED)
    write_job(directory, "incidents", _incidents(dice), 0, LOADED)
    blocked = [
        {"client": f"10.0.0.{n}", "why": KINDS[n % 4], "since": START, "until": end}
        for n in range(3)
    ]
    write_job(directory, "blocked", blocked, 0, LOADED)
    alerts = [
        {
            "service": "search",
            "kind": "errors",
            "state": "ok",
            "since": START + timedelta(hours=19),
            "value": 0.31,
        },
        {
            "service": "images",
            "kind": "slow",
            "state": "raised",
            "since": START + timedelta(hours=22),
            "value": 0.12,
        },
    ]
    write_job(directory, "service_alerts", alerts, 0, LOADED)
    for batch, rows, failed in ((0, 900, 7), (1, 100, 2)):
        rules = [("has_visitor", failed), ("short_page", 0)]
        judged = [
            {
                "pipeline": "shop",
                "function": "page_views",
                "rule": rule,
                "rows": rows,
                "failed": bad,
            }
            for rule, bad in rules
        ]
        written = LOADED + timedelta(minutes=batch)
        write_job(directory, "expectations", judged, batch, written)
    found = [
        {"checked_at": LOADED, "tier": tier, "name": name, "topic": "page-views", "minute": START,
         "expected": 100, "found": 100, "doubled": 0}
        for tier, name in (("broker", ""), ("table", "raw/page-views"), ("job", "activity/10s"),
                           ("job", "security/1s"))
    ]  # fmt: skip
    write_deltalake(str(directory / "audit"), pa.Table.from_pylist(found))


def _session(dice, number, day, end):
    started = min(day + timedelta(seconds=int(dice.integers(0, 86_000))), end)
    views = int(dice.geometric(0.3))
    seconds = 0 if views == 1 else int(dice.lognormal(5, 1.2))
    pick = lambda: PAGES[min(int(dice.geometric(0.4)) - 1, 8)]  # noqa: E731
    return {
        "session_id": f"s{number}", "visitor": f"v{number % 200}", "started": started,
        "ended": started + timedelta(seconds=seconds), "seconds": seconds, "views": views,
        "entry": pick(), "exit": pick(), "day": started.date(), "_deleted": False,
    }  # fmt: skip


def _rankings(dice, as_of):
    found = []
    for category in ("chairs", "lamps", "sofas"):
        items = dice.permutation(20)[:10]
        for rank, item in enumerate(items.tolist(), 1):
            found.append(
                {"category": category, "rank": rank, "item": 1000 + item, "score": 1 - rank / 20,
                 "rating": 0.95 - rank / 20, "votes": 30.25, "clicks": 12, "impressions": 400,
                 "as_of": as_of}
            )  # fmt: skip
    return found


def _incidents(dice):
    found = []
    for number in range(14):
        since = START + timedelta(hours=int(dice.integers(1, 23)), minutes=number)
        found.append(
            {"incident_id": f"i{number}", "kind": KINDS[min(int(dice.geometric(0.5)) - 1, 3)],
             "client": f"10.0.0.{number}", "since": since, "until": since + timedelta(minutes=20),
             "evidence": {"events": 400 + number, "targets": 90, "allowed": 300, "seconds": 60},
             "score": 1.3}
        )  # fmt: skip
    return found
