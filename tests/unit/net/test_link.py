"""One connection: frames, order of responses, back-pressure, file ranges, invalid bytes."""

import asyncio
import contextlib
import errno
import os
import socket
import struct
from typing import NamedTuple

import pytest

from headrace.model.errors import PeerBroken
from headrace.net.buffers import BufferPool
from headrace.net.link import IN_FLIGHT_MAX, Link
from headrace.net.outbox import Outbox
from headrace.world.network import SystemConnection

FRAME_SIZE_MAX = 1 << 20


class Service:
    """Records requests; responds when the test says so."""

    def __init__(self):
        self.requests = []
        self.turns = 0
        self.closed = []
        self.unreadable_files = []
        self.broken = []
        self.act = lambda link, body: link.answer([frame(body)])

    def request(self, link, view, start, end):
        body = bytes(view[start:end])
        self.requests.append(body)
        self.act(link, body)

    def turn_ended(self, link):
        self.turns += 1

    def unreadable(self, file_range, error):
        self.unreadable_files.append((file_range.file, error.errno))

    def peer_broken(self, link, broken):
        self.broken.append(str(broken))

    def link_closed(self, link):
        self.closed.append(link)


class Range(NamedTuple):
    file: object
    position: int
    size: int


class File:
    def __init__(self, fd):
        self.fd = fd


def frame(body):
    return struct.pack(">i", len(body)) + body


class CountingPool(BufferPool):
    """Knows how many of its buffers are in use, and how many came back."""

    def __init__(self, size_max):
        super().__init__(size_max)
        self.borrowed = 0
        self.returned = 0

    def borrow(self, size_hint=0):
        self.borrowed += 1
        return super().borrow(size_hint)

    def grow(self, *arguments):
        larger = super().grow(*arguments)
        self.borrowed += larger is not None  # the smaller one was given back
        return larger

    def give_back(self, buffer):
        self.borrowed -= 1
        self.returned += 1
        super().give_back(buffer)


class Peer:
    """The other end of a link, with blocking reads off the loop."""

    def __init__(self, service, pool=None, outbox=None):
        self.ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        self.pool = pool or CountingPool(1 << 22)
        self.link = Link(
            SystemConnection(theirs, ("127.0.0.1", 5), asyncio.get_running_loop()),
            "PLAINTEXT",
            service,
            self.pool,
            outbox or Outbox(asyncio.get_running_loop(), lambda: 2),
            FRAME_SIZE_MAX,
            asyncio.get_running_loop(),
        )

    async def send(self, data):
        await asyncio.to_thread(self.ours.sendall, data)

    async def read_frame(self):
        return await asyncio.wait_for(asyncio.to_thread(self._read_frame), 10)

    def _read_frame(self):
        (size,) = struct.unpack(">i", self._read(4))
        return self._read(size)

    def _read(self, size):
        data = b""
        while len(data) < size:
            piece = self.ours.recv(size - len(data))
            if not piece:
                raise EOFError
            data += piece
        return data

    def close(self):
        self.link.close()
        self.ours.close()


def run(test):
    async def body(ready_count):
        unforeseen = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: unforeseen.append(context))
        service = Service()
        peer = Peer(service, outbox=Outbox(loop, lambda: ready_count))
        try:
            await test(service, peer)
        finally:
            peer.close()
        assert unforeseen == []

    asyncio.run(body(1))  # responses are sent immediately
    asyncio.run(body(2))  # and together with those of other connections


async def until(condition):
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.001)


def test_frames_arrive_complete_in_any_pieces():
    async def test(service, peer):
        stream = frame(b"one") + frame(b"") + frame(b"three" * 100)
        for byte in stream:
            await peer.send(bytes([byte]))
        assert [await peer.read_frame() for _ in range(3)] == [b"one", b"", b"three" * 100]

    run(test)


def test_all_frames_of_one_event_are_one_turn():
    async def test(service, peer):
        await peer.send(b"".join(frame(b"%d" % n) for n in range(10)))
        await until(lambda: len(service.requests) == 10)
        assert service.turns == 1
        assert [await peer.read_frame() for _ in range(10)] == [b"%d" % n for n in range(10)]

    run(test)


def test_a_frame_larger_than_the_usual_buffer_arrives_and_the_buffers_return():
    async def test(service, peer):
        large = os.urandom(900_000)
        await asyncio.gather(peer.send(frame(large) + frame(b"next")), peer.read_frame())
        assert service.requests[0] == large
        assert await peer.read_frame() == b"next"
        await until(lambda: peer.pool.large_size == 0)

    run(test)


