"""Background jobs: one at a time, in order of their due time, in the executor of the loop."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from headrace.storage.background import Background
from tests.fakes.standin import in_loop
from tests.sim.loop import in_virtual_time


@pytest.fixture
def bugs():
    return []


def no_thread(*arguments):
    raise RuntimeError("can't start new thread")


@in_virtual_time
async def test_jobs_run_in_order_of_their_due_time(bugs):
    loop, ran = asyncio.get_running_loop(), []
    background, started_at = Background(bugs.append), loop.time()
    for delay_ms in (3000, 0, 1000, 1000):
        background.later(delay_ms, lambda d=delay_ms: ran.append((d, loop.time() - started_at)))
    await asyncio.sleep(10)
    assert [delay_ms for delay_ms, _ in ran] == [0, 1000, 1000, 3000]
    assert all(delay_ms <= 1000 * passed_s < delay_ms + 50 for delay_ms, passed_s in ran)


@in_virtual_time
async def test_closing_runs_what_is_due_and_drops_the_rest(bugs):
    ran = []
    background = Background(bugs.append)
    for delay_ms in (0, 5000, 0):
        background.later(delay_ms, lambda d=delay_ms: ran.append(d))
    background.close()
    background.later(0, lambda: ran.append("too late"))
    await asyncio.sleep(10)
    assert ran == [0, 0]


@in_virtual_time
async def test_a_bug_in_a_job_is_reported_and_later_jobs_run(bugs, caplog):
    def fails():
        raise OSError("no such device")

    ran = []
    background = Background(bugs.append)
    for job in (lambda: 1 / 0, fails, lambda: ran.append(1)):
        background.later(0, job)
    await asyncio.sleep(1)
    assert [type(bug) for bug in bugs] == [ZeroDivisionError]
    assert ran == [1] and "no such device" in caplog.text


@in_loop
async def test_jobs_from_any_thread_run_one_at_a_time_and_not_on_the_loop(bugs):
    background, done = Background(bugs.append), asyncio.Event()
    loop, threads, running = asyncio.get_running_loop(), set(), []

    def job():
        threads.add(threading.current_thread())
        running.append(1)
        assert len(running) == 1
        running.pop()

    await asyncio.gather(*(asyncio.to_thread(background.later, 0, job) for _ in range(50)))
    background.later(1, lambda: loop.call_soon_threadsafe(done.set))
    await asyncio.wait_for(done.wait(), 10)
    assert not bugs and threading.current_thread() not in threads


@in_loop
async def test_closing_waits_for_the_job_that_runs(bugs):
    background, started, ended = Background(bugs.append), threading.Event(), []
    may_end = threading.Event()

    def job():
        started.set()
        may_end.wait(10)
        ended.append(1)

    background.later(0, job)
    await asyncio.to_thread(started.wait, 10)
    asyncio.get_running_loop().call_later(0.01, may_end.set)
    await asyncio.to_thread(background.close)
    assert ended == [1]


@in_loop
async def test_a_thread_that_cannot_start_is_tried_again_with_the_next_job(bugs, caplog):
    class NoThreads(ThreadPoolExecutor):
        submit = no_thread

    loop, done = asyncio.get_running_loop(), asyncio.Event()
    background = Background(bugs.append)
    loop.set_default_executor(NoThreads())
    background.later(0, lambda: loop.call_soon_threadsafe(done.set))
    await asyncio.sleep(0)
    assert not done.is_set() and "can't start new thread" in caplog.text
    loop.set_default_executor(ThreadPoolExecutor(1))
    background.later(0, lambda: None)
    await asyncio.wait_for(done.wait(), 10)
    background.close()
