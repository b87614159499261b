"""A client that says exactly what a test wants, byte by byte, and hides nothing of the answer."""

import socket
import struct

from headrace.wire import messages as m
from headrace.wire import schema
from headrace.wire.api import ApiKey, response_class
from headrace.wire.framing import encode_request, parse_response_header


class RawClient:
    def __init__(self, bootstrap_servers: str, timeout_s: float = 20) -> None:
        host, _, port = bootstrap_servers.rpartition(":")
        self.sock = socket.create_connection((host, int(port)), timeout_s)
        self.correlation_id = 0

    def __enter__(self) -> "RawClient":
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def send_frame(self, body: bytes) -> None:
        self.send(struct.pack(">i", len(body)) + body)

    def read_frame(self) -> bytes:
        (size,) = struct.unpack(">i", self._read(4))
        return self._read(size)

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = self.sock.recv(size - len(data))
            if not piece:
                raise EOFError("the broker closed the connection")
            data += piece
        return data

    def is_closed_by_broker(self) -> bool:
        """Waits until the broker closes; anything it says before is an error of the test."""
        try:
            return self.sock.recv(1) == b""
        except ConnectionResetError:
            return True

    def ask(self, api_key: ApiKey, api_version: int, request):
        """Send one request and decode its answer."""
        self.post(api_key, api_version, request)
        return self.answer(api_key, api_version)

    def post(self, api_key: ApiKey, api_version: int, request) -> None:
        self.correlation_id += 1
        self.send(encode_request(api_key, api_version, self.correlation_id, "raw", request))

    def answer(self, api_key: ApiKey, api_version: int):
        frame = self.read_frame()
        correlation_id, position = parse_response_header(frame, 0, len(frame), api_key, api_version)
        assert correlation_id == self.correlation_id
        decode = schema.decoder(response_class(api_key), api_version)
        response, end = decode(frame, position, len(frame))
        assert end == len(frame), "the broker said more than its version can carry"
        return response

    # --- what most tests ask -------------------------------------------------

    def create_topic(self, name, **settings):
        """A topic of one partition; a setting is named with ``_`` for each dot."""
        request = m.CreateTopicsRequest
        topic = request.CreatableTopic(
            name=name,
            num_partitions=1,
            replication_factor=1,
            configs=[
                request.CreatableTopicConfig(name=key.replace("_", "."), value=value)
                for key, value in settings.items()
            ],
        )
        response = self.ask(ApiKey.CREATE_TOPICS, 7, request(topics=[topic], timeout_ms=10_000))
        assert response.topics[0].error_code == 0

    def produce(self, topic, records, *, partition=0, acks=-1, version=9, answer=True):
        request = m.ProduceRequest
        message = request(
            acks=acks,
            timeout_ms=10_000,
            topic_data=[
                request.TopicProduceData(
                    name=topic if isinstance(topic, str) else "",
                    topic_id=topic if isinstance(topic, bytes) else bytes(16),
                    partition_data=[request.PartitionProduceData(index=partition, records=records)],
                )
            ],
        )
        self.post(ApiKey.PRODUCE, version, message)
        if answer:
            response = self.answer(ApiKey.PRODUCE, version)
            return response.responses[0].partition_responses[0]
        return None

    def fetch(self, topic, offset, *, partition=0, max_wait_ms=0, version=11, **fields):
        request = m.FetchRequest
        message = request(
            max_wait_ms=max_wait_ms,
            min_bytes=1,
            max_bytes=1 << 20,
            session_epoch=-1,
            topics=[
                request.FetchTopic(
                    topic=topic if isinstance(topic, str) else "",
                    topic_id=topic if isinstance(topic, bytes) else bytes(16),
                    partitions=[
                        request.FetchPartition(
                            partition=partition,
                            fetch_offset=offset,
                            partition_max_bytes=1 << 20,
                            **fields,
                        )
                    ],
                )
            ],
        )
        response = self.ask(ApiKey.FETCH, version, message)
        return response.responses[0].partitions[0]

    def metadata(self, *topics, version=12):
        request = m.MetadataRequest
        return self.ask(
            ApiKey.METADATA,
            version,
            request(
                topics=[request.MetadataRequestTopic(name=name) for name in topics],
                allow_auto_topic_creation=False,
            ),
        )
