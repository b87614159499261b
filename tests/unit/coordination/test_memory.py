"""The shared tree in memory: faults of one session, several threads, one order of events."""

import asyncio
import threading

import pytest

from headrace.coordination.memory import Delivery, MemorySession, MemoryTree
from headrace.coordination.tree import (
    ANY_VERSION,
    Create,
    NodeExists,
    OutcomeUnknown,
    SessionEvent,
)
from headrace.model.ids import Millis
from tests.fakes.standin import in_loop
from tests.fakes.trees import ScriptedFaults, memory_tree

FOREVER = 1e6  # seconds
SOON = 0.001


async def value_of(session: MemorySession, path: str) -> bytes | None:
    node = await session.get(path)
    return node.value if node is not None else None


# --- lost requests and answers


@in_loop
async def test_a_lost_request_did_not_happen():
    tree = memory_tree()
    session = tree.open_session(ScriptedFaults(Delivery.REQUEST_LOST))
    with pytest.raises(OutcomeUnknown) as unknown:
        await session.create("/a")
    assert unknown.value.path == "/a"
    await session.sync()
    assert await session.get("/a") is None
    await session.create("/a")


@in_loop
async def test_a_write_whose_answer_is_lost_happened_but_shows_only_after_sync():
    tree = memory_tree()
    session, other = tree.open_session(ScriptedFaults(Delivery.ANSWER_LOST)), tree.open_session()
    with pytest.raises(OutcomeUnknown):
        await session.create("/a", b"written", ephemeral=True)
    assert await value_of(other, "/a") == b"written"
    assert await session.get("/a") is None
    await session.sync()
    node = await session.get("/a")
    assert node is not None and node.ephemeral_owner == session.session_id


@in_loop
async def test_the_answer_to_a_refused_write_can_be_lost_too():
    tree = memory_tree()
    await tree.open_session().create("/a")
    session = tree.open_session(ScriptedFaults(Delivery.ANSWER_LOST))
    with pytest.raises(OutcomeUnknown):
        await session.create("/a")


# --- lag: stale reads and the watches that go with them


@in_loop
async def test_a_session_that_lags_reads_former_values_until_it_syncs():
    tree = memory_tree()
    session, other = tree.open_session(ScriptedFaults(lag=FOREVER)), tree.open_session()
    await session.create("/a", b"old")
    await other.set("/a", b"new", ANY_VERSION)
    await other.create("/a/child")
    await other.create("/b")
    assert await value_of(session, "/a") == b"old"
    assert await session.children("/") == ["a"]
    assert await session.children("/a") == []
    assert await session.get_many(["/b"]) == [None]
    await session.sync()
    assert await value_of(session, "/a") == b"new"
    assert await session.children("/") == ["a", "b"]
    assert await session.children("/a") == ["child"]


@in_loop
async def test_a_write_catches_up_even_if_it_is_refused():
    tree = memory_tree()
    session, other = tree.open_session(ScriptedFaults(lag=FOREVER)), tree.open_session()
    await other.create("/a")
    assert await session.get("/a") is None
    with pytest.raises(NodeExists):
        await session.create("/a")
    assert await session.get("/a") is not None
    await other.create("/b")
    await session.create("/c")
    assert await session.get("/b") is not None


@in_loop
async def test_a_lag_ends_after_its_time():
    tree = memory_tree()
    session, other = tree.open_session(ScriptedFaults(lag=SOON)), tree.open_session()
    fired = asyncio.Event()
    assert await session.get("/a", watch=lambda path: fired.set()) is None
    await other.create("/a")
    await asyncio.wait_for(fired.wait(), 10)
    assert await session.get("/a") is not None


@in_loop
async def test_a_new_value_is_never_read_before_the_watch_has_fired():
    tree = memory_tree()
    session, other = tree.open_session(ScriptedFaults(lag=FOREVER)), tree.open_session()
    fired: list[str] = []
    await session.get("/a", watch=fired.append)
    await other.create("/a")
    # Set while the session lags: it missed the creation, and is told of it all the same.
    await session.children("/", watch=fired.append)
    assert fired == []
    await session.sync()
    assert fired == ["/a", "/"]


@in_loop
async def test_a_watch_can_fire_late_and_not_after_the_session_has_ended():
    tree = memory_tree()
    session, other = tree.open_session(ScriptedFaults(watch_delay=SOON)), tree.open_session()
    ended = tree.open_session(ScriptedFaults(watch_delay=SOON))
    fired, fired_in_vain = asyncio.Event(), asyncio.Event()
    await ended.get("/a", watch=lambda path: fired_in_vain.set())
    await session.get("/a", watch=lambda path: fired.set())
    await other.create("/a")
    assert await session.get("/a") is not None
    assert not fired.is_set()
    tree.expire(ended.session_id)
    await asyncio.wait_for(fired.wait(), 10)
    assert not fired_in_vain.is_set()


# --- sessions


