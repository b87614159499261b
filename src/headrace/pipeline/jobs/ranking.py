"""Rankings: the top items of each category, by rating and click-through, newer events first.

An event counts half after each half-life. Sums of decayed counts merge in any order, to the byte:

- The weight of an event is ``2 ** (hours / half-life)``, with hours from a fixed start. New events
  weigh more; old sums never change.
- Weights are whole numbers (fixed point), from a table and a shift. No floating point is summed.
- Weights would overflow after some years, so time is cut into eras of eight half-lives, each with
  its own start and its own sums. A reader shifts the sums of the two eras before the newest one to
  the right by eight bits per era and leaves out older ones, whose events count less than 1/65,536.

A ranking is as of the newest event of its category, so it depends on the events alone.
"""

from typing import Any, Final

from pyspark.sql import DataFrame

from headrace.pipeline import example, source, step, table
from headrace.pipeline.events import EVENT_ID, EVENT_TIME, SCHEMAS

TOP: Final = 20  # items of a ranking
TRIGGER: Final = "10 seconds"
EVENTS: Final = {
    "event_time": EVENT_TIME,
    "event_id": EVENT_ID,
    "lateness": "10 minutes",
    "late": "recompute",
}
HALF_LIFE_HOURS: Final = 7 * 24
ERA_HALF_LIVES: Final = 8
ERA_HOURS: Final = ERA_HALF_LIVES * HALF_LIFE_HOURS
ERAS_BEFORE: Final = 2  # that count, beside the newest
# 20 bits after the point. In an era an event weighs at most 2 ** 28, in quarters 2 ** 30: the sums
# of an item have room for 2 ** 33 events.
WEIGHTS: Final = tuple(round(2 ** (20 + h / HALF_LIFE_HOURS)) for h in range(HALF_LIFE_HOURS))

Z: Final = 1.96  # standard deviations of the lower bound: 97.5 % are above it
# An item without impressions has the click-through of 2 clicks in 100 impressions.
PRIOR_CLICKS: Final = 2
PRIOR_IMPRESSIONS: Final = 100
SCORES: Final = """category string, item long, era long, likes long, opinions long, clicks long,
    impressions long, newest timestamp"""


@source("votes", schema=SCHEMAS["votes"], **EVENTS)
def votes(records: DataFrame) -> DataFrame:
    return records


@source("ratings", schema=SCHEMAS["ratings"], **EVENTS)
def ratings(records: DataFrame) -> DataFrame:
    return records


@source("impressions", schema=SCHEMAS["impressions"], **EVENTS)
def impressions(records: DataFrame) -> DataFrame:
    return records


@source("clicks", schema=SCHEMAS["clicks"], **EVENTS)
def clicks(records: DataFrame) -> DataFrame:
    return records


def _era(at: str) -> str:
    return f"unix_seconds({at}) div {ERA_HOURS * 3600}"


def _weight(at: str) -> str:
    """The weight of an event at this time, as SQL."""
    table = ", ".join(f"{weight}L" for weight in WEIGHTS)
    hour = f"int(unix_seconds({at}) div 3600 % {ERA_HOURS})"
    return f"""shiftleft(element_at(array({table}), {hour} % {HALF_LIFE_HOURS} + 1),
        int({hour} div {HALF_LIFE_HOURS}))"""


@step
def new_scores(
    votes: DataFrame, ratings: DataFrame, impressions: DataFrame, clicks: DataFrame
) -> str:
    """Decayed sums of this batch. A vote or rating is an opinion of 0 to 4 quarters of a like."""
    return f"""
        with events as (
            select category, item, at, if(value > 0, 4, 0) as likes, 1 as opinions, 0 as clicks,
                0 as impressions
            from votes
            union all
            select category, item, at, stars - 1, 1, 0, 0 from ratings where stars between 1 and 5
            union all
            select category, item, at, 0, 0, 1, 0 from clicks
            union all
            select category, item, at, 0, 0, 0, 1 from impressions
        ),
        weighted as (
            select *, {_era("at")} as era, {_weight("at")} as weight
            from events
            where category is not null and item is not null
        )
        select category, item, era, sum(weight * likes) as likes,
            sum(weight * opinions) as opinions, sum(weight * clicks) as clicks,
            sum(weight * impressions) as impressions, max(at) as newest
        from weighted
        group by category, item, era
    """


