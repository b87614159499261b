"""Session id and password of a broker are kept beside its logs, readable by their owner only."""

import stat

import pytest

from headrace.broker.sessions import InProcessSessions, ZooKeeperSessions, open_first_session
from headrace.coordination import paths
from headrace.coordination.tree import ANY_VERSION, SessionLost
from headrace.model.config import BrokerConfig
from headrace.model.errors import ConfigError
from headrace.storage.checkpoint import ZOOKEEPER_SESSION
from headrace.world.files import SystemFiles
from tests.fakes.standin import in_loop
from tests.fakes.trees import memory_tree

pytestmark = pytest.mark.usefixtures("zookeeper_or_none")


def sessions_in(directory, connect, **settings):
    given = {"zookeeper.connect": connect, "zookeeper.session.timeout.ms": "6000", **settings}
    return ZooKeeperSessions(BrokerConfig.parse(given), SystemFiles(), directory)


async def owner_of(session, path):
    node = await session.get(path)
    return node.ephemeral_owner if node is not None else None


@in_loop
async def test_the_session_of_the_last_process_is_ended(tmp_path, zookeeper):
    before = sessions_in(tmp_path, f"{zookeeper.connect}/kept")
    last = await before.open()
    before.remember(last)
    await last.create("/mine", ephemeral=True)
    after = sessions_in(tmp_path, f"{zookeeper.connect}/kept")
    session = await after.open()
    try:
        assert await owner_of(session, "/mine") == last.session_id
        assert not await after.release(last.session_id + 1)
        await session.sync()
        assert await owner_of(session, "/mine") == last.session_id
        assert await after.release(last.session_id)
        await session.sync()
        assert await owner_of(session, "/mine") is None
        assert await after.release(last.session_id)  # it has ended already
    finally:
        await last.close()
        await session.close()


@in_loop
async def test_only_the_owner_can_read_the_password(tmp_path, zookeeper):
    sessions = sessions_in(tmp_path, zookeeper.connect)
    session = await sessions.open()
    sessions.remember(session)
    await session.close()
    assert stat.S_IMODE((tmp_path / ZOOKEEPER_SESSION).stat().st_mode) == 0o600


@pytest.mark.parametrize("content", [None, b"", b"what is this", b"\xff\xfe"])
@in_loop
async def test_without_a_readable_file_no_session_is_ended(tmp_path, zookeeper, content):
    sessions = sessions_in(tmp_path, zookeeper.connect)
    session = await sessions.open()
    if content is not None:
        (tmp_path / ZOOKEEPER_SESSION).write_bytes(content)
    assert not await sessions.release(session.session_id)
    await session.create("/still-open", ephemeral=True)
    await session.delete("/still-open", ANY_VERSION)
    await session.close()


@in_loop
async def test_a_file_that_cannot_be_written_is_reported(tmp_path, zookeeper, caplog):
    sessions = sessions_in(tmp_path / "missing", zookeeper.connect)
    session = await sessions.open()
    sessions.remember(session)
    await session.close()
    assert "Could not keep the session id" in caplog.text


@in_loop
async def test_zookeeper_must_answer_within_the_connection_timeout(tmp_path):
    nowhere = sessions_in(tmp_path, "127.0.0.1:1", **{"zookeeper.connection.timeout.ms": "50"})
    assert nowhere.timeout_ms == 6000
    with pytest.raises(ConfigError, match="within 50 ms"):
        await nowhere.open()


@in_loop
async def test_sessions_of_a_tree_in_memory_are_not_kept():
    tree = memory_tree()

    async def open_session():
        return tree.open_session()

    sessions = InProcessSessions(open_session, 1000)
    session = await sessions.open()
    sessions.remember(session)
    assert not await sessions.release(session.session_id)


def dying_sessions(tree, count):
    """The first ``count`` sessions end before they are used."""
    opened = []

    async def open_session():
        opened.append(tree.open_session())
        if len(opened) <= count:
            tree.expire(opened[-1].session_id)
        return opened[-1]

    return InProcessSessions(open_session, 1000), opened


@in_loop
async def test_a_session_that_ends_during_the_start_is_replaced():
    sessions, opened = dying_sessions(memory_tree(), 2)

    session = await open_first_session(sessions)

    assert session is opened[2]
    assert await session.get(paths.BROKER_IDS) is not None


@in_loop
async def test_the_start_fails_if_every_session_ends():
    sessions, opened = dying_sessions(memory_tree(), 100)

    with pytest.raises(SessionLost):
        await open_first_session(sessions)
    assert len(opened) == 5


@in_loop
async def test_a_session_that_ends_while_it_is_opened_is_replaced():
    tree = memory_tree()
    attempts = []

    async def open_session():
        attempts.append(1)
        if len(attempts) == 1:
            raise SessionLost("/")
        return tree.open_session()

    session = await open_first_session(InProcessSessions(open_session, 1000))

    assert await session.get(paths.BROKER_IDS) is not None
