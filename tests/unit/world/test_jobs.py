"""A job gives the same responses in a child process as inline in a simulation."""

import asyncio
import os
import random
import signal

import pytest

from headrace.world.files import SystemFiles
from headrace.world.jobs import SystemJobs
from tests.fakes.standin import in_loop
from tests.sim.jobs import SimulatedJobs
from tests.sim.loop import run_simulated

ECHO = "tests.fakes.echo_job"


@pytest.fixture(params=["system", "simulated"])
def run(request, monkeypatch):
    """Run a coroutine function with the jobs of a loop."""
    monkeypatch.setenv("PYTHONPATH", os.getcwd())
    if request.param == "system":
        return lambda story: asyncio.run(story(SystemJobs()))
    return lambda story: run_simulated(story(SimulatedJobs(SystemFiles())), random.Random(0))


async def response_of(polled):
    for _ in range(2000):
        response = polled.poll()
        if response is not None:
            return response
        await asyncio.sleep(0.01)
    raise TimeoutError


def test_each_request_gets_its_responses_in_order(run):
    large = b"x" * 1_000_000

    async def story(jobs):
        job = await jobs.start(ECHO, niceness=1)
        await job.send(b"a b")
        await job.send(b"c")
        await job.send(large)
        assert [await job.receive() for _ in range(4)] == [b"a", b"b", b"c", large]
        await job.kill()

    run(story)


def test_a_job_that_has_ended_gives_no_response(run):
    async def story(jobs):
        job = await jobs.start(ECHO)
        await job.send(b"a")
        await job.receive()
        await job.kill()
        with pytest.raises((EOFError, OSError)):
            await job.send(b"b")
            await job.receive()

    run(story)


def test_a_released_job_ends(run):
    async def story(jobs):
        job = await jobs.start(ECHO)
        await job.send(b"a")
        await job.receive()
        job.release()
        assert await asyncio.wait_for(job.wait(), 20) == 0

    run(story)


def test_a_single_response_is_polled_for(run):
    async def story(jobs):
        assert await response_of(jobs.request(ECHO, b"a")) == b"a"
        jobs.request(ECHO, b"sleep").kill()

    run(story)


@in_loop
async def test_a_child_that_dies_is_noticed(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.getcwd())
    jobs = SystemJobs()
    killed = jobs.request(ECHO, b"sleep")
    os.kill(killed.pid, signal.SIGKILL)
    with pytest.raises(EOFError, match="status -9"):
        await response_of(killed)
    with pytest.raises(EOFError, match="status 1"):
        await response_of(jobs.request(ECHO, b"bug"))
    job = await jobs.start(ECHO)
    await job.send(b"bug")
    with pytest.raises(EOFError):
        await job.receive()
    await job.kill()