def test_responses_are_sent_in_the_order_of_their_requests():
    async def test(service, peer):
        slots = []

        def act(link, body):
            if body == b"later":
                slots.append(link.later())
            else:
                link.answer([frame(body)])

        service.act = act
        await peer.send(frame(b"later") + frame(b"a") + frame(b"later") + frame(b"b"))
        await until(lambda: len(service.requests) == 4)
        slots[1].answer([frame(b"second")])
        slots[0].answer([frame(b"first")])
        answers = [await peer.read_frame() for _ in range(4)]
        assert answers == [b"first", b"a", b"second", b"b"]

    run(test)


def test_requests_after_a_held_one_wait():
    async def test(service, peer):
        slots = []
        service.act = lambda link, body: slots.append(link.hold())
        await peer.send(frame(b"held") + frame(b"behind"))
        await until(lambda: service.requests)
        await peer.send(frame(b"more"))
        await asyncio.to_thread(lambda: None)
        assert service.requests == [b"held"]
        service.act = lambda link, body: link.answer([frame(body)])
        slots[0].answer([frame(b"done")])
        assert [await peer.read_frame() for _ in range(3)] == [b"done", b"behind", b"more"]

    run(test)


def test_in_flight_requests_are_bounded():
    async def test(service, peer):
        slots = []
        service.act = lambda link, body: slots.append(link.later())
        await peer.send(frame(b"x") * (IN_FLIGHT_MAX + 50))
        await until(lambda: len(slots) >= IN_FLIGHT_MAX)
        assert len(slots) == IN_FLIGHT_MAX
        while len(service.requests) < IN_FLIGHT_MAX + 50 or slots:
            if slots:
                slots.pop(0).answer([frame(b"y")])
            await asyncio.sleep(0)
        for _ in range(IN_FLIGHT_MAX + 50):
            assert await peer.read_frame() == b"y"

    run(test)


def test_a_client_that_does_not_read_is_not_served_until_it_reads():
    async def test(service, peer):
        answer = frame(bytes(500_000))
        service.act = lambda link, body: link.answer([answer])
        await peer.send(frame(b"x") * 20)
        await until(lambda: service.requests)
        handled = len(service.requests)
        # All twenty arrived in one event and were answered together; later ones wait.
        await peer.send(frame(b"z") * 5)
        await asyncio.sleep(0.02)
        assert len(service.requests) == handled
        for _ in range(25):
            assert len(await peer.read_frame()) == 500_000
        assert len(service.requests) == 25

    run(test)


def test_file_ranges_are_sent_between_bytes(tmp_path):
    path = tmp_path / "segment"
    content = os.urandom(3_000_000)
    path.write_bytes(content)
    fd = os.open(path, os.O_RDONLY)

    async def test(service, peer):
        size = 2 + 2_500_000 + 3
        parts = [struct.pack(">i", size) + b"ab", Range(File(fd), 100, 2_500_000), b"xyz"]
        service.act = lambda link, body: link.answer(parts)
        _, answer = await asyncio.gather(peer.send(frame(b"go")), peer.read_frame())
        assert answer == b"ab" + content[100:2_500_100] + b"xyz"

    run(test)
    os.close(fd)


def test_a_truncated_file_closes_the_connection(tmp_path):
    path = tmp_path / "segment"
    path.write_bytes(bytes(10))
    fd = os.open(path, os.O_RDONLY)

    async def test(service, peer):
        service.act = lambda link, body: link.answer([b"head", Range(File(fd), 0, 1000)])
        await peer.send(frame(b"go"))
        await until(lambda: service.closed)

    run(test)
    os.close(fd)


@pytest.mark.parametrize(
    ("code", "is_of_the_file"),
    [
        (errno.EIO, True),
        (errno.EPIPE, False),
        (errno.ETIMEDOUT, False),
        (errno.EHOSTUNREACH, False),
    ],
)
def test_an_unreadable_file_is_reported_and_a_lost_client_is_not(monkeypatch, code, is_of_the_file):
    def broken(*_):
        raise OSError(code, "broken")

    monkeypatch.setattr(os, "sendfile", broken)
    file = File(-1)

    async def test(service, peer):
        service.act = lambda link, body: link.answer([b"head", Range(file, 0, 1000)])
        await peer.send(frame(b"go"))
        await until(lambda: service.closed)
        assert service.unreadable_files == ([(file, code)] if is_of_the_file else [])

    run(test)


