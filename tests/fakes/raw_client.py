"""A client that sends exactly the bytes of a test and returns the whole response."""

import struct

from headrace.client.blocking import Connection
from headrace.wire import messages as m
from headrace.wire import schema
from headrace.wire.api import ApiKey, request_class, response_class


class RawClient:
    def __init__(self, bootstrap_servers: str, timeout_s: float = 20) -> None:
        host, _, port = bootstrap_servers.rpartition(":")
        self._connection = Connection(
            host, int(port), client_id="raw", versions={}, timeout_s=timeout_s
        )
        self.sock = self._connection.socket
        self.send = self._connection.send_bytes

    def __enter__(self) -> "RawClient":
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def send_frame(self, body: bytes) -> None:
        self.send(struct.pack(">i", len(body)) + body)

    def read_frame(self) -> bytes:
        """The next frame without its size, the answer to bytes that were sent with ``send``."""
        return bytes(self._connection.receive_frame())

    def is_closed_by_broker(self) -> bool:
        """Wait until the broker closes the connection; False if it sends something first."""
        try:
            return self.sock.recv(1) == b""
        except ConnectionResetError:
            return True

    def ask(self, api_key: ApiKey, api_version: int, request):
        """Send one request and decode its answer."""
        self.post(api_key, api_version, request)
        return self.answer(api_key, api_version)

    def post(self, api_key: ApiKey, api_version: int, request) -> None:
        assert type(request) is request_class(api_key)
        self._connection.send(request, api_version=api_version)

    def answer(self, api_key: ApiKey, api_version: int):
        response = self._connection.receive_response()
        assert (response.api_key, response.api_version) == (api_key, api_version)
        body = bytes(response.body)
        message, end = schema.decoder(response_class(api_key), api_version)(body, 0, len(body))
        assert end == len(body), "the response is longer than its version allows"
        return message

    # --- common requests -----------------------------------------------------

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
