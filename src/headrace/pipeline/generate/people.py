"""What people and bots do: visits in sessions, and the events that belong to their page views.

Searches, impressions, votes and everything else that people do belong to page views, so they have
the same visitor and time. Bots come in bursts with a fixed rate, so that a small day has
recognizable bots too.
"""

from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from headrace.pipeline.generate import site as s
from headrace.pipeline.generate.columns import (
    NULL,
    Codes,
    Column,
    Events,
    Ints,
    Numbers,
    Words,
    quoted,
)
from headrace.pipeline.generate.drawing import Burst, Drawing
from headrace.pipeline.generate.site import chosen, long_tail

_POST_TEXTS: Final = tuple(
    f"{start} {thing}" for start in ("My new", "Notes about a", "Photos of the", "Who knows this")
    for thing in ("garden", "bike", "trip to the sea", "telescope", "record", "old map")
)  # fmt: skip
_SPAM_TEXTS: Final = (
    "Cheap followers at https://spam.example/ now", "WIN a phone at https://spam.example/win",
)  # fmt: skip
_COMMENT_TEXTS: Final = (
    "Great!", "I disagree.", "Thank you for this.", "Where is that?", "Same here.", "Tell us more.",
)  # fmt: skip
_VISIT_VIEWS, _VISIT_VIEWS_MAX = 6, 60
_PAUSE_MS, _PAUSE_MS_MAX = 45_000.0, 1_200_000.0
_IMPRESSIONS_PER_VIEW = 5
_DAY_MS = 86_400_000
# Post and comment numbers begin at the first second of their span times this.
_NUMBERS_PER_S = 100_000

CRAWLING = Burst(0.05, 4.0, 2400)
SCRAPING = Burst(0.03, 8.0, 2400)
GUESSING = Burst(0.25, 2.0, 600)
SPAM = Burst(0.08, 0.5, 60)


class _Views(NamedTuple):
    """Page views; times are milliseconds since the start of the span."""

    time: Ints
    visitor: Codes
    member: Codes
    page: Codes
    referrer: Codes
    agent: Codes

    def taken(self, rows: Ints) -> "_Views":
        return _Views._make(column[rows] for column in self)

    def followed_by(self, more: "_Views") -> "_Views":
        columns = range(len(self))
        return _Views._make(np.concatenate((self[slot], more[slot])) for slot in columns)

    def sorted(self) -> "_Views":
        return self.taken(np.argsort(self.time, kind="stable"))


