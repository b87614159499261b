"""The steady clock of coordinators follows the wall clock without jumps."""

import pytest

from headrace.broker.clock import SteadyClock
from headrace.model.ids import Millis


class HandMovedClock:
    def __init__(self):
        self.wall, self.monotonic = 1_700_000_000_000, 5_000.0

    def now(self):
        return Millis(self.wall)

    def monotonic_s(self):
        return self.monotonic / 1000

    def pass_time(self, ms):
        self.wall += ms
        self.monotonic += ms


def test_a_steady_clock_follows_the_wall_clock():
    clock = HandMovedClock()
    steady = SteadyClock(clock.now, clock.monotonic_s)
    for _ in range(3):
        clock.pass_time(1000)
        assert steady.now() == clock.wall


@pytest.mark.parametrize("jump_ms", [3_600_000, -3_600_000])
def test_a_jump_of_the_wall_clock_is_followed_slowly(jump_ms):
    clock = HandMovedClock()
    steady = SteadyClock(clock.now, clock.monotonic_s)
    before = steady.now()
    clock.wall += jump_ms
    assert steady.now() == before
    clock.pass_time(16_000)
    assert abs(steady.now() - before - 16_000) == 1_000
    last = steady.now()
    for _ in range(100):
        clock.pass_time(1_000_000)
        assert steady.now() > last
        last = steady.now()
    assert last == clock.wall


def test_a_wall_clock_that_was_not_set_before_is_followed_at_once():
    clock = HandMovedClock()
    steady = SteadyClock(clock.now, clock.monotonic_s)
    clock.wall += 10 * 86_400_000
    assert steady.now() == clock.wall
