"""ZooKeeper as the brokers of a test's cluster reach it: each alone can be cut off and expired."""

import asyncio
import subprocess
import sys

import pytest

from headrace.coordination import paths
from headrace.coordination.tree import SessionEvent, SessionLost
from headrace.coordination.zookeeper import ZooKeeperTree
from headrace.launch.java import JavaMissing
from headrace.testing.environments import Processes, Threads
from headrace.testing.network_faults import NO_IMPAIRMENT, Impairment

pytestmark = pytest.mark.slow

SESSION_MS = 1000
LIMIT_S = 30
A, B = 0, 1
CUT = Impairment(cut=True)


@pytest.fixture
def environment(tmp_path):
    environment = Processes(tmp_path / "zookeeper")
    try:
        environment.start()
    except JavaMissing as missing:
        pytest.skip(str(missing))
    yield environment
    environment.close()


async def registered(environment, broker_id, events):
    """A session as a broker opens it, with the broker's ephemeral node."""
    tree = await ZooKeeperTree.open(
        environment.connect_of(broker_id),
        session_timeout_ms=SESSION_MS,
        connection_timeout_ms=LIMIT_S * 1000,
    )
    tree.on_session_event = events.put_nowait
    for parent in ("/brokers", paths.BROKER_IDS):
        if await tree.get(parent) is None:
            await tree.create(parent)
    await tree.create(paths.broker(broker_id), b"registered", ephemeral=True)
    return tree


def test_one_broker_is_cut_off_and_comes_back(environment):
    async def story():
        events_of_a, events_of_b = asyncio.Queue(), asyncio.Queue()
        a = await registered(environment, A, events_of_a)
        b = await registered(environment, B, events_of_b)
        assert environment.read(paths.broker(A)) == b"registered"
        assert environment.read("/no/such/node") is None
        environment.impair_tree(A, CUT)
        reading = asyncio.create_task(a.get(paths.broker(B)))
        assert await events_of_a.get() is SessionEvent.SUSPENDED
        gone = asyncio.Event()
        if await b.get(paths.broker(A), lambda path: gone.set()) is not None:
            await gone.wait()
        environment.impair_tree(A, NO_IMPAIRMENT)
        assert await events_of_a.get() is SessionEvent.LOST
        with pytest.raises(SessionLost):
            await reading
        assert events_of_b.empty()
        await a.close()
        await b.close()

    asyncio.run(limited(story()))


def test_a_session_expires_on_request(environment):
    async def story():
        events = asyncio.Queue()
        tree = await registered(environment, A, events)
        await asyncio.to_thread(environment.expire_session, A)
        seen = [await events.get(), await events.get()]
        assert seen == [SessionEvent.SUSPENDED, SessionEvent.LOST]
        await tree.close()
        again = await registered(environment, A, events)
        await again.close()

    asyncio.run(limited(story()))


async def limited(story):
    async with asyncio.timeout(LIMIT_S):
        await story


def test_a_tree_in_memory_cannot_be_slow(tmp_path):
    environment = Threads(tmp_path / "tree", LIMIT_S)
    with pytest.raises(ValueError, match=r"use Cluster\(process=True\)"):
        environment.impair_tree(A, Impairment(delay_s=1))
    environment.close()


def test_zookeeper_restarts_with_its_nodes_and_sessions(environment):
    async def story():
        events = asyncio.Queue()
        tree = await registered(environment, A, events)
        await tree.create("/kept", b"value")
        assert environment.read("/kept") == b"value"
        await asyncio.to_thread(environment.restart_tree)
        assert await asyncio.to_thread(environment.read, "/kept") == b"value"
        assert await events.get() is SessionEvent.SUSPENDED
        await tree.close()

    asyncio.run(asyncio.wait_for(story(), LIMIT_S))


def test_under_pytest_no_broker_imports_on_its_own_thread(tmp_path):
    """pytest parses each module, and CPython 3.11 cannot do that in several threads at once."""
    program = f"""
import pkgutil, sys
import pytest
from pathlib import Path
from headrace import broker
from headrace.testing.environments import Threads
Threads(Path({str(tmp_path / "tree")!r}), 1).start()
names = [each.name for each in pkgutil.walk_packages(broker.__path__, "headrace.broker.")]
print(*(name for name in names if name not in sys.modules))
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, check=True, timeout=LIMIT_S, capture_output=True, text=True)
    assert done.stdout.split() == []
