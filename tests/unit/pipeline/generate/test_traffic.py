"""How many events each topic has."""

import numpy as np
import pytest

from headrace.pipeline.events import SCHEMAS
from headrace.pipeline.generate.drawing import Span
from headrace.pipeline.generate.site import make_site
from headrace.pipeline.generate.traffic import KEYS, SHARES, counts_of, draw


def test_every_topic_has_a_share_and_a_key():
    assert list(SHARES) == list(SCHEMAS) and list(KEYS) == list(SCHEMAS)
    assert sum(SHARES.values()) == pytest.approx(1)


@pytest.mark.parametrize("total", [400, 1_000, 12_345])
def test_counts_add_up(total):
    counts = counts_of(total)
    assert sum(counts.values()) == total and min(counts.values()) > 4
    drawn = draw(make_site(1, 100), Span(0, 60_000, False), counts, np.random.default_rng(1))
    assert {topic: len(events.sent_ms) for topic, events in drawn.events.items()} == counts
