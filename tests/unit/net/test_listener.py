"""A listener whose bind or accept fails."""

import asyncio
import errno
import socket

import pytest

from headrace.net.buffers import BufferPool
from headrace.net.listener import ConnectionLimits, CreationRate, Listener
from headrace.net.outbox import Outbox
from headrace.world.network import SystemNetwork


class Service:
    def __init__(self, limits):
        self.limits = limits

    def link_closed(self, link):
        self.limits.closed(link)


class Failing:
    """A bound address that fails a few times before it accepts."""

    def __init__(self, listening, code, times):
        self.listening = listening
        self.failures = [OSError(code, "failed")] * times

    def accept(self):
        if self.failures:
            raise self.failures.pop()
        return self.listening.accept()

    def __getattr__(self, name):
        return getattr(self.listening, name)


class FailingNetwork(SystemNetwork):
    def __init__(self, code, times):
        self.code = code
        self.times = times

    def bind(self, *address, **buffer_sizes):
        return Failing(super().bind(*address, **buffer_sizes), self.code, self.times)


def a_listener(network, host, port, limits, rate, **options):
    """Call it in a running loop."""
    return Listener(
        network,
        "PLAINTEXT",
        host,
        port,
        limits=limits,
        pool=BufferPool(1 << 20),
        outbox=Outbox(asyncio.get_running_loop(), lambda: 2),
        frame_size_max=1 << 20,
        send_buffer_size=None,
        receive_buffer_size=None,
        backlog=5,
        connections_max=10,
        creation_rate=rate,
        **options,
    )


@pytest.mark.parametrize("code", [errno.EMFILE, errno.EPROTO, errno.EPERM, errno.ENETDOWN])
def test_accepting_resumes_after_a_pause_for_any_error(caplog, code):
    async def story():
        rate = CreationRate(1 << 30)
        limits = ConnectionLimits(10, 10, {}, rate)
        listener = a_listener(
            FailingNetwork(code, times=3), "127.0.0.1", 0, limits, rate, pause_s=0
        )
        port = listener.bind()[1]
        loop = asyncio.get_running_loop()
        unhandled = []
        loop.set_exception_handler(lambda loop, context: unhandled.append(context))
        listener.accept_from_now_on(loop, Service(limits))
        client = socket.create_connection(("127.0.0.1", port))
        async with asyncio.timeout(10):
            while not limits.links:  # noqa: ASYNC110 - what is waited for has no event
                await asyncio.sleep(0.001)
        assert not unhandled
        assert caplog.text.count("pauses accepting") == 3
        listener.close()
        for link in list(limits.links):
            link.close()
        client.close()

    asyncio.run(story())


@pytest.mark.parametrize(
    ("host", "kind", "reason"),
    [
        ("127.0.0.1", OSError, "the address is in use"),
        ("192.0.2.1", OSError, "this machine has no such address"),
        ("no-such-host.invalid", socket.gaierror, "the host name cannot be resolved"),
    ],
)
def test_an_address_that_cannot_be_bound_is_named_with_the_reason(host, kind, reason):
    async def bind(port):
        rate = CreationRate(1 << 30)
        limits = ConnectionLimits(10, 10, {}, rate)
        a_listener(SystemNetwork(), host, port, limits, rate).bind()

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(kind) as failed:
            asyncio.run(bind(port))
    assert failed.value.strerror == f"Cannot listen on {host}:{port} (listener PLAINTEXT): {reason}"
