"""Every implementation of the coordination tree keeps the rules of ``tree.py``, by their numbers.

Rule 2 asks something of the callers: see ``test_writer.py``.
"""

import asyncio
import itertools
import threading
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager

import pytest

from headrace.coordination.embedded import EmbeddedTree
from headrace.coordination.memory import MemorySession, MemoryTree
from headrace.coordination.tree import (
    ANY_VERSION,
    NO_SESSION,
    BadVersion,
    Check,
    Create,
    Delete,
    EphemeralParent,
    NodeExists,
    NoNode,
    NotEmpty,
    SessionEvent,
    SessionLost,
    Set,
    Tree,
    TreeError,
)
from headrace.coordination.zookeeper import ZooKeeperTree, close_session
from headrace.model.ids import Millis, ZkVersion
from tests.fakes.cut_proxy import CutProxy
from tests.fakes.standin import StillWorld, in_loop

pytestmark = pytest.mark.usefixtures("zookeeper_or_none")

PATIENCE_SECONDS = 10
# No test waits for it. A session that could end while a busy machine does not run this process
# would fail tests at random.
SESSION_TIMEOUT_MS = 30_000


class EmbeddedTrees:
    """Sessions one after another: the file has one at a time."""

    def __init__(self, request: pytest.FixtureRequest) -> None:
        self._directory = request.getfixturevalue("tmp_path")

    def is_now(self, time_of_tree: Millis) -> bool:
        return time_of_tree == StillWorld().now()

    async def open(self) -> Tree:
        return await EmbeddedTree.open(self._directory, StillWorld().now)


class MemoryTrees:
    """Any number of sessions, which can be expired and disconnected."""

    def __init__(self, request: pytest.FixtureRequest) -> None:
        self._shared = MemoryTree(StillWorld().now)

    def is_now(self, time_of_tree: Millis) -> bool:
        return time_of_tree == StillWorld().now()

    async def open(self) -> Tree:
        return self._shared.open_session()

    def expire(self, tree: Tree) -> None:
        self._shared.expire(tree.session_id)

    def disconnect(self, tree: Tree) -> None:
        assert isinstance(tree, MemorySession)
        tree.disconnect()

    def reconnect(self, tree: Tree) -> None:
        assert isinstance(tree, MemorySession)
        tree.reconnect()


class ZooKeeperTrees:
    """Sessions at a real ZooKeeper, each through a proxy that cuts its connection.

    Each test has a chroot of its own.
    """

    _chroots = itertools.count()

    def __init__(self, request: pytest.FixtureRequest) -> None:
        self._server = request.getfixturevalue("zookeeper")
        self._chroot = f"/contract/{next(self._chroots)}"
        self._proxies: dict[int, CutProxy] = {}
        self._started = ExitStack()
        request.addfinalizer(self._started.close)

    def is_now(self, time_of_tree: Millis) -> bool:
        return abs(time.time() * 1000 - time_of_tree) < PATIENCE_SECONDS * 1000

    async def open(self) -> Tree:
        proxy = self._started.enter_context(CutProxy(self._server.port))
        tree = await ZooKeeperTree.open(
            f"127.0.0.1:{proxy.port}{self._chroot}",
            session_timeout_ms=SESSION_TIMEOUT_MS,
            connection_timeout_ms=PATIENCE_SECONDS * 1000,
        )
        self._proxies[tree.session_id] = proxy
        return tree

    def expire(self, tree: Tree) -> None:
        """Close the session from elsewhere: to its owner that is the same as an expiry."""
        assert isinstance(tree, ZooKeeperTree)
        closing = close_session(
            self._server.connect,
            tree.credentials,
            session_timeout_ms=SESSION_TIMEOUT_MS,
            connection_timeout_ms=PATIENCE_SECONDS * 1000,
        )
        with ThreadPoolExecutor(1) as elsewhere:
            assert elsewhere.submit(asyncio.run, closing).result()

    def disconnect(self, tree: Tree) -> None:
        self._proxies[tree.session_id].cut()

    def reconnect(self, tree: Tree) -> None:
        self._proxies[tree.session_id].heal()


@pytest.fixture(params=[EmbeddedTrees, MemoryTrees, ZooKeeperTrees])
def trees(request) -> EmbeddedTrees | MemoryTrees | ZooKeeperTrees:
    return request.param(request)


@pytest.fixture(params=[MemoryTrees, ZooKeeperTrees])
def shared(request) -> MemoryTrees | ZooKeeperTrees:
    """Trees that several sessions share."""
    return request.param(request)


