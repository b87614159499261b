"""Sessions expire after a silence, and the owners of ephemeral nodes learn what ZooKeeper tells."""

import asyncio
import threading

import pytest

from headrace.coordination.tree import SessionEvent, SessionLost
from headrace.testing.tree_sessions import Silence, TreeSessions
from tests.fakes.waiting import wait_until

TIMEOUT_S = 0.05
LONG_S = 600.0
LIMIT_S = 20
A, B = 0, 1
TIMER = "headrace-session-timeout"


class Site:
    """Two brokers on one loop. The first has an ephemeral node, which the second watches."""

    def __init__(self, timeout_s):
        self.sessions = TreeSessions(timeout_s)
        self.events = []

    async def begin(self):
        self.a = self.sessions.open(A)
        self.b = self.sessions.open(B)
        self.told = asyncio.Event()
        self.a.on_session_event = self._note
        await self.a.create("/a", ephemeral=True)
        self.gone = asyncio.Event()
        await self.b.get("/a", lambda path: self.gone.set())

    def _note(self, event):
        self.events.append(event)
        self.told.set()

    async def exists(self):
        await self.b.sync()
        return await self.b.get("/a") is not None


def told(timeout_s=TIMEOUT_S):
    def decorate(story):
        async def limited():
            site = Site(timeout_s)
            try:
                async with asyncio.timeout(LIMIT_S):
                    await site.begin()
                    await story(site)
            finally:
                site.sessions.close()

        def test():
            asyncio.run(limited())

        test.__name__ = story.__name__
        return test

    return decorate


@told()
async def test_a_killed_broker_leaves_its_session_to_expire(site):
    site.sessions.silence(A, Silence.KILLED)
    await site.a.close()  # as a stopping process would; it does not reach the tree
    assert await site.exists()
    await site.gone.wait()
    assert not await site.exists()


@told()
async def test_a_paused_broker_learns_that_its_session_expired(site):
    site.sessions.silence(A, Silence.PAUSED)
    await site.gone.wait()
    with pytest.raises(SessionLost):
        await site.a.get("/a")
    site.sessions.end_silence(A, Silence.PAUSED)
    await site.told.wait()
    assert site.events == [SessionEvent.LOST]


@told()
async def test_a_broker_cut_off_for_long_learns_of_the_expiry_after_the_cut(site):
    site.sessions.silence(A, Silence.CUT)
    await site.gone.wait()
    assert site.events == [SessionEvent.SUSPENDED]
    reading = asyncio.create_task(site.a.get("/a"))
    site.sessions.end_silence(A, Silence.CUT)
    with pytest.raises(SessionLost):
        await reading
    assert site.events == [SessionEvent.SUSPENDED, SessionEvent.LOST]


@told(LONG_S)
async def test_a_broker_that_is_heard_in_time_keeps_its_session(site):
    for reason in (Silence.PAUSED, Silence.CUT):
        site.sessions.silence(A, reason)
        site.sessions.end_silence(A, reason)
    assert await site.exists() and await site.a.get("/a") is not None
    assert site.events == [SessionEvent.SUSPENDED, SessionEvent.RECONNECTED]
    wait_until(lambda: all(t.name != TIMER for t in threading.enumerate()))


@told()
async def test_a_broker_stays_silent_until_its_last_reason_ends(site):
    site.sessions.silence(A, Silence.PAUSED)
    site.sessions.silence(A, Silence.CUT)
    site.sessions.end_silence(A, Silence.PAUSED)
    await site.gone.wait()
    assert site.events == [SessionEvent.SUSPENDED]


@told(LONG_S)
async def test_a_session_expires_on_request(site):
    site.sessions.expire(A)
    await site.gone.wait()
    assert site.events == [SessionEvent.LOST]
    second = site.sessions.open(A)
    assert second.session_id != site.a.session_id
    await second.create("/a", ephemeral=True)
    assert await site.exists()


@told(LONG_S)
async def test_a_session_that_opens_during_a_cut_waits_for_its_end(site):
    site.sessions.silence(A, Silence.CUT)
    session = site.sessions.open(A)
    creating = asyncio.create_task(session.create("/b"))
    await site.b.sync()
    assert not creating.done()
    site.sessions.end_silence(A, Silence.CUT)
    assert (await creating).path == "/b"
