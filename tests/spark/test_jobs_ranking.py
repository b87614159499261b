"""The ranking job: the same events in any batches give what DuckDB computes from all of them."""

import math
from datetime import UTC, datetime, timedelta
from fractions import Fraction

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from headrace.pipeline.jobs import ranking
from tests.spark.batches import Batches, arrivals, small_data, sorted_rows
from tests.spark.streamed import finished_stream, with_constants

pytestmark = [pytest.mark.spark, pytest.mark.slow]

# Two eras: one begins in the middle of these events. A broker takes no records of the future.
START = datetime.fromtimestamp(370 * ranking.ERA_HOURS * 3600, UTC) - timedelta(hours=40)
HOURS = 80
TOP = 4


@pytest.fixture(autouse=True)
def short_rankings(monkeypatch):
    monkeypatch.setattr(ranking, "TOP", TOP)


def events(seed, count=1500, items=60):
    """Items of six categories; the last category has few items."""
    dice = np.random.default_rng(seed)

    def columns(topic, count):
        at = np.datetime64(START.replace(tzinfo=None), "ms")
        item = (items * dice.random(count) ** 2).astype(np.int64)
        return {
            "event_id": [f"{topic}-{number}" for number in range(count)],
            "at": pa.array(at + dice.integers(0, HOURS * 3_600_000, count)).cast(
                pa.timestamp("us", "UTC")
            ),
            "member": dice.integers(0, 100, count),
            "item": item,
            "category": np.where(item == 1, "rare", np.char.add("c", (item % 5).astype(str))),
        }

    shown = {"visitor": ["v1"] * count, "position": pa.array([1] * count, pa.int32())}
    rows = {
        "votes": columns("vote", count)
        | {"value": pa.array(dice.choice([1, 1, -1], count), pa.int32())},
        "ratings": columns("rating", count)
        | {"stars": pa.array(dice.integers(1, 6, count), pa.int32())},
        "impressions": columns("impression", count) | shown,
        "clicks": columns("click", count) | shown,
    }
    names = {topic: [c.split()[0] for c in _columns(topic)] for topic in rows}
    return {topic: pa.table(columns).select(names[topic]) for topic, columns in rows.items()}


def _columns(topic):
    return ranking.SCHEMAS[topic].split(", ")


def expected_scores(given):
    """Sums of weights, by DuckDB in whole numbers of any size."""
    votes, ratings, impressions, clicks = (
        given[topic] for topic in ("votes", "ratings", "impressions", "clicks")
    )
    assert all(len(table) for table in (votes, ratings, impressions, clicks))
    weights = pa.table({"step": range(len(ranking.WEIGHTS)), "base": ranking.WEIGHTS})
    assert len(weights) == 168
    return (
        duckdb.sql("""
        with events as (
            select category, item, "at", case when value > 0 then 4 else 0 end as likes,
                1 as opinions, 0 as clicks, 0 as impressions from votes
            union all select category, item, "at", stars - 1, 1, 0, 0 from ratings
            union all select category, item, "at", 0, 0, 1, 0 from clicks
            union all select category, item, "at", 0, 0, 0, 1 from impressions
        ),
        hours as (select *, epoch_ms("at") // 3600000 as hour from events),
        eras as (select *, hour // 1344 as era, hour % 1344 as hour_of_era from hours),
        weighed as (
            select *, base * (1::hugeint << (hour_of_era // 168)::int) as weight
            from eras join weights on hour_of_era % 168 = step
        )
        select category, item, era, sum(weight * likes)::bigint, sum(weight * opinions)::bigint,
            sum(weight * clicks)::bigint, sum(weight * impressions)::bigint, max("at")
        from weighed group by category, item, era
    """)
        .arrow()
        .read_all()
    )