@asynccontextmanager
async def session(trees) -> AsyncIterator[Tree]:
    tree = await trees.open()
    try:
        yield tree
    finally:
        await tree.close()


class Calls:
    """A callback that records its calls; ``next`` waits for one."""

    def __init__(self) -> None:
        self._calls: asyncio.Queue = asyncio.Queue()

    def __call__(self, argument) -> None:
        self._calls.put_nowait(argument)

    async def next(self):
        return await asyncio.wait_for(self._calls.get(), PATIENCE_SECONDS)

    async def none_so_far(self, tree: Tree) -> bool:
        """Also of the calls that are on their way: watches fire in the order of writes."""
        last = Calls()
        path = "/every-earlier-watch-has-fired"
        await tree.get(path, watch=last)
        await tree.create(path)
        await last.next()
        await tree.delete(path, ANY_VERSION)
        return self._calls.empty()


# --- rule 1: writes are guarded by versions


@in_loop
async def test_1_a_node_is_created_read_changed_and_deleted(trees):
    async with session(trees) as tree:
        assert await tree.get("/a") is None
        await tree.create("/a", b"one")
        node = await tree.get("/a")
        assert node is not None
        assert (node.value, node.zk_version) == (b"one", 0)
        assert trees.is_now(node.created_at)
        await tree.set("/a", b"two", ZkVersion(0))
        node = await tree.get("/a")
        assert node is not None and (node.value, node.zk_version) == (b"two", 1)
        await tree.delete("/a", ZkVersion(1))
        assert await tree.get("/a") is None


@in_loop
async def test_1_a_version_guards_a_write(trees):
    async with session(trees) as tree:
        await tree.create("/a")
        await tree.set("/a", b"first", ZkVersion(0))
        with pytest.raises(BadVersion):
            await tree.set("/a", b"late", ZkVersion(0))
        with pytest.raises(BadVersion):
            await tree.delete("/a", ZkVersion(0))
        node = await tree.get("/a")
        assert node is not None and node.value == b"first"
        assert (await tree.set("/a", b"", ANY_VERSION)).zk_version == 2


@in_loop
async def test_1_a_missing_node_cannot_be_written_and_an_existing_one_not_created(trees):
    async with session(trees) as tree:
        with pytest.raises(NoNode):
            await tree.set("/a", b"", ZkVersion(0))
        with pytest.raises(NoNode):
            await tree.set("/a", b"", ANY_VERSION)
        with pytest.raises(NoNode):
            await tree.delete("/a", ANY_VERSION)
        with pytest.raises(NoNode):
            await tree.create("/a/b")
        await tree.create("/a")
        with pytest.raises(NodeExists):
            await tree.create("/a")


@in_loop
async def test_1_a_node_with_children_cannot_be_deleted(trees):
    async with session(trees) as tree:
        await tree.multi([Create("/a"), Create("/a/b")])
        with pytest.raises(NotEmpty):
            await tree.delete("/a", ANY_VERSION)
        await tree.multi([Delete("/a/b", ANY_VERSION), Delete("/a", ANY_VERSION)])
        assert await tree.get("/a") is None


# --- reading


@in_loop
async def test_children_are_sorted_names_of_direct_children(trees):
    async with session(trees) as tree:
        await tree.multi([Create("/a"), Create("/a/y"), Create("/a/x"), Create("/a/x/deep")])
        assert await tree.children("/a") == ["x", "y"]
        assert await tree.children("/a/y") == []
        assert await tree.children("/missing") is None


@in_loop
async def test_several_nodes_are_read_in_the_order_given(trees):
    async with session(trees) as tree:
        await tree.multi([Create("/a", b"1"), Create("/b", b"2")])
        nodes = await tree.get_many(["/b", "/missing", "/a"])
        assert [node and node.value for node in nodes] == [b"2", None, b"1"]
        assert await tree.get_many([]) == []


# --- rules 3 and 4: watches


@in_loop
async def test_3_a_watch_on_a_node_fires_once(trees):
    async with session(trees) as tree:
        await tree.create("/a")
        fired = Calls()
        await tree.get("/a", watch=fired)
        await tree.create("/other")
        assert await fired.none_so_far(tree)
        await tree.set("/a", b"1", ANY_VERSION)
        assert await fired.next() == "/a"
        await tree.set("/a", b"2", ANY_VERSION)
        assert await fired.none_so_far(tree)


