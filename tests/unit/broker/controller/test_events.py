"""Events of the controller: in order, each kind once, again after a failure, none after the end."""

import asyncio

from headrace.broker.controller.events import Events
from headrace.coordination.tree import BadVersion
from headrace.model.errors import Corrupt, ErrorCode, Rejected
from tests.fakes.standin import in_loop


class Handlers:
    def __init__(self, *errors):
        self.errors = list(errors)
        self.calls = []

    async def first(self):
        self.calls.append("first")
        await asyncio.sleep(0)
        if self.errors:
            raise self.errors.pop(0)

    async def second(self):
        self.calls.append("second")


async def run(queue):
    return asyncio.get_running_loop().create_task(queue.run())


@in_loop
async def test_an_event_posted_twice_is_handled_once_and_in_order():
    queue, handlers = Events(), Handlers()
    posted = [queue.post(each) for each in (handlers.first, handlers.second, handlers.first)]
    running = await run(queue)
    assert await asyncio.gather(*posted) == [None, None, None]
    assert handlers.calls == ["first", "second"]
    running.cancel()


@in_loop
async def test_a_conflict_and_a_refusal_are_tried_again_and_a_corrupt_node_is_reported(caplog):
    refusal = Rejected(ErrorCode.KAFKA_STORAGE_ERROR, "no disk space")
    queue = Events(retry_s=0.001)
    handlers = Handlers(BadVersion("/x"), refusal, Corrupt("Cannot read /y"))
    running = await run(queue)
    first = await queue.post(handlers.first)
    assert first is not None
    async with asyncio.timeout(5):
        while len(handlers.calls) < 3 or handlers.errors:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        assert await queue.post(handlers.second) is None
    assert "BadVersion at /x" in caplog.text
    assert "no disk space" in caplog.text
    assert "Cannot read /y. Correct or delete that node" in caplog.text
    running.cancel()


@in_loop
async def test_the_end_of_the_term_ends_the_queue_and_refuses_what_waits():
    queue = Events()
    handlers = Handlers(Rejected(ErrorCode.NOT_CONTROLLER))
    posted = [queue.post(handlers.first), queue.post(handlers.second)]
    await (await run(queue))
    for refusal in (*await asyncio.gather(*posted), await queue.post(handlers.second)):
        assert refusal is not None and refusal.code == ErrorCode.NOT_CONTROLLER
    assert handlers.calls == ["first"]
