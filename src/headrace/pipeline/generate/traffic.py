"""The traffic of a span of time: how many events each topic has, and who draws them."""

from typing import Final, NamedTuple

import numpy as np

from headrace.pipeline.generate.columns import Events
from headrace.pipeline.generate.drawing import Span
from headrace.pipeline.generate.machines import Machines, Outage
from headrace.pipeline.generate.people import People
from headrace.pipeline.generate.site import Site

# The share of each topic.
SHARES: Final = {
    "page-views": 0.34,
    "searches": 0.04,
    "impressions": 0.18,
    "clicks": 0.04,
    "follows": 0.03,
    "posts": 0.02,
    "votes": 0.05,
    "ratings": 0.03,
    "comments": 0.02,
    "logins": 0.03,
    "api-calls": 0.06,
    "metrics": 0.04,
    "requests": 0.12,
}
# The column whose text is the key of a record.
KEYS: Final = {
    "page-views": "visitor",
    "searches": "visitor",
    "impressions": "visitor",
    "clicks": "visitor",
    "follows": "member",
    "posts": "member",
    "votes": "member",
    "ratings": "member",
    "comments": "member",
    "logins": "client",
    "api-calls": "client",
    "metrics": "host",
    "requests": "host",
}


class Traffic(NamedTuple):
    events: dict[str, Events]
    outages: list[Outage]


def draw(site: Site, span: Span, counts: dict[str, int], rng: np.random.Generator) -> Traffic:
    """``counts`` has every topic of SHARES."""
    people = People(site, span, rng).all(counts)
    machines, outages = Machines(site, span, rng).all(counts)
    return Traffic(people | machines, outages)


def counts_of(total: int) -> dict[str, int]:
    """The number of events of each topic; page views get the rest."""
    counts = {topic: int(total * share) for topic, share in SHARES.items()}
    counts["page-views"] += total - sum(counts.values())
    return counts
