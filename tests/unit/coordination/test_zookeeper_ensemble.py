"""The tree at an ensemble of three servers, one of which ends."""

import asyncio
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from headrace.coordination.tree import ANY_VERSION, Create, SessionEvent, Set
from headrace.coordination.zookeeper import ZooKeeperTree
from headrace.launch.zookeeper import ZooKeeperServer, free_port, mode_of, write_config
from tests.fakes.standin import in_loop

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("zookeeper_or_none")]

PATIENCE_SECONDS = 30


@pytest.fixture
def ensemble(zookeeper, tmp_path: Path) -> Iterator[list[ZooKeeperServer]]:
    members = [f"127.0.0.1:{free_port()}:{free_port()}" for _ in range(3)]
    with ExitStack() as started:
        servers = []
        for number in (1, 2, 3):
            config = write_config(tmp_path / str(number), servers=members, my_id=number)
            servers.append(started.enter_context(ZooKeeperServer(config)))
            servers[-1].start()
        for server in servers:
            server.wait_ready()
        yield servers


@in_loop
async def test_a_session_outlives_any_server_of_its_ensemble(ensemble):
    connect = ",".join(server.connect for server in ensemble) + "/kafka"
    timeouts = {"session_timeout_ms": 20_000, "connection_timeout_ms": PATIENCE_SECONDS * 1000}
    trees = [await ZooKeeperTree.open(connect, **timeouts) for _ in range(4)]
    try:
        first, *others = trees
        heard: asyncio.Queue = asyncio.Queue()
        for tree in trees:
            tree.on_session_event = heard.put_nowait
        # Each session has a server of its own choice: each reads what the others wrote.
        created = [await tree.create(f"/{tree.session_id}", ephemeral=True) for tree in trees]
        both = await first.multi([Create("/a"), Create("/a/b")])
        for tree in trees:
            await tree.sync()
            nodes = await tree.get_many([each.path for each in [*created, *both]])
            found = [node and node.created_zxid for node in nodes]
            assert found == [each.zxid for each in [*created, *both]]

        fired: asyncio.Queue = asyncio.Queue()
        for tree in trees:
            await tree.get("/a", watch=fired.put_nowait)
        leader = next(s for s in ensemble if mode_of(s.host, s.port) == "leader")
        leader.child.signal(signal.SIGKILL)
        async with asyncio.timeout(PATIENCE_SECONDS):
            while await heard.get() is not SessionEvent.RECONNECTED:
                pass
            await others[0].set("/a", b"after", ANY_VERSION)
            assert [await fired.get() for _ in trees] == ["/a"] * 4
            await first.sync()
            nodes = await first.get_many([each.path for each in created])
        assert [node and node.ephemeral_owner for node in nodes] == [t.session_id for t in trees]
        done = await first.multi([Set("/a", b"", ANY_VERSION)])
        node = await first.get("/a")
        assert node is not None and node.modified_zxid == done[0].zxid
    finally:
        for tree in trees:
            await tree.close()
