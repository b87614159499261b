"""Stored settings, and notices that tell other brokers of changes and go after 15 minutes."""

import asyncio

import pytest

from headrace.coordination import paths, values
from headrace.coordination.config_store import NOTICE_LIFETIME_MS, ChangedConfig, ConfigStore
from headrace.coordination.memory import MemorySession, MemoryTree
from headrace.coordination.tree import ANY_VERSION, Create
from headrace.coordination.writer import Writer
from headrace.model.ids import Millis
from tests.fakes.standin import in_loop
from tests.fakes.trees import ScriptedFaults


class Cluster:
    """Brokers that share one tree, and a clock that a test moves."""

    def __init__(self) -> None:
        self.now = Millis(1_700_000_000_000)
        self.tree = MemoryTree(lambda: self.now)

    async def start(self) -> MemorySession:
        session = self.tree.open_session()
        parents = ("/config", "/config/topics", "/config/groups", paths.CONFIG_CHANGES)
        await session.multi([Create(path) for path in parents])
        return session

    def broker(self, session: MemorySession | None = None) -> ConfigStore:
        session = session or self.tree.open_session()
        return ConfigStore(session, Writer(session))


@in_loop
async def test_settings_are_replaced_as_a_whole_and_resources_without_any_are_left_out():
    cluster = Cluster()
    store = cluster.broker(await cluster.start())
    await store.store("topics", "t", {"a": "1", "b": "2"})
    await store.store("topics", "t", {"b": "3"})
    await store.store("topics", "u", {})
    await store.store("groups", "a/b%2F c", {"g": "1"})
    assert await store.load("topics") == {"t": {"b": "3"}}
    assert await store.load("groups") == {"a/b%2F c": {"g": "1"}}
    assert await store.load("missing") == {}


@in_loop
async def test_another_broker_reads_each_change_once_in_order():
    cluster = Cluster()
    store = cluster.broker(await cluster.start())
    other = cluster.broker()
    assert await other.read_changes(cluster.now) == []
    await store.store("topics", "t", {"a": "1"})
    await store.store("topics", "u", {"a": "1"})
    await store.store("topics", "t", {"a": "2"})
    changes = [ChangedConfig("topics", "t"), ChangedConfig("topics", "u")]
    assert await other.read_changes(cluster.now) == changes
    assert await other.read_changes(cluster.now) == []
    await store.store("groups", "a/b", {"a": "3"})
    assert await other.read_changes(cluster.now) == [ChangedConfig("groups", "a/b")]


@in_loop
async def test_a_watch_tells_of_the_next_change():
    cluster = Cluster()
    store = cluster.broker(await cluster.start())
    other = cluster.broker()
    changed = asyncio.Event()
    await other.read_changes(cluster.now, watch=lambda path: changed.set())
    await store.store("topics", "t", {})
    await asyncio.wait_for(changed.wait(), 10)
    assert await other.read_changes(cluster.now) == [ChangedConfig("topics", "t")]


@in_loop
async def test_old_notices_are_deleted_while_a_newer_one_is_handled_and_not_before():
    cluster = Cluster()
    session = await cluster.start()
    store, other = cluster.broker(session), cluster.broker()
    await store.store("topics", "t", {"a": "1"})
    await other.read_changes(cluster.now)
    cluster.now = Millis(cluster.now + NOTICE_LIFETIME_MS + 1)
    assert await other.read_changes(cluster.now) == []
    assert await session.children(paths.CONFIG_CHANGES) == ["config_change_0000000000"]
    await store.store("topics", "t", {"a": "2"})
    assert await other.read_changes(cluster.now) == [ChangedConfig("topics", "t")]
    assert await session.children(paths.CONFIG_CHANGES) == ["config_change_0000000001"]


@in_loop
async def test_brokers_that_delete_the_same_old_notices_do_not_disturb_each_other():
    cluster = Cluster()
    session = await cluster.start()
    store = cluster.broker(session)
    for topic in "abcdef":
        await store.store("topics", topic, {})
    cluster.now = Millis(cluster.now + NOTICE_LIFETIME_MS + 1)
    await store.store("topics", "new", {})
    expected = [ChangedConfig("topics", topic) for topic in (*"abcdef", "new")]
    # The second broker still sees the notices that the first one deletes.
    behind = cluster.broker(cluster.tree.open_session(ScriptedFaults(lag=1e6)))
    answers = await asyncio.gather(
        cluster.broker().read_changes(cluster.now), behind.read_changes(cluster.now)
    )
    assert answers == [expected, expected]
    assert await session.children(paths.CONFIG_CHANGES) == ["config_change_0000000006"]


@in_loop
async def test_unreadable_notices_are_skipped():
    cluster = Cluster()
    session = await cluster.start()
    await session.create(f"{paths.CONFIG_CHANGES}/not-a-notice")
    await session.create(paths.CONFIG_CHANGE_PREFIX, b"garbage", sequential=True)
    store = cluster.broker(session)
    await store.store("topics", "t", {})
    assert await store.read_changes(cluster.now) == [ChangedConfig("topics", "t")]
    assert await store.read_changes(cluster.now) == []


@pytest.mark.parametrize("exists", [True, False])
@in_loop
async def test_of_two_brokers_that_change_the_same_settings_the_last_one_wins(exists):
    cluster = Cluster()
    session = await cluster.start()
    path = paths.config("topics", "t")
    if exists:
        await session.create(path, values.encode_config({"a": "0"}))
    behind = cluster.tree.open_session(ScriptedFaults(lag=1e6))
    await behind.get(path)
    first, second = cluster.broker(session), cluster.broker(behind)
    await first.store("topics", "t", {"a": "1"})
    await second.store("topics", "t", {"a": "2"})
    await session.sync()
    assert await first.load("topics") == {"t": {"a": "2"}}
    assert len(await first.read_changes(cluster.now)) == 1
    assert len(await session.children(paths.CONFIG_CHANGES) or ()) == 2


@in_loop
async def test_settings_deleted_with_their_topic_can_be_stored_again():
    cluster = Cluster()
    session = await cluster.start()
    store = cluster.broker(session)
    await store.store("topics", "t", {"a": "1"})
    behind = cluster.broker(cluster.tree.open_session(ScriptedFaults(lag=1e6)))
    await session.delete(paths.config("topics", "t"), ANY_VERSION)
    await behind.store("topics", "t", {"a": "2"})
    await session.sync()
    assert await store.load("topics") == {"t": {"a": "2"}}
