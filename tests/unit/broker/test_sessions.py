"""Session id and password of a broker are kept beside its logs, readable by their owner only."""

import stat

import pytest

from headrace.broker.sessions import SESSION_FILE, GivenSessions, ZooKeeperSessions
from headrace.coordination import zookeeper
from headrace.coordination.tree import SessionLost
from headrace.model.config import BrokerConfig
from headrace.world.files import SystemFiles
from tests.fakes.standin import in_loop
from tests.fakes.trees import memory_tree


class Ensemble:
    """Sessions by id and password, as ZooKeeper has them."""

    def __init__(self):
        self.sessions = {}
        self.opened = []

    async def open(self, connect, *, session_timeout_ms, connection_timeout_ms, reattach=None):
        self.opened.append((connect, session_timeout_ms, connection_timeout_ms))
        if reattach is not None:
            if self.sessions.get(reattach[0]) != reattach[1]:
                raise SessionLost("/")
            return Session(self, *reattach)
        session = Session(self, 0xABC + len(self.sessions), b"secret" + bytes([len(self.sessions)]))
        self.sessions[session.credentials[0]] = session.credentials[1]
        return session


class Session:
    def __init__(self, ensemble, session_id, password):
        self.ensemble = ensemble
        self.credentials = session_id, password

    async def close(self):
        del self.ensemble.sessions[self.credentials[0]]


@pytest.fixture
def ensemble(monkeypatch):
    fake = Ensemble()
    monkeypatch.setattr(zookeeper, "ZooKeeperTree", fake)
    return fake


def sessions_in(directory, **settings):
    given = {"zookeeper.connect": "a:1,b:2/c", **settings}
    return ZooKeeperSessions(BrokerConfig.parse(given), SystemFiles(), directory)


@in_loop
async def test_the_session_of_the_last_process_is_ended(tmp_path, ensemble):
    before = sessions_in(tmp_path)
    session = await before.open()
    before.remember(session)
    session_id = session.credentials[0]
    after = sessions_in(tmp_path)
    assert not await after.release(session_id + 1)
    assert list(ensemble.sessions) == [session_id]
    assert await after.release(session_id)
    assert not ensemble.sessions
    assert await after.release(session_id)  # it has ended already


@in_loop
async def test_only_the_owner_can_read_the_password(tmp_path, ensemble):
    sessions = sessions_in(tmp_path)
    sessions.remember(await sessions.open())
    assert stat.S_IMODE((tmp_path / SESSION_FILE).stat().st_mode) == 0o600


@pytest.mark.parametrize("content", [None, b"", b"what is this", b"\xff\xfe"])
@in_loop
async def test_without_a_readable_file_no_session_is_ended(tmp_path, ensemble, content):
    sessions = sessions_in(tmp_path)
    session = await sessions.open()
    if content is not None:
        (tmp_path / SESSION_FILE).write_bytes(content)
    assert not await sessions.release(session.credentials[0])
    assert len(ensemble.sessions) == 1


@in_loop
async def test_a_file_that_cannot_be_written_is_reported(tmp_path, ensemble, caplog):
    sessions = sessions_in(tmp_path / "missing")
    sessions.remember(await sessions.open())
    assert "Could not keep the session id" in caplog.text


@pytest.mark.parametrize(
    ("settings", "timeouts"),
    [
        ({}, (18000, 18000)),
        ({"zookeeper.session.timeout.ms": "700"}, (700, 700)),
        (
            {
                "zookeeper.session.timeout.ms": "700",
                "zookeeper.connection.timeout.ms": "50",
            },
            (700, 50),
        ),
    ],
)
@in_loop
async def test_a_session_has_the_address_and_the_timeouts_of_the_settings(
    tmp_path, ensemble, settings, timeouts
):
    await sessions_in(tmp_path, **settings).open()
    assert ensemble.opened == [("a:1,b:2/c", *timeouts)]


@in_loop
async def test_sessions_of_a_tree_in_memory_are_not_kept():
    tree = memory_tree()

    async def open_session():
        return tree.open_session()

    sessions = GivenSessions(open_session, 1000)
    session = await sessions.open()
    sessions.remember(session)
    assert not await sessions.release(session.session_id)
