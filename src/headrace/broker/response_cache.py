"""Cached responses: equal requests get equal responses until the cluster changes.

Clients send ApiVersions on every connect and Metadata every few minutes, and tools describe topics,
mostly with the same body. The cache keeps the encoded response; only the correlation id differs.
The listener is part of the key, because each listener advertises its own addresses. With an
authorizer, responses would depend on the principal, and this cache must not be used.
"""

from headrace.broker.context import Context
from headrace.wire.api import ApiKey

_APIS = frozenset(
    map(int, (ApiKey.METADATA, ApiKey.API_VERSIONS, ApiKey.DESCRIBE_TOPIC_PARTITIONS))
)
_REQUEST_SIZE_MAX = 1024
_RESPONSES_MAX = 256
_BYTES_MAX = 16 << 20  # of all responses

CacheKey = tuple[int, int, str, bytes]


class ResponseCache:
    __slots__ = ("_responses", "_generation", "_size")

    def __init__(self) -> None:
        self._responses: dict[CacheKey, bytes] = {}
        self._size = 0
        self._generation: object = None

    @staticmethod
    def cache_key(context: Context, body: memoryview) -> CacheKey | None:
        """The cache key of a request; None if its response must not be cached."""
        if context.api_key not in _APIS or len(body) > _REQUEST_SIZE_MAX:
            return None
        return context.api_key, context.api_version, context.listener, bytes(body)

    def find(
        self, cache_key: CacheKey, generation: object, correlation_id: int
    ) -> bytearray | None:
        """The response frame, if it was cached in this ``generation`` of the cluster."""
        if generation != self._generation:
            self._clear()
            self._generation = generation
        cached = self._responses.get(cache_key)
        if cached is None:
            return None
        frame = bytearray(cached)
        frame[4:8] = correlation_id.to_bytes(4, "big", signed=True)
        return frame

    def keep(self, cache_key: CacheKey, frame: bytearray) -> None:
        """Cache ``frame`` for the generation of the last ``find``."""
        if len(self._responses) >= _RESPONSES_MAX or self._size + len(frame) > _BYTES_MAX:
            self._clear()
        self._responses[cache_key] = bytes(frame)
        self._size += len(frame)

    def _clear(self) -> None:
        self._responses.clear()
        self._size = 0
