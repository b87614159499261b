"""The website of the generated events: members with habits, items, services and bots.

The same seed gives the same site, so a day and live events after it are about the same members.
"""

from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from headrace.pipeline.generate.columns import (
    Codes,
    Floats,
    Ints,
    addresses,
    numbered,
    quoted,
)

CATEGORIES: Final = (
    "books", "music", "films", "games", "garden", "kitchen", "sports", "travel", "science",
    "history", "photos", "pets",
)  # fmt: skip
_FIXED_PAGES: Final = ("/", "/feed", "/search", "/login", "/about")
HOME, FEED, SEARCH = 0, 1, 2
_REFERRERS: Final = (
    "https://search.example/", "https://news.example/today", "https://social.example/",
    "https://mail.example/",
)  # fmt: skip
AGENTS: Final = (
    "Mozilla/5.0 (X11; Linux x86_64) Firefox/142.0", "Mozilla/5.0 (Windows NT 10.0) Chrome/140.0",
    "Mozilla/5.0 (Macintosh) Safari/19.0", "Mozilla/5.0 (iPhone) Mobile Safari/19.0",
    "Mozilla/5.0 (Android 16) Chrome/140.0 Mobile", "ExampleBot/2.1 (+https://bot.example/)",
    "python-client/3.2",
)  # fmt: skip
CRAWLER_AGENT, SCRIPT_AGENT = 5, 6
_BROWSERS = 5
# Requests of a service are about its paths; each service has the hosts named after it.
SERVICES: Final = {
    "web": ("/", "/items", "/members"),
    "search": ("/query", "/suggest"),
    "feed": ("/feed", "/timeline"),
    "api": ("/v1/items", "/v1/votes"),
    "login": ("/login", "/token"),
    "media": ("/images", "/thumbnails"),
}
HOSTS_PER_SERVICE: Final = 2
HOSTS: Final = tuple(f"{name}-{n + 1}" for name in SERVICES for n in range(HOSTS_PER_SERVICE))
ENDPOINTS: Final = ("/v1/items", "/v1/members", "/v1/search", "/v1/votes", "/v1/feed")
API_CLIENTS: Final = 40
_ADJECTIVES = ("best", "cheap", "new", "old", "red", "small", "quiet", "fast", "local", "used")
_THINGS = (
    "bike", "camera", "tent", "novel", "guitar", "recipe", "map", "lamp", "boots", "seeds",
    "telescope", "puzzle", "kettle", "poster", "aquarium",
)  # fmt: skip
QUERIES: Final = tuple(f"{a} {t}" for t in _THINGS for a in ("", *_ADJECTIVES))
# The share of the day's visits in each hour, before scaling.
HOURS: Final = (
    2.0, 1.2, 0.8, 0.6, 0.6, 0.9, 1.8, 3.2, 4.6, 5.2, 5.4, 5.4, 5.8, 5.4, 5.0, 4.8, 4.9, 5.4, 6.2,
    7.2, 7.6, 6.8, 5.2, 3.4,
)  # fmt: skip
BOTS_PER_KIND: Final = 3


class Bots(NamedTuple):
    """The clients that misbehave, by kind: indexes of visitors, API clients or members."""

    crawlers: Codes
    scrapers: Codes
    guessers: Codes
    spammers: Codes
    spam_members: Codes
    api_clients: Codes


