"""When the broker stays awake for the next request, and when it sleeps."""

import asyncio
import selectors
import socket
from types import SimpleNamespace

import pytest

from headrace.world import event_loop

if not hasattr(selectors, "EpollSelector"):
    pytest.skip("only Linux has epoll", allow_module_level=True)

READY = [("key", selectors.EVENT_READ)]


class Kernel:
    """A hand-moved clock and sockets: a poll and a yield take a microsecond each."""

    def __init__(self):
        self.now = 100.0
        self.next_at = 0.0  # when the next request arrives
        self.sleeps = []
        self.yield_s = 1e-6

    def select(self, timeout=None):
        self.now += 1e-6
        if self.now >= self.next_at:
            return READY
        if timeout is None or timeout > 0:
            self.sleeps.append(timeout)
            end = self.next_at if timeout is None else min(self.next_at, self.now + timeout)
            self.now = end
            return READY if end == self.next_at else []
        return []

    def sched_yield(self):
        self.now += self.yield_s


@pytest.fixture
def kernel(monkeypatch):
    """Patched in this module only: other loops of the process use the real one."""
    kernel = Kernel()
    monkeypatch.setattr(event_loop, "time", SimpleNamespace(monotonic=lambda: kernel.now))
    monkeypatch.setattr(event_loop, "os", SimpleNamespace(sched_yield=kernel.sched_yield))
    return kernel


@pytest.fixture
def selector(kernel):
    class Epoll(selectors.EpollSelector):
        select = kernel.select

    class Selector(event_loop.PollingSelector, Epoll):
        """Polls the kernel of the test."""

    with Selector() as selector:
        yield selector


def wait(kernel, selector, after_s, timeout=None):
    """True if the selector is awake when the next request arrives after this time."""
    kernel.next_at = kernel.now + after_s
    slept = len(kernel.sleeps)
    assert selector.select(timeout) == READY
    return len(kernel.sleeps) == slept


def test_stays_awake_for_a_client_that_comes_back_at_once(kernel, selector):
    awake = [wait(kernel, selector, 100e-6) for _ in range(20)]
    assert awake == [False] * 8 + [True] * 12


def test_sleeps_when_requests_are_far_apart(kernel, selector):
    assert not any(wait(kernel, selector, 1e-3) for _ in range(20))


def test_sleeps_when_the_client_does_not_come_back(kernel, selector):
    for _ in range(20):
        wait(kernel, selector, 100e-6)
    before = kernel.now
    assert not wait(kernel, selector, 5.0)
    assert kernel.sleeps[-1] is None
    assert kernel.now == before + 5.0
    assert not wait(kernel, selector, 100e-6), "one long wait ends it"


def test_leaves_the_core_to_another_process_that_needs_it(kernel, selector):
    for _ in range(20):
        wait(kernel, selector, 100e-6)
    kernel.yield_s = 50e-6
    assert not wait(kernel, selector, 100e-6)


def test_never_waits_longer_than_requested(kernel, selector):
    for _ in range(20):
        wait(kernel, selector, 100e-6)
    kernel.next_at = kernel.now + 1.0
    before = kernel.now
    assert selector.select(50e-6) == []
    assert kernel.now - before < 60e-6, "and a few looks"


def test_work_that_is_always_ready_does_not_keep_it_awake(kernel, selector):
    for _ in range(100):
        assert wait(kernel, selector, 0), "there was nothing to wait for"
    assert not wait(kernel, selector, 100e-6)


def test_a_poll_without_waiting_is_ignored(kernel, selector):
    for _ in range(20):
        wait(kernel, selector, 100e-6)
        kernel.next_at = kernel.now + 100e-6
        assert selector.select(0) == []
    assert wait(kernel, selector, 100e-6)


def test_tells_how_many_are_ready_in_a_turn():
    async def look():
        loop = asyncio.get_running_loop()
        count = event_loop.ready_counter(loop)
        pairs = [socket.socketpair() for _ in range(3)]
        counts = []
        for left, right in pairs:
            loop.add_reader(left.fileno(), lambda: counts.append(count()))
            right.send(b"x")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        for left, right in pairs:
            loop.remove_reader(left.fileno())
            left.close()
            right.close()
        return counts

    with asyncio.Runner(loop_factory=event_loop.new_event_loop) as runner:
        counts = runner.run(look())
    assert counts[:3] == [3, 3, 3]
    assert asyncio.run(look())[:3] == [1, 1, 1], "other loops do not tell"


def test_timers_and_sockets_of_a_loop_work_with_it():
    async def talk():
        loop = asyncio.get_running_loop()
        left, right = socket.socketpair()
        with left, right:
            left.setblocking(False)
            right.setblocking(False)
            for number in range(50):
                await loop.sock_sendall(left, b"%d" % number)
                assert await loop.sock_recv(right, 10) == b"%d" % number
            reading = loop.create_task(loop.sock_recv(left, 10))
            await asyncio.sleep(0.001)
            assert not reading.done()
            await loop.sock_sendall(right, b"end")
            return await reading

    with asyncio.Runner(loop_factory=event_loop.new_event_loop) as runner:
        assert runner.run(talk()) == b"end"
