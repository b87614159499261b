"""A bare socket that speaks just enough of the protocol, where a client's own work would blur.

Produce 3 and Fetch 4, the oldest versions that brokers still serve, because they have no flexible
fields. Nothing here retries: a refusal ends the measurement.
"""

import socket
from struct import Struct

_U32 = Struct(">I")
_HEADER = Struct(">hhih")
_BATCH = Struct(">qi")  # base offset, bytes that follow
_LAST_OFFSET_DELTA = Struct(">i")
_LAST_OFFSET_DELTA_POSITION = 23
_LOAD_IN_PROGRESS = 14


class Refused(Exception):
    """The broker answered with an error code."""


class RawClient:
    """One blocking connection with one request under way."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), 30)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = bytearray(1 << 21)

    def close(self) -> None:
        self._socket.close()

    def _ask(self, api_key: int, api_version: int, body: bytes) -> memoryview:
        self._socket.sendall(_framed(api_key, api_version, body))
        return self._answer()

    def _answer(self) -> memoryview:
        (size,) = _U32.unpack(self._receive(4))
        return self._receive(size)[4:]  # after the correlation id

    def _receive(self, size: int) -> memoryview:
        if size > len(self._buffer):
            self._buffer = bytearray(size)
        view = memoryview(self._buffer)[:size]
        filled = 0
        while filled < size:
            count = self._socket.recv_into(view[filled:])
            if not count:
                raise ConnectionError("the broker closed the connection")
            filled += count
        return view

    def produce(self, topic: str, batch: bytes, partition: int = 0) -> int:
        """Append one batch with acks=all. Returns the offset of its first record."""
        self._socket.sendall(_framed(0, 3, _produce_head(topic, partition, batch) + batch))
        return self._produced(topic)

    def _produced(self, topic: str) -> int:
        answer = self._answer()
        code, base_offset = Struct(">hq").unpack_from(answer, 4 + 2 + len(topic) + 4 + 4)
        if code:
            raise Refused(f"produce to {topic}: error {code}")
        return int(base_offset)

    def identity(self) -> tuple[int, int]:
        """A producer id and epoch of its own, for an idempotent producer."""
        code = _LOAD_IN_PROGRESS  # the answer to the first who asks Kafka for a producer id
        while code == _LOAD_IN_PROGRESS:
            answer = self._ask(22, 0, Struct(">hi").pack(-1, 30_000))
            code, producer_id, producer_epoch = Struct(">hqh").unpack_from(answer, 4)
        if code:
            raise Refused(f"no producer id: error {code}")
        return producer_id, producer_epoch

    def fetch(self, topic: str, fetch_offset: int, size_max: int, partition: int = 0) -> memoryview:
        """Records from the batch that holds ``fetch_offset`` on; valid until the next request."""
        name = topic.encode()
        body = Struct(f">iiiibih{len(name)}siiqi").pack(
            *(-1, 500, 1, size_max, 0),
            *(1, len(name), name, 1, partition, fetch_offset, size_max),
        )
        answer = self._ask(1, 4, body)
        position = 4 + 4 + 2 + len(name) + 4 + 4
        (code,) = Struct(">h").unpack_from(answer, position)
        if code:
            raise Refused(f"fetch from {topic} at {fetch_offset}: error {code}")
        position += 2 + 8 + 8
        (aborted_count,) = Struct(">i").unpack_from(answer, position)
        position += 4 + 16 * max(aborted_count, 0)
        (size,) = Struct(">i").unpack_from(answer, position)
        return answer[position + 4 : position + 4 + size]

    def walk(self, topic: str, offset_end: int, size_max: int) -> int:
        """Fetch a partition from its start to ``offset_end``. Returns the bytes of records."""
        total = fetch_offset = 0
        while fetch_offset < offset_end:
            records = self.fetch(topic, fetch_offset, size_max)
            total += len(records)
            fetch_offset = next_offset(records)
        return total


def _framed(api_key: int, api_version: int, body: bytes) -> bytes:
    frame = _HEADER.pack(api_key, api_version, 1, 0) + body
    return _U32.pack(len(frame)) + frame


def _produce_head(topic: str, partition: int, batch: bytes) -> bytes:
    name = topic.encode()
    return Struct(f">hhiih{len(name)}siii").pack(
        -1, -1, 30_000, 1, len(name), name, 1, partition, len(batch)
    )


def next_offset(records: memoryview) -> int:
    """The offset after the last whole batch."""
    position, following = 0, -1
    while position + _BATCH.size <= len(records):
        base_offset, size = _BATCH.unpack_from(records, position)
        if position + _BATCH.size + size > len(records):
            break
        (delta,) = _LAST_OFFSET_DELTA.unpack_from(records, position + _LAST_OFFSET_DELTA_POSITION)
        following = base_offset + delta + 1
        position += _BATCH.size + size
    if following < 0:
        raise ConnectionError("an answer without a whole batch")
    return following