class Site(NamedTuple):
    """Popularity is a probability per index. Codes of clients are those of visitors."""

    members: int
    visitors: int  # members first, then visitors who never sign in
    items: int
    habit_hour: Floats  # of each visitor
    activity: Floats  # of each visitor
    member_activity: Floats
    followed: Floats  # popularity of each member as an author
    agent: Codes  # of each visitor
    favorite: Codes  # category of each visitor
    category: Codes  # of each item
    author: Codes  # of each item
    quality: Floats  # of each item, 0 to 1
    popularity: Floats  # of each item
    bots: Bots
    clients: pa.Array
    visitor_names: pa.Array
    accounts: pa.Array
    pages: pa.Array
    referrers: pa.Array  # pages, then other sites

    def page_of_category(self, category: Codes) -> Codes:
        return (len(_FIXED_PAGES) + category).astype(np.int32)

    def page_of_item(self, item: Codes) -> Codes:
        return (len(_FIXED_PAGES) + len(CATEGORIES) + item).astype(np.int32)

    def page_of_member(self, member: Codes) -> Codes:
        return (len(_FIXED_PAGES) + len(CATEGORIES) + self.items + member).astype(np.int32)

    @property
    def outside(self) -> tuple[int, int]:
        """The codes of the referrers that are other sites: the first, and their number."""
        return len(self.pages), len(_REFERRERS)


def make_site(seed: int, members: int) -> Site:
    rng = np.random.default_rng([seed, 1])
    visitors, items = 3 * members, max(200, members)
    bot_count = 4 * BOTS_PER_KIND
    activity = rng.pareto(1.8, visitors) + 0.2
    activity[:members] *= 3  # members visit more often than others
    hours = np.array(HOURS)
    habit = rng.choice(24, visitors, p=hours / hours.sum()) + rng.random(visitors)
    author = chosen(rng, long_tail(rng, members), items)
    pages = [numbered("/items/", items), numbered("/members/", members)]
    fixed = quoted([*_FIXED_PAGES, *(f"/c/{name}" for name in CATEGORIES)])
    all_pages = pa.concat_arrays([fixed, *pages])
    return Site(
        members,
        visitors,
        items,
        habit,
        _shares(activity),
        _shares(activity[:members]),
        long_tail(rng, members),
        rng.integers(0, _BROWSERS, visitors, dtype=np.int32),
        rng.integers(0, len(CATEGORIES), visitors, dtype=np.int32),
        rng.integers(0, len(CATEGORIES), items, dtype=np.int32),
        author,
        rng.beta(2, 3, items),
        long_tail(rng, items),
        _bots(visitors, members),
        addresses(1 << 16, visitors + bot_count),
        numbered("v", visitors + bot_count),
        numbered("user", members),
        all_pages,
        pa.concat_arrays([all_pages, quoted(_REFERRERS)]),
    )


def _bots(visitors: int, members: int) -> Bots:
    """Their own addresses, after those of visitors; spam comes from the last members."""
    clients = np.arange(visitors, visitors + 4 * BOTS_PER_KIND, dtype=np.int32)
    crawlers, scrapers, guessers, spammers = clients.reshape(4, BOTS_PER_KIND)
    spam_members = np.arange(members - BOTS_PER_KIND, members, dtype=np.int32)
    api_clients = np.arange(API_CLIENTS - BOTS_PER_KIND, API_CLIENTS, dtype=np.int32)
    return Bots(crawlers, scrapers, guessers, spammers, spam_members, api_clients)


def long_tail(rng: np.random.Generator, count: int, exponent: float = 0.9) -> Floats:
    """Zipf's law over indexes in random order."""
    weights: Floats = np.arange(1, count + 1, dtype=np.float64) ** -exponent
    rng.shuffle(weights)
    return _shares(weights)


def chosen(rng: np.random.Generator, shares: Floats, count: int) -> Codes:
    """Indexes drawn by their shares."""
    found = np.searchsorted(np.cumsum(shares), rng.random(count), side="right")
    return np.minimum(found, len(shares) - 1).astype(np.int32)


def _shares(weights: Floats) -> Floats:
    shares: Floats = weights / weights.sum()
    return shares


def rhythm_times(rng: np.random.Generator, count: int) -> Ints:
    """Milliseconds since midnight, by the rhythm of the day."""
    edges = np.concatenate(([0.0], np.cumsum(HOURS)))
    found = np.interp(rng.random(count) * edges[-1], edges, np.arange(25) * 3_600_000.0)
    times: Ints = found.astype(np.int64)
    return times