@table(
    key=["category", "item", "era"],
    merge={
        "likes": "sum",
        "opinions": "sum",
        "clicks": "sum",
        "impressions": "sum",
        "newest": "max",
    },
    schema=SCORES,
    trigger=TRIGGER,
)
def item_scores(new_scores: DataFrame) -> DataFrame:
    return new_scores


@step
def totals(new_scores: DataFrame, item_scores: DataFrame) -> str:
    """Decayed counts of each item of the touched categories, as of the category's newest event."""

    def total(column: str) -> str:
        """Only whole sums are shifted: shifting parts would lose their last bits."""
        now = _era("as_of")
        return f"sum(shiftright({column}, int({ERA_HALF_LIVES} * ({now} - era)))) as {column}"

    return f"""
        with scores as (
            select category, item, era, sum(likes) as likes, sum(opinions) as opinions,
                sum(clicks) as clicks, sum(impressions) as impressions, max(newest) as newest
            from (
                select * from new_scores
                union all
                select /*+ broadcast(new_scores) */ *
                from item_scores left semi join new_scores using (category)
                distribute by category
            )
            group by category, item, era
        ),
        dated as (
            select *, max(newest) over (partition by category) as as_of from scores
        )
        select category, item, as_of, {total("likes")}, {total("opinions")}, {total("clicks")},
            {total("impressions")}
        from dated
        where era >= {_era("as_of")} - {ERAS_BEFORE}
        group by category, item, as_of
    """


@table(key=["category", "rank"], trigger=TRIGGER)
def rankings(totals: DataFrame) -> str:
    """The top items of the touched categories; ranks without an item are deleted.

    ``rating`` is Wilson's lower bound of the share of likes, ``click_rate`` the click-through with
    its prior, and ``score`` their sum. Counts are decayed.
    """
    square = Z * Z
    return f"""
        with weighed as (select *, double({_weight("as_of")}) as weight from totals),
        counted as (
            select category, item, as_of, likes / 4 / weight as likes, opinions / weight as votes,
                clicks / weight as clicks, impressions / weight as impressions
            from weighed
        ),
        rated as (
            select *, (clicks + {PRIOR_CLICKS}) / (impressions + {PRIOR_IMPRESSIONS}) as click_rate,
                if(votes = 0, 0D, greatest(0D, (likes + {square / 2}D - {Z}D * sqrt(
                    likes * (votes - likes) / votes + {square / 4}D)) / (votes + {square}D)))
                    as rating
            from counted
        ),
        top as (
            select category, max_by(
                struct(item, rating + click_rate as score, rating, click_rate, votes, clicks,
                    impressions, as_of),
                struct(rating + click_rate as score, -item as item), {TOP}) as items
            from rated
            group by category
        )
        select category, rank, item.*, item is null as _deleted
        from (
            select category, rank, try_element_at(items, rank) as item
            from top lateral view explode(sequence(1, {TOP})) as rank
        )
    """


@example
def a_liked_item_is_first_and_a_doubled_vote_counts_once() -> tuple[Any, dict[str, Any]]:
    vote = {"event_id": "1", "at": "2026-03-01T12:00:00Z", "category": "c", "item": 7, "value": 1}
    against = {**vote, "event_id": "2", "item": 8, "value": -1}
    return (
        {"votes": [against, vote, vote]},
        {
            "rankings": [
                {"category": "c", "rank": 1, "item": 7, "votes": 1.0},
                {"category": "c", "rank": 2, "item": 8, "votes": 1.0},
            ]
        },
    )