@pytest.mark.parametrize("size", [-1, -(2**31), FRAME_SIZE_MAX + 1, 2**31 - 1])
def test_an_impossible_size_closes_the_connection(size):
    async def test(service, peer):
        await peer.send(frame(b"good") + struct.pack(">i", size) + b"rest")
        assert await peer.read_frame() == b"good"
        await until(lambda: service.closed)

    run(test)


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "an HTTP request"),
        (bytes.fromhex("16030100a5010000a10303"), "a TLS handshake"),
        (b"\x7f\xff\xff\xff", "a request of 2147483647 bytes"),
    ],
)
def test_the_service_learns_which_other_protocol_a_client_speaks(data, what):
    async def test(service, peer):
        await peer.send(data)
        await until(lambda: service.closed)
        (said,) = service.broken
        assert said.startswith(what)

    run(test)


def test_an_invalid_request_closes_the_connection_after_earlier_responses():
    async def test(service, peer):
        def act(link, body):
            if body == b"bad":
                raise PeerBroken("nonsense")
            link.answer([frame(body)])

        service.act = act
        await peer.send(frame(b"good") + frame(b"bad") + frame(b"never"))
        assert await peer.read_frame() == b"good"
        await until(lambda: service.closed)
        assert service.requests == [b"good", b"bad"]

    run(test)


def test_an_announced_size_takes_no_memory_before_the_bytes_arrive():
    async def test(service, peer):
        await peer.send(struct.pack(">i", FRAME_SIZE_MAX) + bytes(1000))
        await until(lambda: peer.pool.returned == 1)
        assert peer.pool.large_size == 0

    run(test)


@pytest.mark.parametrize("size", [1, 3, 4, 1000, 16_000])
def test_the_first_bytes_of_a_frame_are_kept_without_a_buffer(size):
    async def test(service, peer):
        whole = frame(os.urandom(20_000))
        await peer.send(frame(b"before") + whole[:size])
        assert await peer.read_frame() == b"before"
        await until(lambda: peer.pool.borrowed == 0)
        await peer.send(whole[size:] + frame(b"behind"))
        assert await peer.read_frame() == whole[4:]
        assert await peer.read_frame() == b"behind"

    run(test)


def test_an_unexpected_error_closes_the_connection_and_no_request_is_handled_twice():
    async def test(service, peer):
        def act(link, body):
            if body == b"bug":
                raise ZeroDivisionError("a bug")
            link.answer([frame(body)])

        service.act = act
        await peer.send(frame(b"good") + frame(b"bug"))
        await until(lambda: service.closed)
        assert service.requests == [b"good", b"bug"]
        assert service.turns == 1
        assert peer.pool.borrowed == 0, "its buffer is back"

    run(test)


def test_a_connection_beyond_the_memory_for_requests_is_closed():
    async def body():
        service = Service()
        peer = Peer(service, BufferPool(size_max=600_000))
        await peer.send(struct.pack(">i", FRAME_SIZE_MAX) + bytes(500_000))
        await until(lambda: peer.pool.large_size)
        with pytest.raises(OSError):
            for _ in range(100):
                await peer.send(bytes(100_000))
        assert service.closed == [peer.link]
        assert peer.pool.large_size == 0
        peer.close()

    asyncio.run(body())


def test_a_client_that_disconnects_while_it_waits_is_noticed():
    async def test(service, peer):
        service.act = lambda link, body: link.hold()
        await peer.send(frame(b"wait"))
        await until(lambda: service.requests)
        peer.ours.close()
        await until(lambda: service.closed)

    run(test)


def test_responses_of_connections_served_together_are_sent_together():
    async def body():
        service = Service()
        outbox = Outbox(asyncio.get_running_loop(), lambda: 2)
        peers = [Peer(service, outbox=outbox) for _ in range(2)]
        arrived_early = []

        def act(link, body):
            for peer in peers:
                peer.ours.setblocking(False)
                with contextlib.suppress(BlockingIOError):
                    arrived_early.append(peer.ours.recv(1))
                peer.ours.setblocking(True)
            link.answer([frame(body)])

        service.act = act
        try:
            for peer in peers:  # both are ready when the loop looks
                peer.ours.sendall(frame(b"question"))
            assert [await peer.read_frame() for peer in peers] == [b"question"] * 2
        finally:
            for peer in peers:
                peer.close()
        assert arrived_early == []

    asyncio.run(body())


def test_a_connection_closed_while_others_are_sent_handles_no_request():
    async def test(service, peer):
        outbox = Outbox(asyncio.get_running_loop(), lambda: 2)
        other = Peer(service, outbox=outbox)

        class Last:
            def send_answers(self):
                other.link.close()

        service.act = lambda link, body: outbox.put(Last(), 0.0)
        for each in (peer, other):  # both are ready when the loop looks
            each.ours.sendall(frame(b"question"))
        await until(lambda: service.closed)
        assert service.closed == [other.link]
        assert len(service.requests) == 1
        other.close()

    run(test)