@in_loop
async def test_a_session_closed_without_a_connection_leaves_its_nodes_until_it_expires():
    tree = memory_tree()
    session, other = tree.open_session(), tree.open_session()
    await session.create("/a", ephemeral=True)
    session.disconnect()
    await session.close()
    assert await other.get("/a") is not None
    tree.expire(session.session_id)
    assert await other.get("/a") is None


@in_loop
async def test_expiring_an_unknown_session_changes_nothing():
    tree = memory_tree()
    session = tree.open_session()
    before = (await session.create("/a")).zxid
    tree.expire(99)
    assert (await session.create("/b")).zxid == before + 1


@in_loop
async def test_on_one_loop_the_order_of_calls_is_the_order_of_everything():
    async def story() -> list[object]:
        tree = memory_tree()
        sessions = [tree.open_session() for _ in range(3)]
        trace: list[object] = []
        for number, session in enumerate(sessions):

            def told(event: SessionEvent, number: int = number) -> None:
                trace.append((number, event))

            def fired(path: str, number: int = number) -> None:
                trace.append((number, path))

            session.on_session_event = told
            await session.children("/", watch=fired)
            await session.get("/a", watch=fired)
        await asyncio.gather(
            *(
                session.create("/a", b"%d" % n, ephemeral=True)
                for n, session in enumerate(sessions)
            ),
            return_exceptions=True,
        )
        node = await sessions[2].get("/a", watch=lambda path: trace.append(path))
        trace.append(node)
        tree.expire(sessions[0].session_id)
        await sessions[1].sync()
        return trace

    trace = await story()
    root = [(0, "/a"), (0, "/"), (1, "/a"), (1, "/"), (2, "/a"), (2, "/")]
    assert trace[:6] == root
    assert trace[7:] == ["/a", (0, SessionEvent.LOST)]
    assert trace == await story()


def test_brokers_on_threads_of_their_own_share_one_tree():
    tree = memory_tree()
    writes = 50
    started = threading.Barrier(3)
    woken_on_own_thread: list[bool] = []

    async def broker(name: str) -> None:
        session = tree.open_session()
        own = threading.get_ident()
        started.wait()
        for number in range(writes):
            await session.create(f"/{name}-{number}")
        # Wait for the nodes of all brokers by watches alone.
        while True:
            changed = asyncio.Event()

            def wake(path: str, changed: asyncio.Event = changed) -> None:
                woken_on_own_thread.append(threading.get_ident() == own)
                changed.set()

            names = await session.children("/", watch=wake)
            assert names == sorted(names or ())
            if len(names) == 3 * writes:
                return
            await asyncio.wait_for(changed.wait(), 30)

    threads = [
        threading.Thread(target=lambda name=name: asyncio.run(broker(name))) for name in "abc"
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(woken_on_own_thread)

    async def count() -> int:
        return (await tree.open_session().create("/end")).zxid

    assert asyncio.run(count()) == 3 * writes + 1


def test_events_for_a_loop_that_was_closed_are_dropped():
    tree = memory_tree()

    async def killed() -> int:
        session = tree.open_session()
        await session.create("/a", ephemeral=True)
        await session.get("/a", watch=lambda path: None)
        return session.session_id

    async def survivor(session_id: int) -> None:
        session = tree.open_session()
        await session.set("/a", b"", ANY_VERSION)
        tree.expire(session_id)
        assert await session.get("/a") is None

    asyncio.run(survivor(asyncio.run(killed())))


@in_loop
async def test_a_multi_that_fails_leaves_the_children_as_they_were():
    session = memory_tree().open_session()
    await session.create("/b")
    with pytest.raises(NodeExists):
        await session.multi([Create("/a"), Create("/c"), Create("/b")])
    assert await session.children("/") == ["b"]


@in_loop
async def test_a_test_reads_the_newest_value_without_a_session():
    tree = memory_tree()
    session = tree.open_session()
    await session.create("/a", b"old")
    session.disconnect()
    await tree.open_session().set("/a", b"new", ANY_VERSION)
    assert tree.read("/a") == b"new" and tree.read("/b") is None


@in_loop
async def test_a_snapshot_has_everything_but_ephemeral_nodes():
    tree = memory_tree()
    session = tree.open_session()
    await session.create("/a", b"1")
    await session.create("/a/b")
    await session.create("/a-b")  # sorts between /a and its children
    numbered = await session.create("/a/number-", sequential=True)
    await session.set("/a", b"2", ANY_VERSION)
    kept = await session.get("/a")
    await session.create("/gone", ephemeral=True)
    restored = MemoryTree(lambda: Millis(0), tree.snapshot()).open_session()
    assert await restored.children("/") == ["a", "a-b"]
    assert await restored.children("/a") == ["b", "number-0000000000"]
    assert await restored.get("/a") == kept
    following = await restored.create("/a/number-", sequential=True)
    assert following.path == "/a/number-0000000001" and following.zxid > numbered.zxid
