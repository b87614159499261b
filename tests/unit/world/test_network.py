"""The real and the simulated network do the same with the same calls."""

import asyncio
import errno
import random

import pytest

from headrace.world import network as network_module
from headrace.world.files import O_CREATE, SystemFiles
from headrace.world.network import MORE_FOLLOWS, SystemNetwork
from tests.fakes.network_peers import (
    Client,
    accept,
    receive,
    receive_all,
    send_all,
    writable,
)
from tests.sim.files import SimulatedDisk, SimulatedFiles
from tests.sim.loop import run_simulated
from tests.sim.network import SimulatedNetwork

BUFFERS = {"send_buffer_size": 1 << 16, "receive_buffer_size": 1 << 16}


class Site:
    """A server, a client and the network between them."""

    def __init__(self, server, client, host, files, directory):
        self.server = server
        self.client = client
        self.host = host
        self.files = files
        self.directory = directory

    def bind(self, port=0):
        return self.server.bind(self.host, port, **BUFFERS)

    async def connect(self, listening):
        """Both ends of a new connection."""
        client = Client()
        await self.client.dial(client, self.host, listening.port)
        return client, await accept(listening)

    async def connected(self):
        listening = self.bind()
        listening.listen(5)
        client, connection = await self.connect(listening)
        listening.close()
        return client, connection

    def a_file(self, content):
        fd = self.files.open(f"{self.directory}/file", O_CREATE)
        self.files.pwrite(fd, content, 0)
        return fd


def _on_sockets(story, directory):
    async def limited():
        network = SystemNetwork()
        async with asyncio.timeout(30):
            await story(Site(network, network, "127.0.0.1", SystemFiles(), directory))

    asyncio.run(limited())


def _in_simulation(story, directory):
    async def limited():
        dice = random.Random(1)
        network = SimulatedNetwork(asyncio.get_running_loop(), dice)
        files = SimulatedFiles(SimulatedDisk(lambda: 1))
        files.make_directories(directory)
        server, client = network.host("server", files), network.host("client")
        async with asyncio.timeout(30):
            await story(Site(server, client, "server", files, directory))

    run_simulated(limited(), random.Random(0))


@pytest.fixture(params=[_on_sockets, _in_simulation], ids=["system", "simulated"])
def run(request, tmp_path):
    return lambda story: request.param(story, str(tmp_path))


def test_bytes_come_back_to_the_client_that_sent_them(run):
    async def story(site):
        client, connection = await site.connected()
        assert connection.peer == client.transport.get_extra_info("sockname")[:2]
        client.transport.write(b"question")
        assert await receive_all(connection, 8) == b"question"
        assert connection.send(b"ans", MORE_FOLLOWS) == 3
        assert connection.send_many([b"w", memoryview(b"e"), bytearray(b"r")], (), 0) == 3
        assert await client.has_received(6) == b"answer"
        connection.close()
        assert await client.lost is None

    run(story)


def test_calls_that_would_wait_raise(run):
    async def story(site):
        listening = site.bind()
        listening.listen(5)
        with pytest.raises(BlockingIOError):
            listening.accept()
        client, connection = await site.connect(listening)
        with pytest.raises(BlockingIOError):
            connection.receive_into(memoryview(bytearray(10)))
        client.transport.pause_reading()
        with pytest.raises(BlockingIOError):
            for _ in range(1000):
                connection.send(bytes(1 << 16), 0)
        connection.close()
        with pytest.raises(OSError) as closed:
            connection.send(b"more", 0)
        assert closed.value.errno == errno.EBADF
        client.transport.abort()
        listening.close()

    run(story)


def test_large_transfers_pass_the_bounded_buffers_in_both_directions(run):
    async def story(site):
        client, connection = await site.connected()
        data = random.Random(2).randbytes(3_000_000)
        client.transport.write(data)
        assert await receive_all(connection, len(data)) == data
        await send_all(connection, data)
        assert await client.has_received(len(data)) == data
        client.transport.close()
        assert await receive(connection) == b""
        connection.close()

    run(story)


