"""A start or a stop that fails half-way ends, says why, and leaves nothing behind."""

import asyncio

import pytest

from headrace.broker.app import Broker
from headrace.model.config import BrokerConfig


def a_config(folder):
    return BrokerConfig.parse({"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(folder)})


def test_a_failure_while_the_start_waits_ends_the_start(tmp_path, monkeypatch):
    async def body():
        broker = Broker(a_config(tmp_path))

        async def waits_for_ever():
            broker.loop.call_soon(broker.fail, ZeroDivisionError("elsewhere"))
            await asyncio.Event().wait()

        monkeypatch.setattr(broker, "_take_control", waits_for_ever)
        with pytest.raises(ZeroDivisionError, match="elsewhere"):
            await asyncio.wait_for(broker.start(), 10)
        await asyncio.wait_for(broker.stop(), 10)

    asyncio.run(body())
    again = Broker(a_config(tmp_path))

    async def starts_and_stops():
        await again.start()
        await again.stop()

    asyncio.run(starts_and_stops())


def test_whoever_waits_for_a_stop_that_fails_does_not_wait_for_ever(tmp_path, monkeypatch):
    async def body():
        broker = Broker(a_config(tmp_path))
        await broker.start()
        monkeypatch.setattr(broker.logs, "_close_clean", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            await broker.stop()
        await asyncio.wait_for(broker.wait_stopped(), 10)

    asyncio.run(body())
