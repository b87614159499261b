"""The security job: the same events in any batches give the same incidents, each alerted once."""

import json
from collections import Counter
from datetime import UTC, date, datetime, timedelta

import numpy as np
import pyarrow as pa
import pytest

from headrace.pipeline.generate.block import make_day
from headrace.pipeline.generate.sending import bots_of
from headrace.pipeline.generate.site import make_site
from headrace.pipeline.jobs import security
from tests.spark.batches import Batches, arrivals, small_data, sorted_rows
from tests.spark.streamed import finished_stream, with_constants

pytestmark = [pytest.mark.spark, pytest.mark.slow]

START = datetime(2026, 3, 7, 22, 30, tzinfo=UTC)  # two days: the events go on past midnight
HOUR = timedelta(hours=1)
SECONDS = 4 * 3600
DAY, MEMBERS = date(2026, 3, 7), 300  # generated
LIMITS = {"crawler": 8, "scraper": 8, "spam": 5, "login-guessing": 5, "api-limit": 15}
LEAST_PAGES = 5


@pytest.fixture
def low_limits(monkeypatch):
    rules = tuple(
        security.Rule(kind, limit, LEAST_PAGES if kind in ("crawler", "scraper") else 1)
        for kind, limit in LIMITS.items()
    )
    monkeypatch.setattr(security, "RULES", rules)
    monkeypatch.setattr(security, "TARGETS", LEAST_PAGES)


def table(topic, columns, at):
    """An Arrow table of a topic; what a rule does not read is null."""
    count = len(at)
    known = {
        "event_id": [f"{topic}-{number}" for number in range(count)],
        "at": pa.array(at).cast(pa.timestamp("us", "UTC")),
    } | columns
    names = [column.split()[0] for column in security.SCHEMAS[topic].split(", ")]
    return pa.table({name: known.get(name, pa.nulls(count)) for name in names})