@in_loop
async def test_3_a_watch_fires_when_the_node_is_deleted(trees):
    async with session(trees) as tree:
        await tree.create("/a")
        fired = Calls()
        await tree.get("/a", watch=fired)
        await tree.delete("/a", ANY_VERSION)
        assert await fired.next() == "/a"


@in_loop
async def test_3_a_callback_that_is_set_twice_is_called_once(trees):
    async with session(trees) as tree:
        await tree.create("/a")
        fired, other = Calls(), Calls()
        await tree.get("/a", watch=fired)
        await tree.get("/a", watch=other)
        await tree.get("/a", watch=fired)
        await tree.set("/a", b"", ANY_VERSION)
        assert await fired.next() == "/a"
        assert await other.next() == "/a"
        assert await fired.none_so_far(tree)


@in_loop
async def test_3_a_refused_write_fires_no_watch(trees):
    async with session(trees) as tree:
        fired = Calls()
        await tree.get("/a", watch=fired)
        with pytest.raises(NoNode):
            await tree.multi([Create("/a"), Check("/missing", ANY_VERSION)])
        assert await fired.none_so_far(tree)


@in_loop
async def test_4_a_watch_on_a_missing_node_fires_when_it_is_created(trees):
    async with session(trees) as tree:
        fired = Calls()
        assert await tree.get("/a", watch=fired) is None
        await tree.create("/a")
        assert await fired.next() == "/a"


@in_loop
async def test_4_a_watch_of_children_fires_when_they_come_and_go_not_when_they_change(trees):
    async with session(trees) as tree:
        await tree.multi([Create("/a"), Create("/a/x")])
        fired = Calls()
        await tree.children("/a", watch=fired)
        await tree.set("/a/x", b"new", ANY_VERSION)
        await tree.set("/a", b"new", ANY_VERSION)
        await tree.create("/a/x/deep")
        assert await fired.none_so_far(tree)
        await tree.create("/a/y")
        assert await fired.next() == "/a"
        await tree.children("/a", watch=fired)
        await tree.delete("/a/y", ANY_VERSION)
        assert await fired.next() == "/a"


@in_loop
async def test_4_a_watch_of_children_fires_when_the_node_itself_comes_and_goes(trees):
    async with session(trees) as tree:
        fired = Calls()
        assert await tree.children("/a", watch=fired) is None
        await tree.create("/a")
        assert await fired.next() == "/a"
        await tree.children("/a", watch=fired)
        await tree.delete("/a", ANY_VERSION)
        assert await fired.next() == "/a"


@in_loop
async def test_4_writes_of_other_sessions_fire_watches(shared):
    async with session(shared) as tree, session(shared) as other:
        fired = Calls()
        await tree.get("/a", watch=fired)
        await other.create("/a")
        assert await fired.next() == "/a"


# --- rule 5: ephemeral nodes


@in_loop
async def test_5_ephemeral_nodes_end_with_the_session_and_others_do_not(trees):
    async with session(trees) as tree:
        await tree.create("/stays", b"kept")
        await tree.create("/goes", ephemeral=True)
        assert await tree.get("/goes") is not None
    async with session(trees) as tree:
        assert await tree.get("/goes") is None
        node = await tree.get("/stays")
        assert node is not None and node.value == b"kept"


@in_loop
async def test_5_an_ephemeral_node_names_its_session_and_has_no_children(trees):
    async with session(trees) as tree:
        await tree.create("/plain")
        await tree.create("/mine", ephemeral=True)
        plain, mine = await tree.get_many(["/plain", "/mine"])
        assert plain is not None and plain.ephemeral_owner == NO_SESSION
        assert mine is not None and mine.ephemeral_owner == tree.session_id != NO_SESSION
        with pytest.raises(EphemeralParent):
            await tree.create("/mine/child")


@in_loop
async def test_5_the_end_of_a_session_fires_watches_of_the_others(shared):
    async with session(shared) as tree:
        fired = Calls()
        async with session(shared) as other:
            assert other.session_id != tree.session_id
            await other.create("/a", ephemeral=True)
            await tree.sync()
            assert await tree.children("/", watch=fired) == ["a"]
        assert await fired.next() == "/"
        assert await tree.children("/") == []


# --- rule 6: multi


@in_loop
async def test_6_a_multi_does_all(trees):
    async with session(trees) as tree:
        await tree.create("/guard")
        done = await tree.multi(
            [
                Check("/guard", ZkVersion(0)),
                Create("/a"),
                Create("/a/b"),
                Set("/a", b"1", ZkVersion(0)),
            ]
        )
        assert [(each.path, each.zk_version) for each in done[1:]] == [
            ("/a", 0),
            ("/a/b", 0),
            ("/a", 1),
        ]


