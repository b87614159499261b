"""The simulated network: its faults, one seed for one run, and the broker's connections on it."""

import asyncio
import random

import pytest

from headrace.client.connection import Connection
from headrace.client.errors import Disconnected
from headrace.net.buffers import BufferPool
from headrace.net.listener import ConnectionLimits, CreationRate, Listener
from headrace.net.outbox import Outbox
from headrace.wire import messages as m
from headrace.wire.api import ApiKey
from headrace.wire.framing import encode_response
from tests.fakes.network_peers import Client, accept, receive, receive_all, send_all
from tests.sim.files import SimulatedDisk
from tests.sim.loop import in_virtual_time, run_simulated
from tests.sim.network import GIVE_UP_S, LATENCY_S, SimulatedNetwork
from tests.sim.world import SimulatedWorld, wall_clock_ns

PORT = 9092
VERSION = 12


def a_network(seed=1):
    return SimulatedNetwork(asyncio.get_running_loop(), random.Random(seed))


def listen(host):
    listening = host.bind(host.name, PORT, send_buffer_size=None, receive_buffer_size=None)
    listening.listen(5)
    return listening


async def connected(network):
    """A client on host ``a`` and its connection on host ``b``."""
    here, there = network.host("a"), network.host("b")
    listening = listen(there)
    client = Client()
    await here.dial(client, "b", PORT)
    return client, await accept(listening)


async def now():
    return asyncio.get_running_loop().time()


@in_virtual_time
async def test_what_a_cut_holds_back_arrives_in_order_after_it():
    network = a_network()
    client, connection = await connected(network)
    network.cut("b", "a")
    client.transport.write(b"one ")
    await asyncio.sleep(10)
    client.transport.write(b"two")
    with pytest.raises(BlockingIOError):
        connection.receive_into(memoryview(bytearray(10)))
    network.heal()
    assert await receive_all(connection, 7) == b"one two"


@in_virtual_time
async def test_a_sender_gives_up_and_the_other_end_stays_half_open_until_it_sends():
    network = a_network()
    client, connection = await connected(network)
    network.cut("a", "b")
    client.transport.write(b"never arrives")
    started = await now()
    assert isinstance(await client.lost, TimeoutError)
    assert await now() - started == pytest.approx(GIVE_UP_S, abs=0.1)
    network.heal()
    await asyncio.sleep(1000)
    with pytest.raises(BlockingIOError):
        connection.receive_into(memoryview(bytearray(10)))
    await send_all(connection, b"hello?")
    with pytest.raises(ConnectionResetError):
        await receive(connection)


@in_virtual_time
async def test_a_killed_process_closes_its_connections():
    network = a_network()
    client, connection = await connected(network)
    await send_all(connection, b"last")
    network.kill("b")
    assert await client.lost is None
    assert client.received == b"last"
    with pytest.raises(ConnectionRefusedError):
        await network.running("a").dial(Client(), "b", PORT)


@in_virtual_time
async def test_a_machine_without_power_is_silent_and_resets_when_it_is_back():
    network = a_network()
    client, connection = await connected(network)
    await send_all(connection, b"lost in flight")
    network.lose_power("b")
    client.transport.write(b"hello?")
    await asyncio.sleep(20)
    assert not client.lost.done() and not client.received
    network.host("b")
    assert isinstance(await client.lost, ConnectionResetError)


@in_virtual_time
async def test_a_connection_waits_for_the_end_of_a_cut_or_times_out():
    network = a_network()
    here = network.host("a")
    listening = listen(network.host("b"))
    network.cut("a", "b")
    with pytest.raises(TimeoutError):
        await here.dial(Client(), "b", PORT)
    dialing = asyncio.ensure_future(here.dial(Client(), "b", PORT))
    await asyncio.sleep(2)
    network.heal()
    await dialing
    await accept(listening)


@in_virtual_time
async def test_a_slow_network_takes_longer():
    network = a_network()
    client, connection = await connected(network)
    network.slow("a", "b", 250)
    started = await now()
    client.transport.write(b"x")
    await receive(connection)
    assert 0.25 <= await now() - started <= 0.25 + LATENCY_S[1]


def test_a_run_is_a_function_of_its_seed():
    async def story(seed):
        network = a_network(seed)
        client, connection = await connected(network)
        client.transport.write(bytes(500_000))
        arrivals = []
        received = 0
        while received < 500_000:
            piece = await receive(connection)
            received += len(piece)
            arrivals.append((await now(), len(piece)))
        return arrivals

    runs = [run_simulated(story(seed), random.Random(0)) for seed in (1, 1, 2)]
    assert runs[0] == runs[1] != runs[2]


