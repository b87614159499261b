"""News feeds: for each member the newest activities of the members they follow now.

An activity is a post, a vote, a comment or a follow. Ordinary authors are *pushed*: a batch writes
their activities into the feed of each follower. Authors with very many followers are *pulled*: a
batch writes their activities once, to ``popular_authors``, and a reader joins them (``read_feed``).
Crossing the limit costs as much as one activity that is pushed.

A feed depends on the events alone, not on the batches that bring them. The newest action of a pair
of members decides whether one follows the other, and only the newest activities of each author can
be in a feed. So a batch adds new entries to a feed, and builds a feed from its authors again only
where entries must go.
"""

from typing import Any, Final

from pyspark.sql import DataFrame

from headrace.pipeline import example, source, step, table, topic
from headrace.pipeline.events import EVENT_ID, EVENT_TIME, SCHEMAS

LENGTH: Final = 50  # of a feed
POPULAR: Final = 500  # followers from which on an author is pulled
TRIGGER: Final = "5 seconds"
EVENTS: Final = {
    "event_time": EVENT_TIME,
    "event_id": EVENT_ID,
    "lateness": "10 minutes",
    "late": "recompute",
}
# Entries are sorted by all their fields, so the newest come first and ties are broken by the ID.
ENTRIES: Final = """array<struct<at: timestamp, event_id: string, actor: bigint, kind: string,
    object: bigint, category: string>>"""
AUTHORS: Final = f"actor long, followers long, entries {ENTRIES}"
NO_ENTRIES: Final = f"cast(array() as {ENTRIES})"
NO_AUTHORS: Final = "cast(array() as array<bigint>)"


@source("follows", schema=SCHEMAS["follows"], **EVENTS)
def follows(records: DataFrame) -> DataFrame:
    return records


@source("posts", schema=SCHEMAS["posts"], **EVENTS)
def posts(records: DataFrame) -> DataFrame:
    return records


@source("votes", schema=SCHEMAS["votes"], **EVENTS)
def votes(records: DataFrame) -> DataFrame:
    return records


@source("comments", schema=SCHEMAS["comments"], **EVENTS)
def comments(records: DataFrame) -> DataFrame:
    return records


@step
def new_activities(
    posts: DataFrame, votes: DataFrame, comments: DataFrame, follows: DataFrame
) -> str:
    return """
        select event_id, at, member as actor, 'post' as kind, post as object, category from posts
        union all
        select event_id, at, member, 'vote', item, category from votes
        union all
        select event_id, at, member, 'comment', post, null from comments
        union all
        select event_id, at, member, 'follow', followed, null from follows where action = 'follow'
    """


@table(key=["event_id"], trigger=TRIGGER)
def activities(new_activities: DataFrame) -> DataFrame:
    return new_activities


@step
def new_follows(follows: DataFrame, following: DataFrame) -> str:
    """The newest action of each pair, if it is newer than the known one."""
    return """
        with actions as (
            select member, followed, struct(at, event_id, action = 'follow' as follows) as action,
                false as is_known
            from follows
            union all
            select /*+ broadcast(follows) */ member, followed,
                struct(since as at, event_id, follows), true
            from following left semi join follows using (member, followed)
        ),
        newest as (
            select member, followed, max(action) as new,
                max(action) filter (where is_known) as known
            from actions
            group by member, followed
        )
        select member, followed, new.at as since, new.event_id, new.follows,
            coalesce(known.follows, false) as followed_before
        from newest
        where known is null or new <> known
    """


@table(
    key=["member", "followed"],
    schema="member long, followed long, since timestamp, event_id string, follows boolean",
    trigger=TRIGGER,
)
def following(new_follows: DataFrame) -> DataFrame:
    """Pairs whose newest action is an unfollow stay: a follow from before it may come later."""
    return new_follows.drop("followed_before")


