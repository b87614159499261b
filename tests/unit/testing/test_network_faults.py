"""Cut and slow connections: nothing arrives, nothing is reported, nothing is lost or reordered."""

import asyncio

import pytest

from headrace.testing.network_faults import FaultyNetwork, Impairment
from tests.fakes.network_peers import Client, accept, receive, receive_all, send_all, until

BUFFERS = {"send_buffer_size": None, "receive_buffer_size": None}
CUT = Impairment(cut=True)
DELAY_S = 0.05
LIMIT_S = 20


class Site:
    """A broker's network, and another broker that listens."""

    def __init__(self):
        self.network = FaultyNetwork()
        self.listening = self.network.bind("127.0.0.1", 0, **BUFFERS)
        self.listening.listen(5)
        self.accepted = []

    @property
    def port(self):
        return self.listening.port

    def impair(self, impairment):
        self.network.impair({self.port: impairment})

    def heal(self):
        self.network.impair({})

    async def dial(self):
        client = Client()
        await self.network.dial(client, "127.0.0.1", self.port)
        return client

    async def connect(self):
        client = await self.dial()
        connection = await accept(self.listening)
        self.accepted.append(connection)
        return client, connection

    async def settle(self):
        """Exchange bytes on another port: what is not held back has arrived by then."""
        other = self.network.bind("127.0.0.1", 0, **BUFFERS)
        other.listen(5)
        client = Client()
        await self.network.dial(client, "127.0.0.1", other.port)
        connection = await accept(other)
        client.transport.write(b"question")
        await receive_all(connection, 8)
        await send_all(connection, b"answer")
        await client.has_received(6)
        client.transport.abort()
        await client.lost
        connection.close()
        other.close()

    async def close(self):
        self.network.close()
        for connection in self.accepted:
            connection.close()
        self.listening.close()
        await asyncio.sleep(0)  # the transports close in the next turn


def told(story):
    async def limited():
        site = Site()
        try:
            async with asyncio.timeout(LIMIT_S):
                await story(site)
        finally:
            await site.close()

    def test():
        asyncio.run(limited())

    test.__name__ = story.__name__
    return test


def is_silent(connection):
    with pytest.raises(BlockingIOError):
        connection.receive_into(memoryview(bytearray(10)))
    return True


@told
async def test_a_healthy_network_passes_everything(site):
    client, connection = await site.connect()
    client.transport.write(b"question")
    assert await receive_all(connection, 8) == b"question"
    await send_all(connection, b"answer")
    assert await client.has_received(6) == b"answer"


@told
async def test_a_cut_connection_stalls_and_continues_in_order(site):
    client, connection = await site.connect()
    site.impair(CUT)
    client.transport.write(b"one")
    client.transport.write(b"two")
    await send_all(connection, b"three")
    await site.settle()
    assert is_silent(connection) and client.received == b"" and not client.lost.done()
    site.heal()
    client.transport.write(b"four")
    assert await receive_all(connection, 10) == b"onetwofour"
    assert await client.has_received(5) == b"three"


@told
async def test_a_new_connection_waits_for_the_end_of_the_cut(site):
    site.impair(CUT)
    dialing = asyncio.create_task(site.connect())
    await site.settle()
    assert not dialing.done()
    site.heal()
    client, connection = await dialing
    client.transport.write(b"hello")
    assert await receive_all(connection, 5) == b"hello"


@told
async def test_a_caller_may_give_up_a_connection_that_waits(site):
    site.impair(CUT)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await site.dial()
    site.heal()
    await site.settle()
    with pytest.raises(BlockingIOError):
        site.listening.accept()


@told
async def test_a_dial_that_is_cancelled_while_it_connects_is_lost_once(site):
    """The transport reports its end a second time, to a network that has forgotten it."""
    problems = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context))

    class Cancelled(FaultyNetwork):
        def __init__(self):
            super().__init__(network=self)

        async def dial(self, protocol, host, port):
            if isinstance(protocol, Client):
                return await super().dial(protocol, host, port)
            await asyncio.get_running_loop().create_connection(lambda: protocol, host, port)
            protocol.abort()
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await Cancelled().dial(Client(), "127.0.0.1", site.port)
    await site.settle()
    assert problems == []


@told
async def test_the_other_end_hears_of_a_close_after_the_cut(site):
    client, connection = await site.connect()
    site.impair(CUT)
    client.transport.write(b"never sent")
    client.transport.abort()
    assert await client.lost is None
    await site.settle()
    assert is_silent(connection)
    site.heal()
    assert await receive(connection) == b""


@told
async def test_this_end_hears_of_a_close_after_the_cut(site):
    client, connection = await site.connect()
    await send_all(connection, b"last words")
    site.impair(CUT)
    connection.close()
    await site.settle()
    assert not client.lost.done()
    site.heal()
    await client.lost
    assert client.received == b"last words"


@told
async def test_a_slow_connection_delays_both_directions(site):
    client, connection = await site.connect()
    site.impair(Impairment(delay_s=DELAY_S))
    loop = asyncio.get_running_loop()
    begun_at = loop.time()
    client.transport.write(b"question")
    assert await receive_all(connection, 8) == b"question"
    assert loop.time() - begun_at >= DELAY_S
    await send_all(connection, b"answer")
    assert await client.has_received(6) == b"answer"
    assert loop.time() - begun_at >= 2 * DELAY_S


@told
async def test_a_slow_connection_keeps_the_order_when_it_is_healed(site):
    client, connection = await site.connect()
    site.impair(Impairment(delay_s=DELAY_S))
    client.transport.write(b"one")
    await send_all(connection, b"three")
    await site.settle()
    site.heal()
    client.transport.write(b"two")
    connection.close()
    await client.lost
    assert client.received == b"three"


@told
async def test_a_slow_connection_is_slow_to_open(site):
    site.impair(Impairment(delay_s=DELAY_S))
    begun_at = asyncio.get_running_loop().time()
    await site.connect()
    assert asyncio.get_running_loop().time() - begun_at >= 2 * DELAY_S


@told
async def test_much_data_arrives_whole_after_a_cut(site):
    client, connection = await site.connect()
    site.impair(CUT)
    data = bytes(range(256)) * 4096
    client.transport.write(data)
    site.heal()
    assert await receive_all(connection, len(data)) == data
    site.impair(Impairment(delay_s=0.001))
    await send_all(connection, data)
    assert await client.has_received(len(data)) == data


@told
async def test_other_ports_are_not_affected(site):
    client, connection = await site.connect()
    site.network.impair({site.port + 1: CUT})
    client.transport.write(b"hello")
    assert await receive_all(connection, 5) == b"hello"


@told
async def test_a_refused_connection_is_forgotten(site):
    unused = site.network.bind("127.0.0.1", 0, **BUFFERS)
    port = unused.port
    unused.close()
    with pytest.raises(ConnectionRefusedError):
        await site.network.dial(Client(), "127.0.0.1", port)
    site.network.close()


@told
async def test_the_end_of_the_network_closes_what_a_cut_kept_open(site):
    client, connection = await site.connect()
    site.impair(CUT)
    client.transport.abort()
    await client.lost
    site.network.close()
    assert await receive(connection) == b""
    await until(client.lost.done)
