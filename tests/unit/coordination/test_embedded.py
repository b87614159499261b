"""The embedded tree keeps ZooKeeper's rules, and what it acknowledged survives a kill."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from headrace.coordination import embedded
from headrace.coordination.embedded import FILE_NAME, EmbeddedTree
from headrace.coordination.tree import (
    ANY_VERSION,
    BadVersion,
    Check,
    Create,
    Delete,
    EphemeralParent,
    NodeExists,
    NoNode,
    NotEmpty,
    Set,
)
from headrace.model.errors import Corrupt
from headrace.model.ids import ZkVersion
from tests.fakes.standin import in_loop


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[EmbeddedTree]:
    tree = await EmbeddedTree.open(folder)
    try:
        yield tree
    finally:
        await tree.close()


@in_loop
async def test_a_node_is_made_read_changed_and_deleted(tmp_path):
    async with opened(tmp_path) as tree:
        assert await tree.get("/a") is None
        await tree.create("/a", b"one")
        node = await tree.get("/a")
        assert node is not None and (node.value, node.zk_version) == (b"one", 0)

        done = await tree.set("/a", b"two", ZkVersion(0))
        assert done.zk_version == 1
        node = await tree.get("/a")
        assert node is not None and (node.value, node.zk_version) == (b"two", 1)
        assert node.created_zxid < node.modified_zxid == done.zxid

        await tree.delete("/a", ZkVersion(1))
        assert await tree.get("/a") is None


@in_loop
async def test_a_version_guards_a_write(tmp_path):
    async with opened(tmp_path) as tree:
        await tree.create("/a")
        await tree.set("/a", b"first", ZkVersion(0))
        with pytest.raises(BadVersion):
            await tree.set("/a", b"late", ZkVersion(0))
        with pytest.raises(BadVersion):
            await tree.delete("/a", ZkVersion(0))
        node = await tree.get("/a")
        assert node is not None and node.value == b"first"
        assert (await tree.set("/a", b"whatever", ANY_VERSION)).zk_version == 2


@in_loop
async def test_what_is_not_there_cannot_be_written_and_what_is_cannot_be_made(tmp_path):
    async with opened(tmp_path) as tree:
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
async def test_a_node_with_children_stays(tmp_path):
    async with opened(tmp_path) as tree:
        await tree.multi([Create("/a"), Create("/a/b")])
        with pytest.raises(NotEmpty):
            await tree.delete("/a", ANY_VERSION)
        await tree.multi([Delete("/a/b", ANY_VERSION), Delete("/a", ANY_VERSION)])
        assert await tree.children("/") == []


@in_loop
async def test_children_are_named_sorted_and_only_direct_ones(tmp_path):
    async with opened(tmp_path) as tree:
        await tree.multi([Create("/a"), Create("/a/y"), Create("/a/x"), Create("/a/x/deep")])
        assert await tree.children("/a") == ["x", "y"]
        assert await tree.children("/") == ["a"]
        assert await tree.children("/nowhere") is None


@in_loop
async def test_several_nodes_are_read_in_the_order_asked(tmp_path):
    async with opened(tmp_path) as tree:
        await tree.multi([Create("/a", b"1"), Create("/b", b"2")])
        nodes = await tree.get_many(["/b", "/gone", "/a"])
        assert [node and node.value for node in nodes] == [b"2", None, b"1"]


@in_loop
async def test_a_multi_is_all_or_nothing_and_names_the_one_that_failed(tmp_path):
    async with opened(tmp_path) as tree:
        await tree.create("/guard")
        with pytest.raises(BadVersion) as refused:
            await tree.multi(
                [Create("/a"), Check("/guard", ZkVersion(7)), Set("/guard", b"", ANY_VERSION)]
            )
        assert (refused.value.index, refused.value.path) == (1, "/guard")
        assert await tree.get("/a") is None

        done = await tree.multi([Check("/guard", ZkVersion(0)), Create("/a"), Create("/a/b")])
        assert [result.path for result in done] == ["/guard", "/a", "/a/b"]
        assert len({result.zxid for result in done}) == 1


@in_loop
async def test_sequential_children_are_numbered_and_a_number_never_returns(tmp_path):
    async with opened(tmp_path) as tree:
        await tree.create("/queue")
        first = await tree.create("/queue/n_", sequential=True)
        second = await tree.create("/queue/n_", sequential=True)
        assert first.path == "/queue/n_0000000000"
        assert second.path == "/queue/n_0000000001"
        await tree.delete(second.path, ANY_VERSION)
    async with opened(tmp_path) as tree:
        third = await tree.create("/queue/n_", sequential=True)
        assert third.path == "/queue/n_0000000002"


@in_loop
async def test_ephemeral_nodes_end_with_the_session_and_others_do_not(tmp_path):
    async with opened(tmp_path) as tree:
        await tree.create("/stays", b"kept")
        first = await tree.create("/me", ephemeral=True)
        with pytest.raises(EphemeralParent):
            await tree.create("/me/child")
    async with opened(tmp_path) as tree:
        assert await tree.get("/me") is None
        node = await tree.get("/stays")
        assert node is not None and node.value == b"kept"
        # A quick restart under the same name is told apart by its number.
        again = await tree.create("/me", ephemeral=True)
        assert again.zxid > first.zxid


@in_loop
async def test_a_refused_write_uses_up_no_number(tmp_path):
    async with opened(tmp_path) as tree:
        first = await tree.create("/a")
        with pytest.raises(NodeExists):
            await tree.create("/a")
        assert (await tree.create("/b")).zxid == first.zxid + 1


@in_loop
async def test_a_watch_on_a_node_fires_once(tmp_path):
    async with opened(tmp_path) as tree:
        seen: list[str] = []
        assert await tree.get("/a", watch=seen.append) is None
        await tree.create("/other")
        assert seen == []
        await tree.create("/a")
        assert seen == ["/a"]
        await tree.set("/a", b"", ANY_VERSION)
        assert seen == ["/a"]

        await tree.get("/a", watch=seen.append)
        await tree.delete("/a", ANY_VERSION)
        assert seen == ["/a", "/a"]


@in_loop
async def test_a_watch_on_children_sees_them_come_and_go_and_not_what_is_in_them(tmp_path):
    async with opened(tmp_path) as tree:
        seen: list[str] = []
        await tree.multi([Create("/a"), Create("/a/x")])
        await tree.children("/a", watch=seen.append)
        await tree.set("/a/x", b"new", ANY_VERSION)
        assert seen == []
        await tree.create("/a/y")
        assert seen == ["/a"]
        await tree.children("/a", watch=seen.append)
        await tree.delete("/a/y", ANY_VERSION)
        assert seen == ["/a", "/a"]


@in_loop
async def test_a_watch_on_children_of_a_missing_node_fires_when_it_appears(tmp_path):
    async with opened(tmp_path) as tree:
        seen: list[str] = []
        assert await tree.children("/a", watch=seen.append) is None
        await tree.create("/a")
        assert seen == ["/a"]


@in_loop
async def test_a_refused_multi_wakes_nobody(tmp_path):
    async with opened(tmp_path) as tree:
        seen: list[str] = []
        await tree.get("/a", watch=seen.append)
        with pytest.raises(NoNode):
            await tree.multi([Create("/a"), Check("/gone", ANY_VERSION)])
        await tree.get("/b")  # whatever was on its way has arrived
        assert seen == []


@in_loop
async def test_only_plain_files_lie_in_the_folder(tmp_path):
    # Apache Kafka does not start with an unknown folder in log.dirs; files do not trouble it.
    async with opened(tmp_path) as tree:
        await tree.create("/a")
        entries = list(tmp_path.iterdir())
        assert FILE_NAME in [entry.name for entry in entries]
        assert all(entry.is_file() for entry in entries)


@in_loop
async def test_a_machine_too_busy_to_open_it_at_once_opens_it_later(tmp_path):
    tree = EmbeddedTree(tmp_path / FILE_NAME, asyncio.get_running_loop())
    tree._thread.start()
    tree._thread.join(4 * embedded._QUIET_SECONDS)
    assert tree._thread.is_alive()
    await tree._run(tree._open)
    assert await tree.get("/") is not None
    await tree.close()


@in_loop
async def test_a_file_that_is_no_tree_is_refused_with_what_to_do(tmp_path):
    (tmp_path / FILE_NAME).write_bytes(b"not a database at all, but long enough to be one" * 100)
    with pytest.raises(Corrupt, match="Move it away"):
        await EmbeddedTree.open(tmp_path)


@in_loop
async def test_a_folder_that_is_not_there_is_refused_by_name(tmp_path):
    with pytest.raises(OSError, match="nowhere"):
        await EmbeddedTree.open(tmp_path / "nowhere")


KILLED = """
import asyncio, sys
from pathlib import Path
from headrace.coordination.embedded import EmbeddedTree

async def main():
    tree = await EmbeddedTree.open(Path(sys.argv[1]))
    number = 0
    while True:
        await tree.create(f"/n{number}", b"acknowledged")
        print(number, flush=True)
        number += 1

asyncio.run(main())
"""


@pytest.mark.torture
@pytest.mark.timeout(0)
def test_what_was_acknowledged_survives_a_kill(tmp_path, torture_rounds):
    last = -1
    for round_number in range(torture_rounds):
        folder = tmp_path / str(round_number)
        folder.mkdir()
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        child = subprocess.Popen(
            [sys.executable, "-c", KILLED, str(folder)],
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        assert child.stdout is not None
        for _ in range(20):
            last = int(child.stdout.readline())
        child.send_signal(signal.SIGKILL)
        for line in child.stdout:
            last = int(line)
        child.stdout.close()
        child.wait()
        _check_all_there(folder, last)


@in_loop
async def _check_all_there(folder: Path, last: int) -> None:
    async with opened(folder) as tree:
        nodes = await tree.get_many([f"/n{number}" for number in range(last + 1)])
        assert all(node is not None for node in nodes)