@step
def changed_authors(new_activities: DataFrame, new_follows: DataFrame, authors: DataFrame) -> str:
    """Authors with new activities or another number of followers, before and after this batch.

    ``fresh`` are the entries that are new; an activity that came before is not among them.
    """
    return f"""
        with touched as (
            select actor, struct(at, event_id, actor, kind, object, category) as entry,
                0 as gained
            from new_activities
            union all
            select followed, null, int(follows) - int(followed_before)
            from new_follows
            where follows <> followed_before
        ),
        parts as (
            select actor, entry, gained, null as known from touched
            union all
            select /*+ broadcast(touched) */ actor, null, 0, struct(followers, entries)
            from authors left semi join touched using (actor)
        ),
        joined as (
            select actor, max_by(entry, entry, {LENGTH}) as acted, sum(gained) as gained,
                coalesce(max(known), struct(0L as followers, {NO_ENTRIES} as entries)) as known
            from parts
            group by actor
        ),
        sorted as (
            select actor, known, known.followers + gained as followers, slice(sort_array(
                array_union(known.entries, coalesce(acted, {NO_ENTRIES})), false), 1, {LENGTH})
                as entries
            from joined
        )
        select actor, followers, entries, array_except(entries, known.entries) as fresh,
            known.followers >= {POPULAR} as was_popular, followers >= {POPULAR} as is_popular
        from sorted
    """


@table(key=["actor"], schema=AUTHORS, trigger=TRIGGER)
def authors(changed_authors: DataFrame) -> str:
    """The newest activities of each author: all that a feed can need of them."""
    return """
        select actor, followers, entries, followers = 0 and size(entries) = 0 as _deleted
        from changed_authors
    """


@table(key=["actor"], schema=AUTHORS, trigger=TRIGGER)
def popular_authors(changed_authors: DataFrame) -> str:
    return """
        select actor, followers, entries, not is_popular as _deleted
        from changed_authors
        where was_popular or is_popular
    """


@topic("popular-authors", key="actor", compacted=True, trigger=TRIGGER)
def popular_authors_topic(changed_authors: DataFrame) -> str:
    return popular_authors(changed_authors)


@step
def touched_pairs(new_follows: DataFrame, changed_authors: DataFrame, following: DataFrame) -> str:
    """Pairs of follower and author that change a feed, as they were and as they are.

    A pair is pushed, pulled, or neither. Activities of an author who stays popular touch no pair.
    """
    return """
        with spreading as (
            select actor from changed_authors
            where was_popular <> is_popular or not is_popular and size(fresh) > 0
        ),
        pairs as (
            select member, followed as actor, followed_before, follows
            from new_follows
            where follows <> followed_before
            union all
            select /*+ broadcast(spreading) */ member, followed, true, true
            from following left semi join spreading on followed = actor
            where follows
        )
        select /*+ broadcast(changed_authors) */ member, actor,
            followed_before and not was_popular as was_pushed,
            follows and not is_popular as is_pushed,
            followed_before and was_popular as was_pulled,
            follows and is_popular as is_pulled,
            entries, fresh
        from pairs join changed_authors using (actor)
    """


@step
def rebuilt_pairs(
    touched_pairs: DataFrame,
    new_follows: DataFrame,
    changed_authors: DataFrame,
    following: DataFrame,
    authors: DataFrame,
) -> str:
    """All pairs of the members from whose feeds entries must go."""
    return f"""
        with rebuilt as (
            select distinct member from touched_pairs
            where was_pushed and not is_pushed or was_pulled and not is_pulled
        ),
        unfollowed as (select member, followed from new_follows where not follows),
        pairs as (
            select member, null as actor from rebuilt
            union all
            select /*+ broadcast(rebuilt), broadcast(unfollowed) */ member, followed
            from following left semi join rebuilt using (member)
                left anti join unfollowed using (member, followed)
            where follows
            union all
            select /*+ broadcast(rebuilt) */ member, followed
            from new_follows left semi join rebuilt using (member)
            where follows and not followed_before
        ),
        known as (
            select /*+ broadcast(pairs) */ actor, followers, entries
            from authors left semi join pairs using (actor)
        )
        select /*+ broadcast(changed_authors) */ member, actor,
            coalesce(is_popular, known.followers >= {POPULAR}) as is_popular,
            coalesce(changed_authors.entries, known.entries) as entries
        from pairs left join known using (actor) left join changed_authors using (actor)
    """


