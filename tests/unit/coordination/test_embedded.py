"""The embedded tree's file: what is in the directory, what is refused, what survives a kill."""

import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from headrace.coordination import embedded
from headrace.coordination.embedded import FILE_NAME, EmbeddedTree
from headrace.coordination.tree import NodeExists
from headrace.model.errors import Corrupt
from tests.fakes.standin import StillWorld, in_loop


@asynccontextmanager
async def opened(directory: Path) -> AsyncIterator[EmbeddedTree]:
    tree = await EmbeddedTree.open(directory, StillWorld().now)
    try:
        yield tree
    finally:
        await tree.close()


@in_loop
async def test_a_refused_write_uses_up_no_zxid(tmp_path):
    async with opened(tmp_path) as tree:
        first = await tree.create("/a")
        with pytest.raises(NodeExists):
            await tree.create("/a")
        assert (await tree.create("/b")).zxid == first.zxid + 1


@in_loop
async def test_the_directory_holds_only_plain_files(tmp_path):
    # Apache Kafka does not start with an unknown directory in log.dirs; it ignores files.
    async with opened(tmp_path) as tree:
        await tree.create("/a")
        entries = list(tmp_path.iterdir())
        assert FILE_NAME in [entry.name for entry in entries]
        assert all(entry.is_file() for entry in entries)


@in_loop
async def test_the_file_of_a_newer_version_is_refused_by_name_and_not_changed(tmp_path):
    async with opened(tmp_path) as tree:
        await tree.create("/a")
    with sqlite3.connect(tmp_path / FILE_NAME) as file:
        assert file.execute("PRAGMA user_version").fetchone() == (1,)
        file.execute("PRAGMA user_version=2")
        file.execute("ALTER TABLE node RENAME TO leaf")
    file.close()
    with pytest.raises(Corrupt, match=f"{FILE_NAME} .* has version 2; this Headrace reads up to 1"):
        async with opened(tmp_path):
            pass
    with sqlite3.connect(tmp_path / FILE_NAME) as file:
        tables = file.execute("SELECT name FROM sqlite_master WHERE type='table'").fetchall()
    file.close()
    assert ("leaf",) in tables
    assert ("node",) not in tables


@in_loop
async def test_a_tree_that_is_opened_late_is_opened(tmp_path, monkeypatch):
    class Early(threading.Thread):
        """On a busy machine the first job comes after the thread has waited for one."""

        def start(self):
            super().start()
            self.join(4 * embedded.IDLE_SECONDS)
            assert self.is_alive()

    monkeypatch.setattr(embedded, "threading", SimpleNamespace(Thread=Early))
    tree = await EmbeddedTree.open(tmp_path, StillWorld().now)
    assert await tree.get("/") is not None
    await tree.close()


@in_loop
async def test_a_file_that_is_not_a_tree_is_refused_with_advice(tmp_path):
    (tmp_path / FILE_NAME).write_bytes(b"not a database at all, but long enough to be one" * 100)
    with pytest.raises(Corrupt, match="Move it away"):
        await EmbeddedTree.open(tmp_path, StillWorld().now)


@in_loop
async def test_a_missing_directory_is_refused_by_name(tmp_path):
    with pytest.raises(OSError, match="nowhere"):
        await EmbeddedTree.open(tmp_path / "nowhere", StillWorld().now)


KILLED = """
import asyncio, sys
from pathlib import Path
from types import SimpleNamespace
from headrace.coordination.embedded import EmbeddedTree

async def main():
    tree = await EmbeddedTree.open(Path(sys.argv[1]), lambda: 0)
    number = 0
    while True:
        await tree.create(f"/n{number}", b"acknowledged")
        print(number, flush=True)
        number += 1

asyncio.run(main())
"""


@pytest.mark.torture
@pytest.mark.timeout(0)
def test_acknowledged_writes_survive_a_kill(tmp_path, torture_rounds):
    last = -1
    for round_number in range(torture_rounds):
        directory = tmp_path / str(round_number)
        directory.mkdir()
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        child = subprocess.Popen(
            [sys.executable, "-c", KILLED, str(directory)],
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
        _check_all_nodes_exist(directory, last)


@in_loop
async def _check_all_nodes_exist(directory: Path, last: int) -> None:
    async with opened(directory) as tree:
        nodes = await tree.get_many([f"/n{number}" for number in range(last + 1)])
        assert all(node is not None for node in nodes)
