"""Background tasks run to their end; a failure in one stops the broker."""

import asyncio

from headrace.broker.tasks import BackgroundTasks
from tests.fakes.standin import in_loop


@in_loop
async def test_a_failure_is_reported_and_the_others_go_on():
    failures, done = [], asyncio.Event()
    tasks = BackgroundTasks(asyncio.get_running_loop(), failures.append)

    async def fail():
        raise ZeroDivisionError

    async def work():
        await asyncio.sleep(0)
        done.set()

    tasks.spawn(fail())
    tasks.spawn(work())
    assert len(tasks) == 2
    await done.wait()
    await asyncio.sleep(0)
    assert [type(failure) for failure in failures] == [ZeroDivisionError]
    assert len(tasks) == 0


@in_loop
async def test_cancelling_all_tasks_is_not_a_failure():
    failures = []
    tasks = BackgroundTasks(asyncio.get_running_loop(), failures.append)
    tasks.spawn(asyncio.Event().wait())
    await tasks.cancel_all()
    assert len(tasks) == 0 and failures == []
