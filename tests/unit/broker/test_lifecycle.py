"""The steps of a start are undone in reverse order, cleanly or not."""

import asyncio

import pytest

from headrace.broker.lifecycle import Lifecycle, State
from tests.fakes.standin import in_loop


class Recorded:
    """A lifecycle with steps that note how they were undone."""

    def __init__(self):
        self.events = []
        self.lifecycle = Lifecycle(lambda: self.events.append("clients dropped"))

    def step(self, name, error=None):
        def undo(clean):
            self.events.append((name, clean))
            if error is not None:
                raise error

        self.lifecycle.on_stop(name, undo)

    async def start(self, *names, then=None):
        async def steps():
            for name in names:
                self.step(name)
            if then is not None:
                await then()

        await self.lifecycle.start(steps)


@in_loop
async def test_a_clean_stop_undoes_the_steps_in_reverse_order():
    recorded = Recorded()
    await recorded.start("logs", "clients")
    assert recorded.lifecycle.state is State.RUNNING
    await asyncio.gather(recorded.lifecycle.stop(), recorded.lifecycle.stop())
    assert recorded.events == [("clients", True), ("logs", True)]
    assert recorded.lifecycle.state is State.STOPPED


@in_loop
async def test_a_step_that_fails_undoes_those_before_it():
    recorded = Recorded()

    async def fail():
        raise OSError("no such device")

    with pytest.raises(OSError, match="no such device"):
        await recorded.start("listeners", "logs", then=fail)
    assert recorded.events == [("logs", False), ("listeners", False)]
    await recorded.lifecycle.stop()


@pytest.mark.parametrize("clean", [True, False])
@in_loop
async def test_a_stop_during_the_start_waits_for_it_and_then_stops(clean):
    recorded, go_on = Recorded(), asyncio.Event()
    lifecycle = recorded.lifecycle
    starting = asyncio.ensure_future(recorded.start("logs", then=go_on.wait))
    await asyncio.sleep(0)
    assert lifecycle.state is State.STARTING
    stopping = asyncio.ensure_future(lifecycle.stop() if clean else lifecycle.crash())
    await asyncio.sleep(0)
    go_on.set()
    await starting
    await asyncio.wait_for(stopping, 10)
    assert recorded.events[-1] == ("logs", clean)
    assert lifecycle.state is State.STOPPED


@in_loop
async def test_a_stop_before_the_start_returns_at_once():
    lifecycle = Recorded().lifecycle
    await asyncio.wait_for(lifecycle.stop(), 10)
    await asyncio.wait_for(lifecycle.crash(), 10)
    assert lifecycle.state is State.NEW


@in_loop
async def test_a_failure_as_the_last_step_ends_is_raised_by_the_start():
    recorded = Recorded()

    async def fail_after_this_step():
        # Runs between the end of the steps and the continuation of the start.
        asyncio.get_running_loop().call_soon(
            recorded.lifecycle.fail, ZeroDivisionError("elsewhere")
        )

    with pytest.raises(ZeroDivisionError, match="elsewhere"):
        await recorded.start("logs", then=fail_after_this_step)
    assert recorded.events == [("logs", False)]
    assert recorded.lifecycle.state is State.STOPPED


@in_loop
async def test_a_failure_drops_the_clients_before_anything_else():
    recorded = Recorded()
    await recorded.start("logs", "clients")
    recorded.lifecycle.fail(ZeroDivisionError())
    assert recorded.events == ["clients dropped"]
    await recorded.lifecycle.wait_stopped()
    assert recorded.events[1:] == [("clients", False), ("logs", False)]
    assert isinstance(recorded.lifecycle.failure, ZeroDivisionError)


@in_loop
async def test_a_crash_is_not_a_failure_and_finishes_nothing():
    recorded = Recorded()
    await recorded.start("logs")
    await recorded.lifecycle.crash()
    assert recorded.events == ["clients dropped", ("logs", False)]
    assert recorded.lifecycle.failure is None


@in_loop
async def test_a_failure_in_the_middle_of_a_clean_stop_makes_the_rest_unclean():
    recorded = Recorded()
    await recorded.start("logs")
    recorded.step("coordinators", ZeroDivisionError("a bug"))
    recorded.step("clients")
    await recorded.lifecycle.stop()
    assert recorded.events == [("clients", True), ("coordinators", True), ("logs", False)]
    assert str(recorded.lifecycle.failure) == "a bug"


@in_loop
async def test_a_failure_after_the_stop_changes_nothing():
    recorded = Recorded()
    await recorded.start("logs")
    await recorded.lifecycle.stop()
    recorded.lifecycle.fail(ZeroDivisionError())
    assert recorded.lifecycle.failure is None