def events(seed, count=1500, clients=25):
    """Clients who are sometimes busy; a client in two is busy with one page only."""
    dice = np.random.default_rng(seed)

    def times_and_clients(count):
        client = (clients * dice.random(count) ** 3).astype(np.int64)
        burst = dice.integers(0, 6, count) * 2400 + client * 97 % 600
        seconds = np.minimum(burst + dice.exponential(240, count), SECONDS)
        at = np.datetime64(START.replace(tzinfo=None), "ms") + (seconds * 1000).astype(np.int64)
        return at, client, np.char.add("10.0.0.", client.astype(str))

    at, client, name = times_and_clients(3 * count)
    page = np.where(client % 2, 0, dice.integers(0, 30, len(at)))
    agents = np.array(["ExampleBot/2", "Firefox"])
    page_views = table(
        "page-views",
        {
            "client": name,
            "page": np.char.add("/", page.astype(str)),
            "agent": agents[client // 2 % 2],
            "referrer": pa.array(["/"] * len(at), mask=dice.random(len(at)) < 0.6),
        },
        at,
    )
    at, _, name = times_and_clients(count)
    posts = table("posts", {"client": name, "text": ["buy"] * count}, at)
    at, _, name = times_and_clients(count)
    failed = {"client": name, "account": ["ann"] * count, "succeeded": dice.random(count) < 0.3}
    logins = table("logins", failed, at)
    at, _, name = times_and_clients(2 * count)
    calls = table("api-calls", {"client": name, "endpoint": ["/v1"] * len(at)}, at)
    return {"page-views": page_views, "posts": posts, "logins": logins, "api-calls": calls}


class Model:
    """Incidents and blocks from all events at once, in plain Python."""

    def __init__(self, events, limits=LIMITS, least_pages=LEAST_PAGES):
        self.limits, self.least_pages = limits, least_pages
        self.buckets = {}
        self.newest = datetime.min.replace(tzinfo=UTC)
        for row in events["page-views"].to_pylist():
            if row["referrer"] is None:
                kind = "crawler" if "Bot" in row["agent"] else "scraper"
                self._add(kind, row, row["page"])
        for row in events["posts"].to_pylist():
            self._add("spam", row, row["text"])
        for row in events["logins"].to_pylist():
            if not row["succeeded"]:
                self._add("login-guessing", row, row["account"])
        for row in events["api-calls"].to_pylist():
            self._add("api-limit", row, row["endpoint"])

    def _add(self, kind, row, target):
        bucket = row["at"].replace(second=row["at"].second // 10 * 10, microsecond=0)
        found = self.buckets.setdefault((kind, row["client"]), {})
        found.setdefault(bucket, []).append(target)
        self.newest = max(self.newest, bucket)

    def incidents(self):
        found = {}
        for (kind, client), buckets in self.buckets.items():
            least = self.least_pages if kind in ("crawler", "scraper") else 1
            for last in buckets:
                targets = [
                    target
                    for back in range(6)
                    for target in buckets.get(last - timedelta(seconds=10 * back), [])
                ]
                if len(targets) >= self.limits[kind] and len(set(targets)) >= least:
                    incident = found.setdefault(f"{kind}/{client}/{last.date()}", [])
                    incident.append((last, len(targets)))
        return {
            name: (
                min(last for last, _ in windows),
                max(last for last, _ in windows) + timedelta(seconds=10),
                max(events for _, events in windows),
            )
            for name, windows in found.items()
        }

    def blocks(self):
        found = {}
        for name, (since, until, _) in self.incidents().items():
            kind, client, _ = name.split("/")
            if until + HOUR > self.newest:
                why, first, last = found.get(client, (set(), since, until + HOUR))
                found[client] = (why | {kind}, min(first, since), max(last, until + HOUR))
        return {client: (", ".join(sorted(why)), *times) for client, (why, *times) in found.items()}


def latest(sent):
    """What a reader of the block list has."""
    found = {}
    for row in sent:
        if row["_deleted"]:
            assert found.pop(row["client"], None), "ends a block that is not there"
        else:
            found[row["client"]] = (row["why"], row["since"], row["until"])
    return found


def check(job, events):
    model = Model(events)
    incidents = job.table("incidents").toArrow().to_pylist()
    expected = model.incidents()
    assert {
        row["incident_id"]: (row["since"], row["until"], row["evidence"]["events"])
        for row in incidents
    } == expected
    kinds = Counter(row["kind"] for row in incidents)
    assert kinds.keys() == LIMITS.keys() and len({name[-10:] for name in expected}) == 2
    alerts = [row["incident_id"] for row in job.sent("alerts")]
    assert sorted(alerts) == sorted(expected)
    blocked = job.table("blocked").toArrow().to_pylist()
    blocks = {row["client"]: (row["why"], row["since"], row["until"]) for row in blocked}
    assert blocks == model.blocks()
    assert latest(job.sent("block-list")) == blocks
    known = {
        (row.kind, row.client): row.buckets[-1].bucket for row in job.table("clients").collect()
    }
    clock = known.pop(("clock", ""))
    assert known and min(known.values()) > clock - timedelta(minutes=30), "others are forgotten"
    return sorted_rows(job.table("clients").toArrow()), sorted(map(repr, incidents))


@pytest.mark.torture
@pytest.mark.usefixtures("low_limits")
def test_batches_in_any_order_give_the_incidents_of_all_events(spark, batch_counts):
    given = events(seed=7)
    found = []
    with small_data(spark):
        for batches in batch_counts:
            job = Batches(spark, security)
            for batch in arrivals(given, batches, seed=batches):
                job.run(batch)
            job.run_last_again()
            found.append(check(job, given))
    assert all(one == found[0] for one in found)
    ended = [row["client"] for row in job.sent("block-list") if row["_deleted"]]
    assert ended, "a block ends in the middle"


@pytest.mark.long
def test_streams_give_the_incidents_of_all_events_and_so_does_a_backfill(spark, tmp_path):
    given = events(seed=7)
    rules = ", ".join(
        f"Rule({kind!r}, {limit}, {LEAST_PAGES if kind in ('crawler', 'scraper') else 1})"
        for kind, limit in LIMITS.items()
    )
    file = with_constants(security, tmp_path, {"RULES": f"({rules})"})
    with finished_stream(spark, file, given, tmp_path / "warehouse") as job:
        check(job, given)
        job.check_backfill()


def generated(topics, count, seed, lateness_s=600):
    """Events of a generated day that are not later than this, once each, by topic."""
    site = make_site(seed, MEMBERS)
    day = make_day(site, DAY, count, seed, broken=False)
    rows, seen = {topic: [] for topic in topics}, set()
    for pieces in day.pieces():
        for piece in pieces:
            if piece.topic in topics:
                for value, sent_ms in zip(piece.value.to_pylist(), piece.timestamp_ms, strict=True):
                    row = json.loads(value)
                    row["at"] = datetime.fromisoformat(row["at"])
                    late = sent_ms / 1000 - row["at"].timestamp()
                    in_time = lateness_s is None or late <= lateness_s
                    if row["event_id"] not in seen and in_time:
                        seen.add(row["event_id"])
                        rows[piece.topic].append(row)
    return site, {topic: pa.Table.from_pylist(found) for topic, found in rows.items()}


def test_bots_of_a_generated_day_are_found_and_people_are_not(spark):
    names = {
        "crawler": "crawler", "scraper": "scraper", "login guessing": "login-guessing",
        "spam": "spam", "over the API limit": "api-limit",
    }  # fmt: skip
    topics = ("page-views", "posts", "logins", "api-calls")
    site, given = generated(topics, 40_000, seed=2)
    planted = {
        (names[kind], client) for kind, clients in bots_of(site).items() for client in clients
    }
    acted = {
        (kind, client)
        for kind, client in planted
        if any(client in table["client"].unique().to_pylist() for table in given.values())
    }
    with small_data(spark):
        job = Batches(spark, security)
        for batch in arrivals(given, 3, seed=1):
            job.run(batch)
        found = {(row["kind"], row["client"]) for row in job.table("incidents").collect()}
        alerts = Counter(row["incident_id"] for row in job.sent("alerts"))
    assert {kind for kind, _ in found} == set(names.values())
    assert found <= planted, "no habit of people or usual API clients is an incident"
    assert found == acted - quiet_bots(given, acted)
    assert set(alerts.values()) == {1}


def quiet_bots(given, bots):
    """Bots that have fewer events in the whole day than a window may have."""
    limits = {rule.kind: rule.events for rule in security.RULES}
    tables = {"crawler": "page-views", "scraper": "page-views", "spam": "posts",
              "login-guessing": "logins", "api-limit": "api-calls"}  # fmt: skip
    counts = {name: Counter(table["client"].to_pylist()) for name, table in given.items()}
    return {(kind, client) for kind, client in bots if counts[tables[kind]][client] < limits[kind]}