@pytest.mark.parametrize(
    ("failing", "error"),
    [
        (Check("/guard", ZkVersion(7)), BadVersion),
        (Check("/missing", ANY_VERSION), NoNode),
        (Set("/guard", b"", ZkVersion(7)), BadVersion),
        (Delete("/missing", ANY_VERSION), NoNode),
        (Delete("/guard", ANY_VERSION), NotEmpty),
        (Create("/guard"), NodeExists),
        (Create("/missing/child"), NoNode),
        (Create("/ephemeral/child"), EphemeralParent),
    ],
)
@in_loop
async def test_6_or_nothing_and_names_the_operation_that_failed(trees, failing, error):
    async with session(trees) as tree:
        await tree.multi([Create("/guard"), Create("/guard/child"), Create("/changed", b"before")])
        await tree.create("/ephemeral", ephemeral=True)
        with pytest.raises(error) as refused:
            await tree.multi(
                [
                    Create("/a"),
                    Create("/n_", sequential=True),
                    Set("/changed", b"after", ANY_VERSION),
                    Delete("/guard/child", ANY_VERSION)
                    if error is not NotEmpty
                    else Check("/guard/child", ANY_VERSION),
                    failing,
                    Create("/b"),
                ]
            )
        assert (refused.value.index, refused.value.path) == (4, failing.path)
        assert await tree.children("/") == ["changed", "ephemeral", "guard"]
        assert await tree.children("/guard") == ["child"]
        node = await tree.get("/changed")
        assert node is not None and (node.value, node.zk_version) == (b"before", 0)


# --- rule 7: where callbacks run


@in_loop
async def test_7_callbacks_run_on_the_owners_loop_once_the_write_can_be_read(trees):
    async with session(trees) as tree:
        loop, thread = asyncio.get_running_loop(), threading.get_ident()
        reads: asyncio.Queue = asyncio.Queue()

        def fired(path: str) -> None:
            assert threading.get_ident() == thread
            reads.put_nowait(loop.create_task(tree.get(path)))

        await tree.get("/a", watch=fired)
        await tree.create("/a", b"new")
        node = await (await asyncio.wait_for(reads.get(), PATIENCE_SECONDS))
        assert node is not None and node.value == b"new"


# --- rule 8: paths


@pytest.mark.parametrize("path", ["", "a", "/", "/a/", "//a", "/a//b"])
@in_loop
async def test_8_a_malformed_path_cannot_be_created(trees, path):
    async with session(trees) as tree:
        with pytest.raises(ValueError, match="not the path"):
            await tree.multi([Create("/before"), Create(path)])
        assert await tree.children("/") == []


@in_loop
async def test_8_the_root_exists(trees):
    async with session(trees) as tree:
        assert await tree.get("/") is not None
        assert await tree.children("/") == []


# --- rule 9: stale reads


@in_loop
async def test_9_a_session_reads_its_own_writes_without_sync(trees):
    async with session(trees) as tree:
        await tree.create("/a", b"mine")
        node = await tree.get("/a")
        assert node is not None and node.value == b"mine"
        await tree.sync()


@in_loop
async def test_9_after_sync_a_session_reads_every_answered_write(shared):
    async with session(shared) as tree, session(shared) as other:
        assert await tree.get("/a") is None
        await other.create("/a", b"theirs")
        await tree.sync()
        node = await tree.get("/a")
        assert node is not None and node.value == b"theirs"


# --- rules 10 and 11: the session


@in_loop
async def test_10_a_lost_connection_that_returns_keeps_the_session(shared):
    async with session(shared) as tree, session(shared) as other:
        events, fired = Calls(), Calls()
        tree.on_session_event = events
        await tree.create("/mine", ephemeral=True)
        await tree.get("/theirs", watch=fired)
        shared.disconnect(tree)
        assert await events.next() is SessionEvent.SUSPENDED
        pending = asyncio.create_task(tree.get("/theirs"))
        await other.create("/theirs")
        assert await other.get("/mine") is not None
        assert await fired.none_so_far(other)
        assert not pending.done()

        shared.reconnect(tree)
        assert await events.next() is SessionEvent.RECONNECTED
        assert await fired.next() == "/theirs"
        assert await asyncio.wait_for(pending, PATIENCE_SECONDS) is not None
        assert await tree.get("/mine") is not None


