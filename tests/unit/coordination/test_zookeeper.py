"""What the tree at ZooKeeper adds to the contract: chroots, lost connections, a stuck loop."""

import asyncio
import itertools
import sys
import threading
import time
from collections.abc import AsyncIterator, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

import pytest

from headrace.coordination.tree import (
    ANY_VERSION,
    Create,
    OutcomeUnknown,
    SessionEvent,
    SessionLost,
    Set,
    Unwritable,
)
from headrace.coordination.writer import Writer
from headrace.coordination.zookeeper import ZooKeeperTree, close_session
from headrace.launch.zookeeper import free_port
from headrace.model.errors import ConfigError
from tests.fakes.cut_proxy import CutProxy
from tests.fakes.standin import in_loop

pytestmark = pytest.mark.usefixtures("zookeeper_or_none")

PATIENCE_SECONDS = 10
TIMEOUTS = {"session_timeout_ms": 2000, "connection_timeout_ms": PATIENCE_SECONDS * 1000}
chroots = itertools.count()


@pytest.fixture
def connect(zookeeper) -> str:
    """Each test has a chroot of its own."""
    return f"{zookeeper.connect}/alone/{next(chroots)}"


@pytest.fixture
def proxy(zookeeper):
    with CutProxy(zookeeper.port) as proxy:
        yield proxy


@asynccontextmanager
async def opened(connect: str, **changed) -> AsyncIterator[ZooKeeperTree]:
    tree = await ZooKeeperTree.open(connect, **{**TIMEOUTS, **changed})
    try:
        yield tree
    finally:
        await tree.close()


def run_elsewhere(story: Coroutine[Any, Any, None]) -> None:
    """Run it on a thread of its own. The event loop of the caller does not turn meanwhile."""
    with ThreadPoolExecutor(1) as elsewhere:
        elsewhere.submit(asyncio.run, story).result()


class Events:
    def __init__(self, tree: ZooKeeperTree) -> None:
        self._heard: asyncio.Queue = asyncio.Queue()
        tree.on_session_event = self._heard.put_nowait

    async def until(self, expected: SessionEvent) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while await self._heard.get() is not expected:
                pass


# --- addresses


@in_loop
async def test_the_chroot_is_made_with_its_parents_and_hides_what_is_outside(zookeeper):
    outside, inside = f"/nested{next(chroots)}", "/a/b"
    async with opened(zookeeper.connect) as whole:
        async with opened(zookeeper.connect + outside + inside) as tree:
            node = await tree.create("/n_", b"1", sequential=True)
            assert node.path == "/n_0000000000"
            assert await tree.children("/") == ["n_0000000000"]
            fired = asyncio.Queue()
            await tree.children("/", watch=fired.put_nowait)
            await whole.create(f"{outside}{inside}/other")
            assert await asyncio.wait_for(fired.get(), PATIENCE_SECONDS) == "/"
        found = await whole.get(f"{outside}{inside}/n_0000000000")
        assert found is not None and found.value == b"1" and found.ephemeral_owner == 0
        assert "zookeeper" in (await whole.children("/") or [])


@in_loop
async def test_two_clusters_share_one_zookeeper(zookeeper, connect):
    async with opened(connect) as one, opened(f"{connect}-other/") as other:
        await one.create("/a", b"one")
        await other.create("/a", b"other")
        found = [await tree.get("/a") for tree in (one, other)]
        assert [node and node.value for node in found] == [b"one", b"other"]


@in_loop
async def test_a_host_that_does_not_answer_is_passed_over(connect):
    async with opened(f"127.0.0.1:{free_port()},{connect}") as tree:
        assert await tree.children("/") == []


@in_loop
async def test_an_unreachable_zookeeper_is_named_with_what_to_do():
    connect = f"127.0.0.1:{free_port()}/kafka"
    with pytest.raises(ConfigError, match=f"zookeeper.connect: no answer .* at {connect}"):
        await ZooKeeperTree.open(connect, session_timeout_ms=1000, connection_timeout_ms=100)


@in_loop
async def test_without_kazoo_the_error_says_what_to_install(monkeypatch):
    monkeypatch.delitem(sys.modules, "headrace.coordination.kazoo_session", raising=False)
    monkeypatch.setitem(sys.modules, "kazoo.client", None)
    with pytest.raises(ConfigError, match=r"pip install 'headrace\[cluster\]'"):
        await ZooKeeperTree.open("127.0.0.1:1", **TIMEOUTS)


# --- many requests


@in_loop
async def test_thousands_of_nodes_are_read_at_once(connect):
    async with opened(connect) as tree:
        paths = [f"/{number}" for number in range(3000)]
        for start in range(0, len(paths), 200):
            await tree.multi([Create(path, path.encode()) for path in paths[start:][:200]])
        nodes = await tree.get_many(paths)
        assert [node and node.value.decode() for node in nodes] == paths


@in_loop
async def test_a_zookeeper_that_cannot_read_many_at_once_reads_one_by_one(connect, monkeypatch):
    async with opened(connect) as tree:
        await tree.create("/a", b"1")
        monkeypatch.setattr("headrace.coordination.kazoo_session._MultiRead.type", 99)
        nodes = await tree.get_many(["/missing", "/a"])
        assert [node and node.value for node in nodes] == [None, b"1"]


