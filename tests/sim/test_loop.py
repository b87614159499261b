"""The virtual event loop: time passes at once, and a simulation that hangs says so."""

import asyncio
import random

import pytest

from tests.sim.loop import (
    Deadlock,
    Livelock,
    SimulatedProcess,
    in_virtual_time,
    run_simulated,
)


@in_virtual_time
async def test_a_week_passes_at_once():
    loop = asyncio.get_running_loop()
    before = loop.time()
    await asyncio.sleep(7 * 86_400)
    assert loop.time() == before + 7 * 86_400


@in_virtual_time
async def test_work_for_threads_is_done_later():
    loop = asyncio.get_running_loop()
    before = loop.time()
    assert await asyncio.to_thread(lambda: "done") == "done"
    assert before < loop.time() < before + 0.01


def test_waiting_for_nothing_is_a_deadlock():
    async def story():
        await asyncio.Event().wait()

    with pytest.raises(Deadlock):
        run_simulated(story(), random.Random(0))


def test_work_that_never_waits_is_a_livelock():
    async def story():
        while True:  # noqa: ASYNC110 - what the test is about
            await asyncio.sleep(0)

    with pytest.raises(Livelock):
        run_simulated(story(), random.Random(0))


def test_tasks_that_are_left_are_cancelled():
    ended = []

    async def left():
        try:
            await asyncio.sleep(10)
        finally:
            ended.append(True)

    async def story():
        story.left = asyncio.ensure_future(left())
        await asyncio.sleep(1)

    run_simulated(story(), random.Random(0))
    assert ended


def test_a_paused_process_runs_nothing_until_it_is_resumed():
    async def story():
        loop = asyncio.get_running_loop()
        process, other = SimulatedProcess(loop), SimulatedProcess(loop)
        ticks = {"paused": [], "other": []}

        async def tick(name):
            while True:
                await asyncio.sleep(1)
                ticks[name].append(round(loop.time() - started_at, 1))

        started_at = loop.time()
        process.spawn(tick("paused"))
        other.spawn(tick("other"))
        await asyncio.sleep(2.5)
        process.pause()
        await asyncio.sleep(5)
        process.resume()
        await asyncio.sleep(1.2)
        assert ticks["paused"] == [1, 2, 7.5, 8.5]
        assert ticks["other"] == [1, 2, 3, 4, 5, 6, 7, 8]

    run_simulated(story(), random.Random(0))


def test_what_a_paused_process_holds_can_be_cancelled():
    async def story():
        loop = asyncio.get_running_loop()
        process = SimulatedProcess(loop)
        called = []

        async def schedule():
            second = loop.call_later(2, called.append, "second")
            loop.call_later(1, second.cancel)
            await asyncio.Event().wait()

        process.spawn(schedule())
        await asyncio.sleep(0.5)
        process.pause()
        await asyncio.sleep(5)
        process.resume()
        await asyncio.sleep(1)
        assert called == []

    run_simulated(story(), random.Random(0))