@in_loop
async def test_11_a_session_that_expires_loses_its_nodes_and_its_owner_is_told(shared):
    async with session(shared) as tree, session(shared) as other:
        events, fired = Calls(), Calls()
        tree.on_session_event = events
        await tree.create("/mine", ephemeral=True)
        await tree.get("/theirs", watch=fired)
        shared.expire(tree)
        heard = await events.next()
        if heard is SessionEvent.SUSPENDED:
            heard = await events.next()
        assert heard is SessionEvent.LOST
        await other.sync()
        assert await other.get("/mine") is None
        with pytest.raises(SessionLost):
            await tree.create("/again", ephemeral=True)
        with pytest.raises(SessionLost):
            await tree.get("/")
        await other.create("/theirs")
        assert await fired.none_so_far(other)


@in_loop
async def test_11_a_session_that_expires_without_a_connection_is_told_when_it_returns(shared):
    async with session(shared) as tree, session(shared) as other:
        events = Calls()
        tree.on_session_event = events
        await tree.create("/mine", ephemeral=True)
        shared.disconnect(tree)
        assert await events.next() is SessionEvent.SUSPENDED
        pending = asyncio.create_task(tree.create("/late"))
        shared.expire(tree)
        await other.sync()
        assert await other.get("/mine") is None
        assert await events.none_so_far(other)

        shared.reconnect(tree)
        assert await events.next() is SessionEvent.LOST
        with pytest.raises(SessionLost):
            await asyncio.wait_for(pending, PATIENCE_SECONDS)
        assert await other.get("/late") is None


@in_loop
async def test_11_after_close_every_call_raises_session_lost_and_there_is_no_event(trees):
    events = Calls()
    tree = await trees.open()
    tree.on_session_event = events
    await tree.close()
    for call in (
        lambda: tree.get("/"),
        lambda: tree.get_many(["/"]),
        lambda: tree.children("/"),
        lambda: tree.create("/a"),
        lambda: tree.set("/a", b"", ANY_VERSION),
        lambda: tree.delete("/a", ANY_VERSION),
        lambda: tree.multi([Create("/a")]),
        lambda: tree.sync(),
    ):
        with pytest.raises(SessionLost):
            await call()
    await tree.close()
    async with session(trees) as another:
        assert await another.children("/") == []
        assert await events.none_so_far(another)


# --- rules 12 and 13: numbers


@in_loop
async def test_12_versions_count_the_changes_of_a_node(trees):
    async with session(trees) as tree:
        assert (await tree.create("/a")).zk_version == 0
        assert [(await tree.set("/a", b"", ZkVersion(v))).zk_version for v in range(3)] == [1, 2, 3]
        await tree.delete("/a", ZkVersion(3))
        assert (await tree.create("/a")).zk_version == 0


@in_loop
async def test_12_sequential_children_get_growing_numbers_that_never_come_back(trees):
    async with session(trees) as tree:
        await tree.multi([Create("/queue"), Create("/other")])
        first = await tree.create("/queue/n_", sequential=True)
        assert first.path == "/queue/n_0000000000"
        second = await tree.create("/queue/n_", sequential=True, ephemeral=True)
        third = await tree.create("/queue/n_", sequential=True)
        assert first.path < second.path < third.path
        await tree.delete(third.path, ANY_VERSION)
    async with session(trees) as tree:
        fourth = await tree.create("/queue/n_", sequential=True)
        assert fourth.path > third.path
        assert len(fourth.path) == len(first.path)
        other = await tree.create("/other/n_", sequential=True)
        assert other.path == "/other/n_0000000000"


@in_loop
async def test_13_zxids_grow_with_every_write(trees):
    async with session(trees) as tree:
        created = await tree.create("/a")
        changed = await tree.set("/a", b"", ANY_VERSION)
        both = await tree.multi([Set("/a", b"", ANY_VERSION), Create("/b", ephemeral=True)])
        assert created.zxid < changed.zxid < both[0].zxid == both[1].zxid
        node = await tree.get("/a")
        assert node is not None
        assert (node.created_zxid, node.modified_zxid) == (created.zxid, both[0].zxid)
    async with session(trees) as tree:
        # A broker that registers again, however soon, has a higher epoch.
        assert (await tree.create("/b", ephemeral=True)).zxid > both[1].zxid


def test_every_error_names_the_operation():
    error = BadVersion("/a", 3)
    assert isinstance(error, TreeError)
    assert (str(error), error.path, error.index) == ("BadVersion at /a", "/a", 3)
