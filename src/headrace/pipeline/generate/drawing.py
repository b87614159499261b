"""What all draws of events share: the span of time, bursts, and the order of events."""

from typing import NamedTuple

import numpy as np

from headrace.pipeline.generate import site as s
from headrace.pipeline.generate.columns import Codes, Column, Events, Ints
from headrace.pipeline.generate.site import Site


class Span(NamedTuple):
    start_ms: int
    length_ms: int
    has_rhythm: bool  # else visits are evenly spread

    @property
    def end_ms(self) -> int:
        return self.start_ms + self.length_ms


class Burst(NamedTuple):
    """How a kind of bot behaves: its share of a topic, its rate, and its longest burst."""

    share: float
    per_second: float
    events_max: int


class Drawing:
    """Draws events of a site; times are milliseconds since the start of the span."""

    def __init__(self, site: Site, span: Span, rng: np.random.Generator) -> None:
        self.site = site
        self.span = span
        self.rng = rng

    def times(self, count: int) -> Ints:
        if self.span.has_rhythm:
            return s.rhythm_times(self.rng, count)
        return self.rng.integers(0, self.span.length_ms, count)

    def soon_after(self, time: Ints, within_ms: int) -> Ints:
        return (time + self.rng.integers(1, within_ms, len(time))) % self.span.length_ms

    def events(self, time: Ints, **columns: Column) -> Events:
        order = np.argsort(time, kind="stable")
        return Events(self.span.start_ms + time, columns).taken(order)

    def bursts(self, kind: Burst, count: int) -> tuple[Codes, Ints, Ints, Ints]:
        """The burst and the time of each event; start and length of each burst."""
        bursts = -(-count // kind.events_max)
        of_event = np.arange(count, dtype=np.int32) % max(bursts, 1)
        length = np.full(bursts, int(count / max(bursts, 1) / kind.per_second * 1000) + 1)
        room = max(self.span.length_ms - int(length.max(initial=1)), 1)
        start = self.rng.integers(0, room, bursts)
        within = (self.rng.random(count) * length[of_event]).astype(np.int64)
        return of_event, (start[of_event] + within) % self.span.length_ms, start, length
