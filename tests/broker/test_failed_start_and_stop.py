"""A start or stop that fails halfway ends, reports why, and leaves nothing behind."""

import asyncio
import threading

import pytest

from headrace.broker.broker import Broker
from headrace.coordination.embedded import FILE_NAME as TREE_FILE
from headrace.coordination.embedded import EmbeddedTree
from headrace.model.config import BrokerConfig
from headrace.model.errors import ConfigError
from headrace.storage.checkpoint import CLEAN_SHUTDOWN, ZOOKEEPER_SESSION


def a_config(directory):
    return BrokerConfig.parse({"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(directory)})


async def starts_and_stops(broker):
    await broker.start()
    await broker.stop()


def test_a_failure_while_the_start_waits_ends_the_start(tmp_path, monkeypatch):
    async def body():
        broker = Broker(a_config(tmp_path))

        async def waits_forever(directory, now):
            asyncio.get_running_loop().call_soon(broker.fail, ZeroDivisionError("elsewhere"))
            await asyncio.Event().wait()

        with monkeypatch.context() as patched:
            patched.setattr(EmbeddedTree, "open", waits_forever)
            with pytest.raises(ZeroDivisionError, match="elsewhere"):
                await asyncio.wait_for(broker.start(), 10)
        await asyncio.wait_for(broker.stop(), 10)
        await starts_and_stops(Broker(a_config(tmp_path)))

    asyncio.run(body())


def test_the_logs_of_a_member_of_a_cluster_are_not_served_alone(tmp_path):
    async def body():
        with pytest.raises(ConfigError, match=r"a broker of a cluster\. Set zookeeper\.connect"):
            await Broker(a_config(tmp_path)).start()
        assert not (tmp_path / TREE_FILE).exists()
        (tmp_path / ZOOKEEPER_SESSION).unlink()
        await starts_and_stops(Broker(a_config(tmp_path)))

    (tmp_path / ZOOKEEPER_SESSION).write_text("1 00\n")
    asyncio.run(body())


def test_a_stop_that_fails_ends_and_leaves_no_clean_shutdown_marker(tmp_path, monkeypatch, caplog):
    async def body():
        broker = Broker(a_config(tmp_path))
        await broker.start()
        monkeypatch.setattr(broker.services.logs, "checkpoint", lambda *_: 1 / 0)
        await asyncio.wait_for(broker.stop(), 10)
        assert isinstance(broker.failure, ZeroDivisionError)
        await asyncio.wait_for(broker.wait_stopped(), 10)

    asyncio.run(body())
    assert not (tmp_path / CLEAN_SHUTDOWN).exists()
    assert "Could not stop the logs" in caplog.text


def test_a_second_failure_while_the_broker_ends_does_not_hide_the_first(
    tmp_path, monkeypatch, caplog
):
    async def body():
        broker = Broker(a_config(tmp_path))
        await broker.start()

        async def fails():
            raise ZeroDivisionError("while ending")

        monkeypatch.setattr(broker.services.moves, "crash", fails)
        broker.fail(ZeroDivisionError("at first"))
        await asyncio.wait_for(broker.wait_stopped(), 10)
        assert str(broker.failure) == "at first"
        assert str(caplog.records[-1].exc_info[1]) == "while ending"
        await starts_and_stops(Broker(a_config(tmp_path)))

    asyncio.run(body())


def test_a_bug_while_the_broker_stops_leaves_no_clean_shutdown_marker(tmp_path, caplog):
    async def body():
        broker = Broker(a_config(tmp_path))
        await broker.start()

        async def fails():
            await asyncio.sleep(0)
            raise ZeroDivisionError("while writing")

        broker.services.tasks.spawn(fails())
        await broker.stop()
        assert str(broker.failure) == "while writing"
        assert not (tmp_path / CLEAN_SHUTDOWN).exists()
        assert "Stopped cleanly" not in caplog.text
        await starts_and_stops(Broker(a_config(tmp_path)))

    asyncio.run(body())
    assert (tmp_path / CLEAN_SHUTDOWN).exists()


def refused(thread):
    raise RuntimeError("can't start new thread")


def test_a_start_that_cannot_get_threads_fails_with_advice(tmp_path, monkeypatch):
    async def body():
        await starts_and_stops(Broker(a_config(tmp_path)))

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refused)
        with pytest.raises(OSError, match="ulimit -u"):
            asyncio.run(body())
    asyncio.run(body())


def test_once_started_a_broker_needs_no_more_threads(tmp_path, monkeypatch):
    async def body():
        broker = Broker(a_config(tmp_path))
        await broker.start()
        broker.services.logs.directories[0].later(0, lambda: None)
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refused)
            all_at_once = threading.Barrier(5)
            await asyncio.gather(*(asyncio.to_thread(all_at_once.wait, 10) for _ in range(5)))
            await broker.stop()
        assert broker.failure is None

    asyncio.run(body())
