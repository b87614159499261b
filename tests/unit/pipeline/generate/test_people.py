"""What people do, and bots like them."""

import numpy as np
import pytest

from headrace.pipeline.generate import people as p
from headrace.pipeline.generate.columns import NULL
from headrace.pipeline.generate.drawing import Span
from headrace.pipeline.generate.people import People
from headrace.pipeline.generate.site import make_site
from headrace.pipeline.generate.traffic import counts_of

SITE = make_site(1, 500)
SPAN = Span(1_000_000_000_000, 86_400_000, has_rhythm=True)


@pytest.fixture(scope="module")
def events():
    return People(SITE, SPAN, np.random.default_rng(1)).all(counts_of(50_000))


def column(events, topic, name):
    found = events[topic].columns[name]
    return found.codes if hasattr(found, "codes") else found.values


def text(events, topic, name):
    found = events[topic].columns[name]
    return np.array(found.json().to_pylist())


def test_counts_and_times(events):
    counts = counts_of(50_000)
    for topic, found in events.items():
        assert len(found.sent_ms) == counts[topic]
        assert (np.diff(found.sent_ms) >= 0).all()
        assert found.sent_ms.min() >= SPAN.start_ms and found.sent_ms.max() < SPAN.end_ms


def test_people_come_in_visits_at_their_hours(events):
    visitor = column(events, "page-views", "visitor")
    times = events["page-views"].sent_ms
    people = visitor < SITE.visitors
    order = np.lexsort((times[people], visitor[people]))
    who, when = visitor[people][order], times[people][order]
    gap = np.diff(when)[np.diff(who) == 0]
    assert 0.5 < (gap < 1_800_000).mean() < 0.95
    hour = (times[people] - SPAN.start_ms) / 3_600_000
    away = np.abs((hour - SITE.habit_hour[visitor[people]] + 12) % 24 - 12)
    assert (away < 2).mean() > 0.6


def test_pages_agree_with_items_authors_and_profiles(events):
    page = text(events, "page-views", "page")
    item, author, profile = (column(events, "page-views", c) for c in ("item", "author", "profile"))
    for row in range(0, len(page), 97):
        is_item = page[row].startswith('"/items/')
        assert (item[row] != NULL) == is_item
        if is_item:
            assert page[row] == f'"/items/{item[row]}"' and author[row] == SITE.author[item[row]]
        assert (profile[row] != NULL) == page[row].startswith('"/members/')


def test_crawlers_and_scrapers_are_fast_broad_and_without_a_referrer(events):
    visitor = column(events, "page-views", "visitor")
    for kind, clients in ((p.CRAWLING, SITE.bots.crawlers), (p.SCRAPING, SITE.bots.scrapers)):
        mine = np.isin(visitor, clients)
        assert abs(mine.sum() - kind.share * len(visitor)) < 2
        assert (column(events, "page-views", "referrer")[mine] == NULL).all()
        one = visitor == clients[0]
        seconds = np.ptp(events["page-views"].sent_ms[one]) / 1000
        assert one.sum() / seconds > 0.9 * kind.per_second
        assert len(set(column(events, "page-views", "page")[one].tolist())) > 0.5 * one.sum()


def test_clicks_are_of_impressions_and_good_items_have_more(events):
    def pairs(topic):
        names = ("visitor", "item", "position")
        return set(zip(*(column(events, topic, name).tolist() for name in names), strict=True))

    assert pairs("clicks") <= pairs("impressions")
    position = column(events, "clicks", "position")
    assert (position == 1).sum() > 2 * (position == 5).sum()
    quality = SITE.quality
    clicked, shown = (column(events, topic, "item") for topic in ("clicks", "impressions"))
    assert quality[clicked].mean() > quality[shown].mean() + 0.02


def test_follows_have_a_long_tail_and_an_unfollow_takes_a_follow_back(events):
    member, followed = column(events, "follows", "member"), column(events, "follows", "followed")
    action = column(events, "follows", "action")
    assert (member != followed).all() and 0.05 < action.mean() < 0.15
    known = set()
    for pair, takes_back in zip(zip(member, followed, strict=True), action, strict=True):
        assert not takes_back or pair in known
        known.add(pair)
    counts = np.sort(np.bincount(followed, minlength=SITE.members))[::-1]
    assert counts[:50].sum() > 0.4 * counts.sum()


def test_posts_are_numbered_by_time_and_comments_come_after_them(events):
    posts, comments = column(events, "posts", "post"), column(events, "comments", "post")
    assert (np.diff(posts) == 1).all()
    sent_of_post = dict(zip(posts.tolist(), events["posts"].sent_ms.tolist(), strict=True))
    for post, sent in zip(comments.tolist(), events["comments"].sent_ms.tolist(), strict=True):
        assert sent_of_post[post] < sent


def test_spam_is_a_burst_of_one_text(events):
    client = column(events, "posts", "client")
    spam = client == SITE.bots.spammers[0]
    assert spam.sum() > 20 and len(set(text(events, "posts", "text")[spam].tolist())) <= 2
    assert np.isin(column(events, "posts", "member")[spam], SITE.bots.spam_members).all()
    assert np.ptp(events["posts"].sent_ms[spam]) < 600_000


def test_guessed_logins_fail_for_many_accounts(events):
    guessed = np.isin(column(events, "logins", "client"), SITE.bots.guessers)
    succeeded = column(events, "logins", "succeeded")
    assert 0.2 < guessed.mean() < 0.3
    assert succeeded[guessed].mean() < 0.05 and succeeded[~guessed].mean() > 0.9
    assert len(set(column(events, "logins", "account")[guessed].tolist())) > 100


def test_votes_and_ratings_follow_the_quality(events):
    item, value = column(events, "votes", "item"), column(events, "votes", "value")
    assert set(value.tolist()) == {1, -1}
    assert SITE.quality[item[value == 1]].mean() > SITE.quality[item[value == -1]].mean()
    stars = column(events, "ratings", "stars")
    assert set(stars.tolist()) <= {1, 2, 3, 4, 5}
    assert np.corrcoef(stars, SITE.quality[column(events, "ratings", "item")])[0, 1] > 0.4
