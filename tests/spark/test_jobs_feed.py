"""The feed job: the same events in any batches give the feeds that a plain model computes."""

from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pytest

from headrace.pipeline.jobs import feed
from tests.spark.batches import Batches, arrivals, small_data
from tests.spark.streamed import finished_stream, with_constants

pytestmark = [pytest.mark.spark, pytest.mark.slow]

START = datetime(2026, 3, 7, 22, tzinfo=UTC)
LENGTH, POPULAR = 6, 9


@pytest.fixture(autouse=True)
def short_feeds(monkeypatch):
    monkeypatch.setattr(feed, "LENGTH", LENGTH)
    monkeypatch.setattr(feed, "POPULAR", POPULAR)


def events(seed, members=24, count=400):
    """Follows, of which a third are taken back, and activities; many have the same time."""
    dice = np.random.default_rng(seed)

    def columns(topic, count):
        at = np.datetime64(START.replace(tzinfo=None), "ms") + dice.integers(0, 900, count) * 12_000
        return {
            "event_id": [f"{topic}-{number}" for number in dice.permutation(count)],
            "at": pa.array(at).cast(pa.timestamp("us", "UTC")),
            "member": dice.integers(0, members, count),
        }

    # Some authors have many followers, and gain and lose them.
    follows = columns("follow", count) | {
        "followed": (members * dice.random(count) ** 2).astype(np.int64),
        "action": np.where(dice.random(count) < 0.65, "follow", "unfollow"),
    }
    posts = columns("post", count) | {
        "client": ["10.0.0.1"] * count,
        "post": np.arange(count),
        "category": ["books"] * count,
        "text": ["text"] * count,
    }
    votes = columns("vote", count) | {
        "item": dice.integers(0, 50, count),
        "category": pa.array(["music"] * count, mask=dice.random(count) < 0.2),
        "value": pa.array(dice.choice([1, -1], count), pa.int32()),
    }
    comments = columns("comment", count // 2) | {
        "post": dice.integers(0, count, count // 2),
        "comment": np.arange(count // 2),
        "text": ["text"] * (count // 2),
    }
    rows = {"follows": follows, "posts": posts, "votes": votes, "comments": comments}
    return {topic: pa.table(columns) for topic, columns in rows.items()}


class Model:
    """Feeds from all events at once, in plain Python."""

    def __init__(self, events, length=LENGTH, popular=POPULAR):
        self.length = length
        self.newest = {}
        for row in events["follows"].to_pylist():
            pair = row["member"], row["followed"]
            action = row["at"], row["event_id"], row["action"] == "follow"
            self.newest[pair] = max(action, self.newest.get(pair, action))
        self.followed = {}
        for (member, followed), (_, _, follows) in self.newest.items():
            if follows:
                self.followed.setdefault(member, set()).add(followed)
        self.followers = {}
        for followed in self.followed.values():
            for author in followed:
                self.followers[author] = self.followers.get(author, 0) + 1
        self.popular = {author for author, count in self.followers.items() if count >= popular}
        kinds = {"posts": "post", "votes": "item", "comments": "post", "follows": "followed"}
        self.activities = [
            {
                "at": row["at"],
                "event_id": row["event_id"],
                "actor": row["member"],
                "kind": topic[:-1],
                "object": row[kinds[topic]],
                "category": row.get("category"),
            }
            for topic, table in events.items()
            for row in table.to_pylist()
            if row.get("action") != "unfollow"
        ]

    def newest_of(self, authors):
        found = [entry for entry in self.activities if entry["actor"] in authors]
        return sorted(found, key=lambda e: (e["at"], e["event_id"]), reverse=True)[: self.length]

    def feeds(self):
        found = {}
        for member, followed in self.followed.items():
            entries = self.newest_of(followed - self.popular)
            popular = sorted(followed & self.popular)
            if entries or popular:
                found[member] = {"entries": entries, "popular": popular}
        return found

    def complete_feeds(self):
        found = {member: self.newest_of(followed) for member, followed in self.followed.items()}
        return {member: entries for member, entries in found.items() if entries}


def by_key(rows, *key):
    found = {}
    for row in rows:
        name = tuple(row.pop(column) for column in key)
        assert name not in found
        found[name[0] if len(name) == 1 else name] = row
    return found


def latest(sent, key):
    """What a reader of a compacted topic has."""
    found = {}
    for row in sent:
        name = row.pop(key)
        if row.pop("_deleted"):
            found.pop(name)  # nothing is deleted that is not there
        else:
            found[name] = row
    return found


def check(job, events):
    model = Model(events)
    feeds = by_key(job.table("feeds").toArrow().to_pylist(), "member")
    assert feeds == model.feeds()
    assert latest(job.sent("feeds"), "member") == feeds
    following = by_key(job.table("following").toArrow().to_pylist(), "member", "followed")
    assert {
        pair: (row["since"], row["event_id"], row["follows"]) for pair, row in following.items()
    } == model.newest
    popular = by_key(job.table("popular_authors").toArrow().to_pylist(), "actor")
    assert popular == {
        author: {"followers": model.followers[author], "entries": model.newest_of({author})}
        for author in model.popular
    }
    assert latest(job.sent("popular-authors"), "actor") == popular
    assert len(popular) > 2
    complete = feed.read_feed(job.table("feeds"), job.table("popular_authors"))
    assert {
        row["member"]: row["entries"] for row in complete.toArrow().to_pylist() if row["entries"]
    } == model.complete_feeds()


def test_batches_in_any_order_give_the_feeds_of_all_events(spark, batches):
    given = events(seed=5)
    with small_data(spark):
        job = Batches(spark, feed)
        for batch in arrivals(given, batches, seed=batches):
            job.run(batch)
        job.run_last_again()
        check(job, given)


@pytest.mark.long
def test_streams_give_the_feeds_of_all_events_and_so_does_a_backfill(spark, tmp_path):
    given = events(seed=5)
    short = {"LENGTH": str(LENGTH), "POPULAR": str(POPULAR)}
    file = with_constants(feed, tmp_path, short)
    with finished_stream(spark, file, given, tmp_path / "warehouse") as job:
        check(job, given)
        job.check_backfill()