@in_loop
async def test_a_write_that_is_too_large_for_zookeeper_is_refused(connect):
    async with opened(connect) as tree:
        await tree.create("/a", b"x" * 999_999)
        with pytest.raises(Unwritable):
            await tree.multi([Set("/a", b"x" * 999_999, ANY_VERSION), Create("/b", b"xx")])
        node = await tree.get("/a")
        assert node is not None and node.zk_version == 0


@in_loop
async def test_the_zxid_of_a_write_is_its_own_while_others_write(connect):
    async with opened(connect) as tree, opened(connect) as other:
        done = await asyncio.gather(
            *(each.create(f"/{each.session_id}-{n}") for n in range(100) for each in (tree, other))
        )
        await tree.sync()
        nodes = await tree.get_many([each.path for each in done])
        assert [node and node.created_zxid for node in nodes] == [each.zxid for each in done]


@in_loop
async def test_a_watch_hears_a_change_that_comes_together_with_the_answer_to_its_read(connect):
    async with opened(connect) as tree:
        await tree.create("/a")
        fired: asyncio.Queue = asyncio.Queue()
        reading = asyncio.create_task(tree.get("/a", watch=fired.put_nowait))
        await asyncio.sleep(0)  # the read is sent

        async def change() -> None:
            async with opened(connect) as other:
                await other.set("/a", b"1", ANY_VERSION)

        run_elsewhere(change())
        assert await asyncio.wait_for(fired.get(), PATIENCE_SECONDS) == "/a"
        node = await reading
        assert node is not None and node.value == b""


# --- lost connections


@in_loop
async def test_a_write_whose_answer_is_lost_has_an_unknown_outcome(proxy, connect):
    chroot = connect.partition("/")[2]
    async with opened(connect) as other, opened(f"127.0.0.1:{proxy.port}/{chroot}") as tree:
        proxy.lose_answers()
        writing = asyncio.create_task(tree.create("/a"))
        assert await asyncio.to_thread(proxy.wait_for_lost_answer, PATIENCE_SECONDS)
        proxy.cut()
        with pytest.raises(OutcomeUnknown) as unknown:
            await asyncio.wait_for(writing, PATIENCE_SECONDS)
        assert unknown.value.path == "/a"
        proxy.heal()
        await other.sync()
        assert await other.get("/a") is not None, "this time it had happened"


@in_loop
async def test_a_write_whose_answer_is_lost_is_read_back(proxy, connect):
    chroot = connect.partition("/")[2]
    async with opened(f"127.0.0.1:{proxy.port}/{chroot}") as tree:
        proxy.lose_answers()
        writing = asyncio.create_task(Writer(tree).write([Create("/a", b"x", ephemeral=True)]))
        assert await asyncio.to_thread(proxy.wait_for_lost_answer, PATIENCE_SECONDS)
        proxy.cut()
        proxy.heal()
        (done,) = await asyncio.wait_for(writing, PATIENCE_SECONDS)
        node = await tree.get("/a")
        assert node is not None and node.created_zxid == done.zxid


@in_loop
async def test_watches_fire_for_what_changed_while_the_connection_was_lost(proxy, connect):
    chroot = connect.partition("/")[2]
    async with opened(connect) as other, opened(f"127.0.0.1:{proxy.port}/{chroot}") as tree:
        await tree.multi([Create(path) for path in ("/set", "/gone", "/parent", "/same", "/both")])
        events = Events(tree)
        fired: asyncio.Queue = asyncio.Queue()

        def watch(path: str) -> None:
            fired.put_nowait(path)

        for path in ("/set", "/gone", "/same", "/missing", "/still-missing", "/both"):
            await tree.get(path, watch=watch)
        await tree.children("/parent", watch=watch)
        await tree.children("/both", watch=watch)
        proxy.cut()
        await events.until(SessionEvent.SUSPENDED)
        await other.multi(
            [
                Set("/set", b"1", ANY_VERSION),
                Create("/missing"),
                Create("/parent/child"),
            ]
        )
        await other.delete("/gone", ANY_VERSION)
        proxy.heal()
        await events.until(SessionEvent.RECONNECTED)
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert {await fired.get() for _ in range(4)} == {"/set", "/gone", "/missing", "/parent"}

        # The others were set again: they fire once, for what changes from now on.
        await other.multi([Set("/same", b"1", ANY_VERSION), Create("/still-missing")])
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert {await fired.get() for _ in range(2)} == {"/same", "/still-missing"}
        assert fired.empty()


