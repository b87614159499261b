"""Waiters get the events of their replicas, and their deadline."""

import asyncio

from headrace.broker.replication.waiting import Waiting
from headrace.core.parked import Event
from tests.fakes.standin import in_loop
from tests.sim.loop import in_virtual_time


class Noting:
    """A waiter that is done after ``done_after`` events."""

    def __init__(self, done_after=99):
        self.events = []
        self._done_after = done_after

    def happened(self, event, replica):
        self.events.append((event, replica))
        return len(self.events) >= self._done_after

    def deadline_passed(self):
        self.events.append("deadline")


def a_waiting(failures=None):
    failures = [] if failures is None else failures
    return Waiting(asyncio.get_running_loop(), failures.append)


@in_loop
async def test_a_waiter_gets_events_of_its_own_replicas_when_served():
    waiting, waiter = a_waiting(), Noting()
    waiting.park(waiter, ["a", "b"])
    waiting.happened("a", Event.HIGH_WATERMARK)
    waiting.happened("a", Event.HIGH_WATERMARK)
    waiting.happened("c", Event.HIGH_WATERMARK)
    waiting.happened("b", Event.LEADERSHIP_LOST)
    assert waiter.events == []
    waiting.serve()
    assert waiter.events == [(Event.HIGH_WATERMARK, "a"), (Event.LEADERSHIP_LOST, "b")]


@in_loop
async def test_a_waiter_that_is_done_or_gone_gets_no_more_events():
    waiting, done, gone = a_waiting(), Noting(done_after=1), Noting()
    waiting.park(done, ["a"])
    waiting.park(gone, ["a"])
    waiting.unpark(gone)
    for _ in range(2):
        waiting.happened("a", Event.DISK_OFFLINE)
        waiting.serve()
    assert done.events == [(Event.DISK_OFFLINE, "a")]
    assert gone.events == []
    assert done not in waiting and not waiting.has_events


@in_loop
async def test_a_watcher_hears_of_everything_but_offsets():
    waiting, watcher = a_waiting(), Noting()
    waiting.watch(watcher, "a")
    for event in (Event.HIGH_WATERMARK, Event.LAST_STABLE_OFFSET, Event.LEADERSHIP_LOST):
        waiting.happened("a", event)
    waiting.serve()
    assert watcher.events == [(Event.LEADERSHIP_LOST, "a")]
    waiting.unwatch(watcher, "a")
    waiting.happened("a", Event.DISK_OFFLINE)
    waiting.serve()
    assert len(watcher.events) == 1


@in_loop
async def test_an_event_that_a_waiter_causes_is_passed_on_too():
    waiting, second = a_waiting(), Noting()

    class First(Noting):
        def happened(self, event, replica):
            waiting.happened("b", Event.HIGH_WATERMARK)
            return True

    waiting.park(First(), ["a"])
    waiting.park(second, ["b"])
    waiting.happened("a", Event.HIGH_WATERMARK)
    waiting.serve()
    assert second.events == [(Event.HIGH_WATERMARK, "b")]


@in_virtual_time
async def test_one_timer_serves_all_deadlines_in_their_order():
    waiting, order = a_waiting(), []

    class Late(Noting):
        def __init__(self, name):
            super().__init__()
            self.name = name

        def deadline_passed(self):
            order.append(self.name)

    never = Noting()
    waiting.park(never, ["a"])
    for name, wait_ms in (("third", 30), ("first", 10), ("second", 20)):
        waiting.park(Late(name), ["a"], wait_ms)
    await asyncio.sleep(1)
    assert order == ["first", "second", "third"]
    assert waiting.all() == [never] and waiting.next_deadline_ms() is None


@in_virtual_time
async def test_a_bug_at_a_deadline_stops_the_broker():
    failures = []
    waiting = a_waiting(failures)

    class Buggy(Noting):
        def deadline_passed(self):
            raise ZeroDivisionError

    waiting.park(Buggy(), [], 1)
    await asyncio.sleep(1)
    assert [type(failure) for failure in failures] == [ZeroDivisionError]


@in_loop
async def test_events_of_code_outside_of_turns_are_served_soon():
    failures = []
    waiting, waiter = a_waiting(failures), Noting()
    waiting.park(waiter, ["a"])
    waiting.happened("a", Event.HIGH_WATERMARK)
    waiting.serve_soon()
    waiting.serve_soon()
    assert waiter.events == []
    await asyncio.sleep(0)
    assert waiter.events == [(Event.HIGH_WATERMARK, "a")]
    waiting.happened("a", Event.LEADERSHIP_LOST)
    waiter.happened = lambda event, replica: 1 / 0
    waiting.serve_soon()
    await asyncio.sleep(0)
    assert [type(failure) for failure in failures] == [ZeroDivisionError]