def expected_rankings(given):
    """From the definition, in floating point: 2 ** (-age / half-life) for each event."""
    newest, counts = {}, {}
    kinds = {
        "votes": (1, 0, 0),
        "ratings": (1, 0, 0),
        "clicks": (0, 1, 0),
        "impressions": (0, 0, 1),
    }
    rows = [(topic, row) for topic, table in given.items() for row in table.to_pylist()]
    for _, row in rows:
        newest[row["category"]] = max(row["at"], newest.get(row["category"], row["at"]))

    def hour(at):
        return int(at.timestamp() // 3600)

    for topic, row in rows:
        age = hour(newest[row["category"]]) - hour(row["at"])
        weight = 2 ** (-age / ranking.HALF_LIFE_HOURS)
        like = {"votes": row.get("value") == 1, "ratings": (row.get("stars", 1) - 1) / 4}
        found = counts.setdefault((row["category"], row["item"]), [0.0] * 4)
        for place, count in enumerate((like.get(topic, 0), *kinds[topic])):
            found[place] += weight * count
    ranked = {}
    for (category, item), (likes, votes, clicks, impressions) in counts.items():
        rating = lower_bound(likes / votes, votes) if votes else 0
        rate = (clicks + 2) / (impressions + 100)
        ranked.setdefault(category, []).append((rating + rate, item, rating, votes))
    return {
        (category, rank): found
        for category, all_found in ranked.items()
        for rank, found in enumerate(sorted(all_found, reverse=True)[:TOP], 1)
    }


def lower_bound(share, count):
    """Wilson's, as in textbooks."""
    z = 1.96
    middle = share + z * z / (2 * count)
    spread = z * math.sqrt((share * (1 - share) + z * z / (4 * count)) / count)
    return (middle - spread) / (1 + z * z / count)


def run(spark, given, batches):
    job = Batches(spark, ranking)
    for batch in arrivals(given, batches, seed=batches):
        job.run(batch)
    job.run_last_again()
    return job


@pytest.mark.torture
def test_batches_in_any_order_give_the_rankings_of_all_events(spark, batch_counts):
    given = events(seed=3)
    with small_data(spark):
        jobs = [run(spark, given, count) for count in batch_counts]
        scores = [sorted_rows(job.table("item_scores").toArrow()) for job in jobs]
        rankings = [sorted_rows(job.table("rankings").toArrow()) for job in jobs]
    assert all(found == rankings[0] for found in rankings)
    for found in scores:
        check(given, found, rankings[0])


def check(given, scores, rankings):
    assert scores == sorted_rows(expected_scores(given))
    assert len({row[2] for row in scores}) == 2  # eras
    expected = expected_rankings(given)
    assert len(expected) == 5 * TOP + 1  # the rare category has one item
    assert {row[:2] for row in rankings} == set(expected)
    for category, rank, item, score, rating, _, votes, *_ in rankings:
        by_definition = expected[category, rank]
        assert item == by_definition[1]
        assert (score, rating, votes) == pytest.approx(
            (by_definition[0], by_definition[2], by_definition[3]), rel=1e-5
        )


@pytest.mark.long
def test_streams_give_the_rankings_of_all_events_and_so_does_a_backfill(spark, tmp_path):
    given = events(seed=3)
    file = with_constants(ranking, tmp_path, {"TOP": str(TOP)})
    with finished_stream(spark, file, given, tmp_path / "warehouse") as job:
        tables = (sorted_rows(job.table(name).toArrow()) for name in ("item_scores", "rankings"))
        check(given, *tables)
        job.check_backfill()


def test_only_touched_categories_are_ranked_again(spark):
    given = events(seed=4, count=200)
    votes = given["votes"]
    one = votes.filter(pa.compute.equal(votes["category"], "c2")).slice(0, 1)
    later = one.set_column(0, "event_id", pa.array(["later"]))
    with small_data(spark):
        job = run(spark, given, 1)
        before = {row["category"] for row in job.table("rankings").collect()}
        job.run({"votes": later})
    written = job.rows["rankings"][1].to_pylist()
    assert before == {"c0", "c1", "c2", "c3", "c4", "rare"}
    assert {row["category"] for row in written} == {"c2"}


def test_an_item_without_recent_events_leaves_the_ranking(spark):
    def vote(event_id, item, at):
        return {"event_id": [event_id], "at": pa.array([at], pa.timestamp("us", "UTC")),
                "member": [1], "item": [item], "category": ["books"],
                "value": pa.array([1], pa.int32())}  # fmt: skip

    with small_data(spark):
        job = Batches(spark, ranking)
        job.run({"votes": pa.table(vote("1", 7, START))})
        assert [row["item"] for row in job.table("rankings").collect()] == [7]
        years = timedelta(days=5 * 365)
        job.run({"votes": pa.table(vote("2", 8, START + years))})
        assert [row["item"] for row in job.table("rankings").collect()] == [8]


def test_weights_are_powers_of_two_to_the_last_bit():
    """The nearest whole number, whatever the floating point of this machine does."""
    for hour, weight in enumerate(ranking.WEIGHTS):
        exact = Fraction(2) ** (20 * ranking.HALF_LIFE_HOURS + hour)
        low, high = Fraction(2 * weight - 1, 2), Fraction(2 * weight + 1, 2)
        assert low**ranking.HALF_LIFE_HOURS < exact < high**ranking.HALF_LIFE_HOURS