# --- the connections of a broker ------------------------------------------------------------


class Service:
    """Answers every request with an empty Metadata response that takes a while."""

    def __init__(self, limits):
        self.limits = limits
        self.request_count = 0

    def request(self, link, view, start, end):
        self.request_count += 1
        correlation_id = int.from_bytes(view[start + 4 : start + 8], "big")
        answer = [encode_response(ApiKey.METADATA, VERSION, correlation_id, m.MetadataResponse())]
        asyncio.get_running_loop().call_later(0.005, link.later().answer, answer)

    def turn_ended(self, link):
        pass

    def link_closed(self, link):
        self.limits.closed(link)


def a_world(network, host):
    disk = SimulatedDisk(lambda: wall_clock_ns(network.loop))
    return SimulatedWorld(network.loop, network.dice, network, disk, host)


def a_server(world):
    loop = asyncio.get_running_loop()
    rate = CreationRate(1 << 30)
    limits = ConnectionLimits(10, 10, {}, rate)
    listener = Listener(
        world.network,
        "PLAINTEXT",
        world.host_name(),
        PORT,
        limits=limits,
        pool=BufferPool(1 << 20),
        outbox=Outbox(loop, lambda: 1),
        frame_size_max=1 << 20,
        send_buffer_size=None,
        receive_buffer_size=None,
        backlog=5,
        connections_max=10,
        creation_rate=rate,
    )
    assert listener.bind() == ("broker", PORT)
    service = Service(limits)
    listener.accept_from_now_on(loop, service)
    return service


async def open_to_broker(world, timeout_s=5.0):
    versions = {ApiKey.METADATA: (VERSION, VERSION)}
    return await Connection.open(
        "broker",
        PORT,
        client_id="test",
        versions=versions,
        timeout_s=timeout_s,
        dial=world.network.dial,
    )


async def ask(connection):
    return await connection.request(m.MetadataRequest(), m.MetadataResponse)


@in_virtual_time
async def test_a_client_asks_through_a_cut_and_after_it():
    network = a_network()
    service = a_server(a_world(network, "broker"))
    world = a_world(network, "client")
    connection = await open_to_broker(world)
    await asyncio.gather(*(ask(connection) for _ in range(50)))

    network.cut("client", "broker")
    waiting = asyncio.ensure_future(ask(connection))
    await asyncio.sleep(2)
    assert service.request_count == 50
    network.heal()
    await waiting
    assert service.request_count == 51

    network.cut("client", "broker")
    with pytest.raises(Disconnected, match="no response to MetadataRequest within 5.0 s"):
        await ask(connection)
    with pytest.raises(Disconnected, match="cannot connect to broker:9092: timed out"):
        await open_to_broker(world)
    network.heal()
    again = await open_to_broker(world)
    await ask(again)
    await again.close()
    await connection.close()
    await asyncio.sleep(GIVE_UP_S)
    assert not service.limits.links, "the broker has noticed both ends"


@in_virtual_time
async def test_a_client_learns_that_the_broker_was_killed():
    network = a_network()
    broker = a_world(network, "broker")
    a_server(broker)
    world = a_world(network, "client")
    connection = await open_to_broker(world)
    waiting = asyncio.ensure_future(ask(connection))
    await asyncio.sleep(0.003)
    broker.kill()
    with pytest.raises(Disconnected, match="the broker closed the connection"):
        await waiting
    with pytest.raises(Disconnected, match="Connection refused"):
        await open_to_broker(world)
    a_server(a_world(network, "broker"))
    await ask(await open_to_broker(world))


@in_virtual_time
async def test_the_wall_clock_of_a_world_is_skewed_and_its_random_numbers_are_its_own():
    network = a_network()
    disk = SimulatedDisk(lambda: wall_clock_ns(network.loop))
    first, second = (
        SimulatedWorld(network.loop, network.dice, network, disk, host, skew_ms)
        for host, skew_ms in (("first", 0), ("second", -1500))
    )
    before = first.now()
    assert before * 1_000_000 == wall_clock_ns(network.loop)
    await asyncio.sleep(10)
    assert first.now() - before == 10_000
    assert first.now() - second.now() == 1500
    assert first.random.random() != second.random.random()