class People(Drawing):
    @property
    def _first_number(self) -> int:
        return self.span.start_ms // 1000 * _NUMBERS_PER_S

    def all(self, counts: dict[str, int]) -> dict[str, Events]:
        crawled, scraped = (int(counts["page-views"] * kind.share) for kind in (CRAWLING, SCRAPING))
        views = self._visits(counts["page-views"] - crawled - scraped).sorted()
        bots = self.site.bots
        crawlers = self._bot_views(CRAWLING, crawled, bots.crawlers, s.CRAWLER_AGENT)
        scrapers = self._bot_views(SCRAPING, scraped, bots.scrapers, s.SCRIPT_AGENT)
        every = views.followed_by(crawlers).followed_by(scrapers)
        shown = self._impressions(views, counts["impressions"])
        posts = self._posts(views, counts["posts"])
        return {
            "page-views": self._page_views(every),
            "searches": self._searches(views, counts["searches"]),
            "impressions": shown,
            "clicks": self._clicks(shown, counts["clicks"]),
            "follows": self._follows(views, counts["follows"]),
            "posts": posts,
            "votes": self._votes(views, counts["votes"]),
            "ratings": self._ratings(views, counts["ratings"]),
            "comments": self._comments(views, counts["comments"], posts),
            "logins": self._logins(views, counts["logins"]),
        }

    # --- page views -------------------------------------------------------------------

    def _visits(self, count: int) -> _Views:
        site, rng = self.site, self.rng
        sizes = np.minimum(rng.geometric(1 / _VISIT_VIEWS, count // 3 + 1), _VISIT_VIEWS_MAX)
        visits = int(np.searchsorted(np.cumsum(sizes), count)) + 1
        visit = np.repeat(np.arange(min(visits, len(sizes))), sizes[:visits])[:count]
        count = len(visit)
        is_first = np.diff(visit, prepend=-1) > 0
        visitor = chosen(rng, site.activity, visits)
        pause = np.minimum(rng.exponential(_PAUSE_MS, count), _PAUSE_MS_MAX)
        passed = np.cumsum(pause)
        passed -= passed[is_first][visit]
        time = (self._visit_starts(visitor)[visit] + passed.astype(np.int64)) % self.span.length_ms
        signed_in = (visitor < site.members) & (rng.random(visits) < 0.8)
        who = visitor[visit]
        page = self._pages(who)
        outside, outside_count = site.outside
        entry = rng.integers(outside, outside + outside_count, count)
        entry[rng.random(count) < 0.3] = NULL
        referrer = np.where(is_first, entry, np.roll(page, 1)).astype(np.int32)
        member = np.where(signed_in[visit], who, NULL).astype(np.int32)
        return _Views(time, who, member, page, referrer, site.agent[who])

    def _visit_starts(self, visitor: Codes) -> Ints:
        """Most people come at their hour; the others follow the rhythm of the site."""
        start = self.times(len(visitor))
        if not self.span.has_rhythm:
            return start
        habit = self.site.habit_hour[visitor] + self.rng.normal(0, 0.7, len(visitor))
        by_habit = (habit * 3_600_000).astype(np.int64) % _DAY_MS
        return np.where(self.rng.random(len(visitor)) < 0.7, by_habit, start)

    def _pages(self, visitor: Codes) -> Codes:
        site, rng, count = self.site, self.rng, len(visitor)
        category = np.where(
            rng.random(count) < 0.6,
            site.favorite[visitor],
            rng.integers(0, len(s.CATEGORIES), count),
        )
        item = chosen(rng, site.popularity, count)
        profile = chosen(rng, site.followed, count)
        kinds = [
            np.full(count, s.HOME, np.int32),
            np.full(count, s.FEED, np.int32),
            np.full(count, s.SEARCH, np.int32),
            site.page_of_category(category.astype(np.int32)),
            site.page_of_member(profile),
            site.page_of_item(item),
        ]
        kind = np.searchsorted([0.15, 0.25, 0.30, 0.48, 0.60], rng.random(count))
        return np.choose(kind, kinds).astype(np.int32)

    def _bot_views(self, kind: Burst, count: int, clients: Codes, agent: int) -> _Views:
        """Many different pages in a row, without a referrer."""
        burst, time, _, _ = self.bursts(kind, count)
        client = clients[burst % len(clients)]
        first_page = int(self.site.page_of_item(np.zeros(1, np.int32))[0])
        page = first_page + np.arange(count, dtype=np.int32) % (len(self.site.pages) - first_page)
        nulls = np.full(count, NULL, np.int32)
        agents = np.full(count, agent, np.int32)
        return _Views(time, client, nulls, page.astype(np.int32), nulls, agents)

    def _page_views(self, views: _Views) -> Events:
        site = self.site
        item = self._item_of(views.page)
        first_profile = int(site.page_of_member(np.zeros(1, np.int32))[0])
        profile = np.where(views.page >= first_profile, views.page - first_profile, NULL)
        return self.events(
            views.time,
            visitor=Words(views.visitor, site.visitor_names),
            member=Numbers(views.member),
            client=Words(views.visitor, site.clients),
            page=Words(views.page, site.pages),
            item=Numbers(item),
            author=Numbers(np.where(item >= 0, site.author[item], NULL)),
            profile=Numbers(profile),
            referrer=Words(views.referrer, site.referrers),
            agent=Words(views.agent, quoted(s.AGENTS)),
        )

    def _item_of(self, page: Codes) -> Codes:
        site = self.site
        item = page - int(site.page_of_item(np.zeros(1, np.int32))[0])
        return np.where((item >= 0) & (item < site.items), item, NULL).astype(np.int32)

    # --- what people do ---------------------------------------------------------------

    def _sampled(self, views: _Views, count: int, *, members: bool = False) -> _Views:
        candidates = np.flatnonzero(views.member >= 0) if members else np.arange(len(views.time))
        rows = candidates[self.rng.integers(0, len(candidates), count)]
        return views.taken(rows)

    def _visitor(self, views: _Views) -> dict[str, Column]:
        return {
            "visitor": Words(views.visitor, self.site.visitor_names),
            "member": Numbers(views.member),
        }

    def _category(self, codes: Codes) -> Words:
        return Words(codes, quoted(s.CATEGORIES))

    def _searches(self, views: _Views, count: int) -> Events:
        found = self._sampled(views, count)
        rng = self.rng
        shares = long_tail(np.random.default_rng(0), len(s.QUERIES))
        return self.events(
            self.soon_after(found.time, 20_000),
            **self._visitor(found),
            page=Words(np.full(count, s.SEARCH, np.int32), self.site.pages),
            query=Words(chosen(rng, shares, count), quoted([q.strip() for q in s.QUERIES])),
            results=Numbers(rng.poisson(40, count) * (rng.random(count) > 0.05)),
        )

    def _impressions(self, views: _Views, count: int) -> Events:
        lists = -(-count // _IMPRESSIONS_PER_VIEW)
        of_list = np.repeat(np.arange(lists), _IMPRESSIONS_PER_VIEW)[:count]
        seen = self._sampled(views, lists).taken(of_list)
        position = np.arange(count, dtype=np.int32) % _IMPRESSIONS_PER_VIEW + 1
        item = chosen(self.rng, self.site.popularity, count)
        return self.events(
            (seen.time + 150 + position) % self.span.length_ms,
            **self._visitor(seen),
            item=Numbers(item),
            category=self._category(self.site.category[item]),
            position=Numbers(position),
        )

    def _clicks(self, shown: Events, count: int) -> Events:
        """Good items and first positions are clicked more often."""
        item, position = shown.columns["item"], shown.columns["position"]
        assert isinstance(item, Numbers) and isinstance(position, Numbers)
        weight = (0.1 + self.site.quality[item.values]) / position.values
        # The largest of these keys are a sample by weight.
        keys = np.log(self.rng.random(len(weight))) / weight
        rows = np.argpartition(keys, len(keys) - count)[len(keys) - count :]
        clicked = shown.taken(rows)
        time = self.soon_after(clicked.sent_ms - self.span.start_ms, 15_000)
        return self.events(time, **clicked.columns)

    def _follows(self, views: _Views, count: int) -> Events:
        """A tenth takes back an earlier one."""
        rng = self.rng
        found = self._sampled(views, count, members=True).sorted()
        followed = chosen(rng, self.site.followed, count)
        followed = np.where(followed == found.member, (followed + 1) % self.site.members, followed)
        member = found.member.copy()
        takes_back = rng.random(count) < 0.1
        takes_back[0] = False
        follows, later = np.flatnonzero(~takes_back), np.flatnonzero(takes_back)
        back = (rng.random(len(later)) * np.searchsorted(follows, later)).astype(np.int64)
        earlier = follows[back]
        member[later], followed[later] = member[earlier], followed[earlier]
        return self.events(
            found.time,
            member=Numbers(member),
            followed=Numbers(followed),
            action=Words(takes_back.astype(np.int32), quoted(["follow", "unfollow"])),
        )

    def _posts(self, views: _Views, count: int) -> Events:
        site, rng, bots = self.site, self.rng, self.site.bots
        spam = int(count * SPAM.share)
        burst, spam_time, _, _ = self.bursts(SPAM, spam)
        found = self._sampled(views, count - spam, members=True)
        which = burst % len(bots.spam_members)
        texts = rng.integers(0, len(_POST_TEXTS), count - spam, dtype=np.int32)
        spam_texts = len(_POST_TEXTS) + burst % len(_SPAM_TEXTS)
        spam_categories = rng.integers(0, len(s.CATEGORIES), spam, dtype=np.int32)
        posts = self.events(
            np.concatenate((self.soon_after(found.time, 60_000), spam_time)),
            member=Numbers(np.concatenate((found.member, bots.spam_members[which]))),
            client=Words(np.concatenate((found.visitor, bots.spammers[which])), site.clients),
            post=Numbers(np.zeros(count, np.int64)),
            category=self._category(
                np.concatenate((site.favorite[found.visitor], spam_categories))
            ),
            text=Words(np.concatenate((texts, spam_texts)), quoted(_POST_TEXTS + _SPAM_TEXTS)),
        )
        # Numbered in the order of time.
        posts.columns["post"] = Numbers(self._first_number + np.arange(count))
        return posts

    def _votes(self, views: _Views, count: int) -> Events:
        found, item = self._on_items(views, count)
        likes = self.rng.random(count) < 0.3 + 0.65 * self.site.quality[item]
        return self.events(
            self.soon_after(found.time, 60_000),
            member=Numbers(found.member),
            item=Numbers(item),
            category=self._category(self.site.category[item]),
            value=Numbers(np.where(likes, 1, -1), signed=True),
        )

    def _ratings(self, views: _Views, count: int) -> Events:
        found, item = self._on_items(views, count)
        stars = 1 + 4 * self.site.quality[item] + self.rng.normal(0, 0.8, count)
        return self.events(
            self.soon_after(found.time, 60_000),
            member=Numbers(found.member),
            item=Numbers(item),
            category=self._category(self.site.category[item]),
            stars=Numbers(np.clip(np.rint(stars), 1, 5).astype(np.int64)),
        )

    def _on_items(self, views: _Views, count: int) -> tuple[_Views, Codes]:
        """Members, and the item that they look at, or one that is popular."""
        found = self._sampled(views, count, members=True)
        item = self._item_of(found.page)
        return found, np.where(item >= 0, item, chosen(self.rng, self.site.popularity, count))

    def _comments(self, views: _Views, count: int, posts: Events) -> Events:
        """Most comments are about new posts."""
        found = self._sampled(views, count, members=True)
        sent = posts.sent_ms - self.span.start_ms
        # No comment is before the first post.
        time = np.maximum(self.soon_after(found.time, 60_000), sent[0] + 1)
        known = np.searchsorted(sent, time)
        back = (self.rng.random(count) ** 3 * known).astype(np.int64)
        post = posts.columns["post"]
        assert isinstance(post, Numbers)
        comments = self.events(
            time,
            member=Numbers(found.member),
            post=Numbers(post.values[known - 1 - back]),
            comment=Numbers(np.zeros(count, np.int64)),
            text=Words(
                self.rng.integers(0, len(_COMMENT_TEXTS), count, dtype=np.int32),
                quoted(_COMMENT_TEXTS),
            ),
        )
        comments.columns["comment"] = Numbers(self._first_number + np.arange(count))
        return comments

    def _logins(self, views: _Views, count: int) -> Events:
        site, rng = self.site, self.rng
        guessed = int(count * GUESSING.share)
        burst, guess_time, _, _ = self.bursts(GUESSING, guessed)
        found = self._sampled(views, count - guessed, members=True)
        guessers = site.bots.guessers
        guessed_accounts = rng.integers(0, site.members, guessed, dtype=np.int32)
        succeeded = np.concatenate(
            (rng.random(count - guessed) < 0.96, rng.random(guessed) < 0.002)
        )
        return self.events(
            np.concatenate((found.time, guess_time)),
            client=Words(
                np.concatenate((found.visitor, guessers[burst % len(guessers)])), site.clients
            ),
            account=Words(np.concatenate((found.member, guessed_accounts)), site.accounts),
            succeeded=Words(succeeded.astype(np.int32), pa.array(["false", "true"])),
        )