def test_a_reader_is_called_until_all_bytes_are_read(run):
    async def story(site):
        client, connection = await site.connected()
        client.transport.write(b"0123456789")
        assert [await receive(connection, 1) for _ in range(10)] == [b"%d" % n for n in range(10)]
        client.transport.abort()
        connection.close()

    run(story)


def test_a_client_that_sends_no_more_still_receives(run):
    async def story(site):
        client, connection = await site.connected()
        client.eof_received = lambda: True
        client.transport.write(b"last")
        client.transport.write_eof()
        assert await receive_all(connection, 4) == b"last"
        assert await receive(connection) == b""
        await send_all(connection, b"answer")
        assert await client.has_received(6) == b"answer"
        client.transport.abort()
        connection.close()

    run(story)


def test_what_was_written_before_a_close_arrives(run):
    async def story(site):
        client, connection = await site.connected()
        data = bytes(1_000_000)
        client.transport.write(data)
        client.transport.close()
        assert await receive_all(connection, len(data)) == data
        assert await receive(connection) == b""
        connection.close()
        assert await client.lost is None

    run(story)


def test_sending_to_a_closed_client_fails_after_a_while(run):
    async def story(site):
        client, connection = await site.connected()
        client.transport.abort()
        await client.lost
        with pytest.raises((ConnectionResetError, BrokenPipeError)):
            while True:
                await send_all(connection, b"more")
                await asyncio.sleep(0.001)
        connection.close()

    run(story)


def test_a_close_with_unread_bytes_resets_the_connection(run):
    async def story(site):
        client, connection = await site.connected()
        client.transport.write(b"never read")
        await receive(connection, 1)
        connection.close()
        assert isinstance(await client.lost, ConnectionResetError)

    run(story)


def test_many_clients_are_accepted_and_served(run):
    async def story(site):
        listening = site.bind()
        listening.listen(50)
        clients = [Client() for _ in range(50)]
        await asyncio.gather(*(site.client.dial(c, site.host, listening.port) for c in clients))
        for number, client in enumerate(clients):
            client.transport.write(b"%02d" % number)
        connections = [await accept(listening) for _ in clients]
        for connection in connections:
            await send_all(connection, await receive_all(connection, 2))
        assert [await client.has_received(2) for client in clients] == [
            b"%02d" % number for number in range(50)
        ]
        for connection in (*connections, listening):
            connection.close()
        for client in clients:
            assert await client.lost is None

    run(story)


async def send_a_file_range(site):
    client, connection = await site.connected()
    content = random.Random(3).randbytes(1_000_000)
    fd = site.a_file(content)
    position = 1000
    while position < len(content):
        await writable(connection)
        position += connection.send_file(fd, position, len(content) - position)
    assert await client.has_received(len(content) - 1000) == content[1000:]
    assert connection.send_file(fd, len(content), 10) == 0, "the file ends there"
    site.files.close(fd)
    connection.close()
    await client.lost


def test_file_ranges_are_sent(run):
    run(send_a_file_range)


def test_a_system_without_sendfile_sends_file_ranges_too(monkeypatch, tmp_path):
    monkeypatch.setattr(network_module, "HAS_SENDFILE", False)
    _on_sockets(send_a_file_range, str(tmp_path))


def test_an_address_without_a_listener_refuses(run):
    async def story(site):
        listening = site.bind()
        with pytest.raises(ConnectionRefusedError):
            await site.client.dial(Client(), site.host, listening.port)
        listening.listen(5)
        with pytest.raises(OSError) as in_use:
            site.bind(listening.port)
        assert in_use.value.errno == errno.EADDRINUSE
        listening.close()
        with pytest.raises(ConnectionRefusedError):
            await site.client.dial(Client(), site.host, listening.port)
        site.bind(listening.port).close()

    run(story)


def test_names_that_do_not_resolve_are_errors(run):
    async def story(site):
        with pytest.raises(OSError):
            await site.client.dial(Client(), "no-such-host.invalid", 9092)
        with pytest.raises(OSError):
            site.server.bind("no-such-host.invalid", 0, **BUFFERS)

    run(story)
