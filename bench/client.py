"""The blocking client under the figures, with the few requests that they send.

Every request has a fixed version. Produce 3 and Fetch 4 are the oldest that brokers still serve.
Nothing is retried: an error code ends the measurement.
"""

from struct import Struct
from typing import Any

from headrace.client.blocking import Connection
from headrace.model.errors import ErrorCode
from headrace.wire import messages as m
from headrace.wire import schema
from headrace.wire.api import response_class
from headrace.wire.schema import Message
from headrace.wire.session import Session

CLIENT_ID = "bench"
_PRODUCE_VERSION, _FETCH_VERSION, _INIT_PRODUCER_ID_VERSION = 3, 4, 0
_BATCH = Struct(">qi")  # base offset, bytes that follow
_LAST_OFFSET_DELTA = Struct(">i")
_LAST_OFFSET_DELTA_POSITION = 23


class Refused(Exception):
    """The broker answered with an error code."""


def split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)


def framed(api_version: int, request: Message) -> bytearray:
    """A whole request frame with correlation ID 1, to be sent many times."""
    return Session(CLIENT_ID).encode(request, api_version=api_version)


class Client(Connection):
    """One request in flight at a time. All responses share one buffer.

    A new buffer per response would be cleared by the allocator, which costs as much as a good part
    of the transfer.
    """

    def __init__(self, address: str) -> None:
        self._buffer = bytearray(1 << 21)
        super().__init__(
            *split(address),
            client_id=CLIENT_ID,
            versions={},
            timeout_s=60,
            allocate=self._reused_buffer,
        )

    def _reused_buffer(self, size: int) -> bytearray:
        if size > len(self._buffer):
            self._buffer = bytearray(size)
        return self._buffer

    def ask(self, api_version: int, request: Message) -> Any:
        """The response; its binary fields are valid until the next request."""
        api_key = schema.definition(type(request).__name__).api_key
        return self.request(request, response_class(api_key), api_version=api_version)

    def exchange(self, frame: bytes | bytearray) -> memoryview:
        """Send a whole frame; return the response without its size, until the next request."""
        self.send_bytes(frame)
        return self.receive_frame()

    def produce(self, topic: str, batch: bytes, partition: int = 0) -> int:
        """Append one batch with acks=all. Returns the offset of its first record."""
        request = m.ProduceRequest
        response = self.ask(
            _PRODUCE_VERSION,
            request(
                acks=-1,
                timeout_ms=30_000,
                topic_data=[
                    request.TopicProduceData(
                        name=topic,
                        partition_data=[
                            request.PartitionProduceData(index=partition, records=batch)
                        ],
                    )
                ],
            ),
        )
        found = response.responses[0].partition_responses[0]
        if found.error_code:
            raise Refused(f"produce to {topic}: error {found.error_code}")
        return int(found.base_offset)

    def identity(self) -> tuple[int, int]:
        """A new producer ID and epoch, for an idempotent producer."""
        request = m.InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=30_000)
        response = self.ask(_INIT_PRODUCER_ID_VERSION, request)
        # Kafka answers so to the first client that asks for a producer ID.
        while response.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            response = self.ask(_INIT_PRODUCER_ID_VERSION, request)
        if response.error_code:
            raise Refused(f"no producer ID: error {response.error_code}")
        return response.producer_id, response.producer_epoch

    def fetch(self, topic: str, fetch_offset: int, size_max: int, partition: int = 0) -> memoryview:
        """Records from the batch that holds ``fetch_offset`` on; valid until the next request."""
        request = m.FetchRequest
        response = self.ask(
            _FETCH_VERSION,
            request(
                replica_id=-1,
                max_wait_ms=500,
                min_bytes=1,
                max_bytes=size_max,
                isolation_level=0,
                topics=[
                    request.FetchTopic(
                        topic=topic,
                        partitions=[
                            request.FetchPartition(
                                partition=partition,
                                fetch_offset=fetch_offset,
                                partition_max_bytes=size_max,
                            )
                        ],
                    )
                ],
            ),
        )
        found = response.responses[0].partitions[0]
        if found.error_code:
            raise Refused(f"fetch from {topic} at {fetch_offset}: error {found.error_code}")
        return memoryview(found.records or b"")

    def walk(self, topic: str, offset_end: int, size_max: int) -> int:
        """Fetch a partition from its start to ``offset_end``. Returns the bytes of records."""
        total = fetch_offset = 0
        while fetch_offset < offset_end:
            records = self.fetch(topic, fetch_offset, size_max)
            total += len(records)
            fetch_offset = next_offset(records)
        return total


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
        raise ConnectionError("a response without a whole batch")
    return following