@in_loop
async def test_a_read_after_a_reconnect_fires_the_other_watches_of_the_node(proxy, connect):
    chroot = connect.partition("/")[2]
    async with opened(connect) as other, opened(f"127.0.0.1:{proxy.port}/{chroot}") as tree:
        await tree.create("/a")
        early: asyncio.Queue = asyncio.Queue()
        late: asyncio.Queue = asyncio.Queue()
        await tree.get("/a", watch=early.put_nowait)
        reads = []

        def read_at_once(event: SessionEvent) -> None:
            if event is SessionEvent.RECONNECTED:
                reads.append(asyncio.create_task(tree.get("/a", watch=late.put_nowait)))

        proxy.cut()
        await other.set("/a", b"1", ANY_VERSION)
        tree.on_session_event = read_at_once
        proxy.heal()
        assert await asyncio.wait_for(early.get(), PATIENCE_SECONDS) == "/a"
        await reads[0]
        assert late.empty(), "its read saw the change"
        await other.set("/a", b"2", ANY_VERSION)
        assert await asyncio.wait_for(late.get(), PATIENCE_SECONDS) == "/a"
        assert early.empty()


@in_loop
async def test_a_flood_of_calls_at_the_moment_of_the_cut_does_not_block_the_loop(proxy, connect):
    chroot = connect.partition("/")[2]
    # The session outlasts the loop below, which blocks the event loop.
    address = f"127.0.0.1:{proxy.port}/{chroot}"
    async with opened(address, session_timeout_ms=40_000) as tree:
        events, session = Events(tree), tree.session
        flood = [asyncio.create_task(tree.get("/")) for _ in range(2000)]
        proxy.cut()
        deadline = time.monotonic() + PATIENCE_SECONDS
        while session.client.connected:  # the calls come before the loop hears of the cut
            assert time.monotonic() < deadline
        await events.until(SessionEvent.SUSPENDED)
        proxy.heal()
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert None not in await asyncio.gather(*flood)


@in_loop
async def test_a_tree_closes_at_once_without_a_connection(proxy, connect):
    async with opened(f"127.0.0.1:{proxy.port}/lost", session_timeout_ms=40_000) as tree:
        events = Events(tree)
        proxy.cut()
        await events.until(SessionEvent.SUSPENDED)
        pending = asyncio.create_task(tree.get("/"))
        async with asyncio.timeout(PATIENCE_SECONDS):  # the session would last longer
            await tree.close()
        with pytest.raises(SessionLost):
            await pending


# --- sessions


@in_loop
async def test_a_session_that_another_process_left_is_closed_once(connect):
    async with opened(connect) as other:
        left = await ZooKeeperTree.open(connect, **TIMEOUTS)
        await left.create("/mine", ephemeral=True)
        credentials = left.credentials
        assert await close_session(connect, credentials, **TIMEOUTS)
        await other.sync()
        assert await other.get("/mine") is None
        assert not await close_session(connect, credentials, **TIMEOUTS)
        wrong_password = (other.session_id, b"x" * 16)
        assert not await close_session(connect, wrong_password, **TIMEOUTS)
        await other.create("/alive")
        await left.close()


@in_loop
async def test_a_process_reattaches_to_its_session(proxy, connect):
    chroot = connect.partition("/")[2]
    async with opened(f"127.0.0.1:{proxy.port}/{chroot}", session_timeout_ms=40_000) as left:
        await left.create("/mine", ephemeral=True)
        proxy.cut()  # as if it had died: two clients of one session take it from each other
        async with opened(connect, reattach=left.credentials, session_timeout_ms=40_000) as tree:
            assert tree.session_id == left.session_id
            node = await tree.get("/mine")
            assert node is not None and node.ephemeral_owner == tree.session_id
            await tree.delete("/mine", ANY_VERSION)


@in_loop
async def test_no_write_reaches_the_session_that_kazoo_opens_after_an_expiry(connect):
    async with opened(connect) as tree, opened(connect) as other:
        session = tree.session
        stop, may_stop = session.client.stop, threading.Event()

        def stop_late(*arguments) -> None:
            may_stop.wait(PATIENCE_SECONDS)
            stop(*arguments)

        session.client.stop = stop_late

        async def expire() -> None:
            assert await close_session(connect, tree.credentials, **TIMEOUTS)
            deadline = time.monotonic() + PATIENCE_SECONDS
            while session.client.client_id in (None, tree.credentials):
                assert time.monotonic() < deadline
                await asyncio.sleep(0.01)

        run_elsewhere(expire())  # so the loop has not heard of it when it writes
        try:
            with pytest.raises(SessionLost):
                await tree.create("/late", ephemeral=True)
            await other.sync()
            assert await other.get("/late") is None
        finally:
            may_stop.set()


@in_loop
async def test_a_stuck_event_loop_loses_its_session(connect):
    async with opened(connect, session_timeout_ms=1000) as tree:
        events = Events(tree)
        await tree.create("/leader", ephemeral=True)

        async def gone_elsewhere() -> None:
            async with opened(connect) as other:
                fired: asyncio.Queue = asyncio.Queue()
                if await other.get("/leader", watch=fired.put_nowait) is not None:
                    await asyncio.wait_for(fired.get(), PATIENCE_SECONDS)
                assert await other.get("/leader") is None

        run_elsewhere(gone_elsewhere())
        await events.until(SessionEvent.LOST)
        with pytest.raises(SessionLost):
            await tree.get("/leader")