@step
def changed_feeds(touched_pairs: DataFrame, rebuilt_pairs: DataFrame, feeds: DataFrame) -> str:
    """Feeds that this batch changes; one without any entry and popular author is deleted."""

    def joined(column: str) -> str:
        return f"""flatten(if(bool_or(is_rebuilt),
            collect_list({column}) filter (where is_rebuilt),
            collect_list({column}) filter (where not is_rebuilt)))"""

    return f"""
        with parts as (
            select member, true as is_rebuilt, if(is_popular, {NO_ENTRIES}, entries) as entries,
                if(is_popular, array(actor), {NO_AUTHORS}) as popular, null as known
            from rebuilt_pairs
            union all
            select member, false,
                case when is_pushed and was_pushed then fresh when is_pushed then entries end,
                if(is_pulled and not was_pulled, array(actor), {NO_AUTHORS}), null
            from touched_pairs
            union all
            select /*+ broadcast(touched_pairs) */ member, false, entries, popular,
                struct(entries, popular)
            from feeds left semi join touched_pairs using (member)
        ),
        joined as (
            select member, slice(sort_array({joined("entries")}, false), 1, {LENGTH}) as entries,
                sort_array({joined("popular")}) as popular,
                coalesce(max(known),
                    struct({NO_ENTRIES} as entries, {NO_AUTHORS} as popular)) as known
            from parts
            group by member
        )
        select member, entries, popular, size(entries) + size(popular) = 0 as _deleted
        from joined
        where entries <> known.entries or popular <> known.popular
    """


@table(
    key=["member"],
    schema=f"member long, entries {ENTRIES}, popular array<long>",
    trigger=TRIGGER,
)
def feeds(changed_feeds: DataFrame) -> DataFrame:
    """``popular`` names the followed authors whose entries a reader adds; see ``read_feed``."""
    return changed_feeds


@topic("feeds", key="member", compacted=True, trigger=TRIGGER)
def feeds_topic(changed_feeds: DataFrame) -> DataFrame:
    return changed_feeds


def read_feed(feeds: DataFrame, popular_authors: DataFrame) -> DataFrame:
    """Complete feeds, newest entries first; ``feeds`` are the rows of one or more members."""
    spark = feeds.sparkSession
    return spark.sql(
        f"""
        select member, slice(
            sort_array(concat(any_value(f.entries), flatten(collect_list(p.entries))), false),
            1, {LENGTH}) as entries
        from (select *, explode_outer(popular) as author from {{feeds}}) as f
            left join {{popular_authors}} as p on p.actor = f.author
        group by member
        """,
        feeds=feeds,
        popular_authors=popular_authors,
    )


@example
def a_follow_brings_older_posts_and_an_unfollow_removes_them() -> tuple[Any, dict[str, Any]]:
    post = {"event_id": "p", "at": "2026-03-01T12:00:00Z", "member": 2, "post": 5, "category": "c"}
    follow = {"event_id": "f", "at": "2026-03-01T12:01:00Z", "member": 1, "followed": 2}
    other = {**follow, "event_id": "g", "member": 3}
    unfollow = {**follow, "event_id": "u", "at": "2026-03-01T12:02:00Z", "action": "unfollow"}
    entry = {"at": post["at"], "event_id": "p", "actor": 2, "kind": "post", "object": 5}
    return (
        [
            {
                "posts": [post],
                "follows": [{**follow, "action": "follow"}, {**other, "action": "follow"}],
            },
            {"follows": [unfollow]},
        ],
        {"feeds": [{"member": 3, "entries": [{**entry, "category": "c"}]}]},
    )
