"""Answers that are the same for every client that asks the same, until something changes.

Clients ask for ApiVersions at every connect and for Metadata every few minutes, all in the same
words. The whole frame is kept by these words; only the correlation id differs. The listener
belongs to the words, since each listener tells its own addresses. Once an authorizer is on,
answers depend on who asks, and this must not be used.
"""

from headrace.broker.context import Context
from headrace.wire.api import ApiKey

_APIS = frozenset((int(ApiKey.METADATA), int(ApiKey.API_VERSIONS)))
_QUESTION_SIZE_MAX = 1024
_ANSWERS_MAX = 256

CacheKey = tuple[int, int, str, bytes]


class ResponseCache:
    __slots__ = ("_answers", "_generation")

    def __init__(self) -> None:
        self._answers: dict[CacheKey, bytes] = {}
        self._generation: object = None

    @staticmethod
    def cache_key(context: Context, body: memoryview) -> CacheKey | None:
        """The words by which an answer may be kept; None if this one may not."""
        if context.api_key not in _APIS or len(body) > _QUESTION_SIZE_MAX:
            return None
        return context.api_key, context.api_version, context.listener, bytes(body)

    def find(
        self, cache_key: CacheKey, generation: object, correlation_id: int
    ) -> bytearray | None:
        """The frame, if it was kept while the cluster was in this ``generation``."""
        if generation != self._generation:
            self._answers.clear()
            self._generation = generation
        known = self._answers.get(cache_key)
        if known is None:
            return None
        frame = bytearray(known)
        frame[4:8] = correlation_id.to_bytes(4, "big", signed=True)
        return frame

    def keep(self, cache_key: CacheKey, frame: bytearray) -> None:
        """``frame`` answers ``cache_key`` in the generation that was last looked for."""
        if len(self._answers) >= _ANSWERS_MAX:
            self._answers.clear()
        self._answers[cache_key] = bytes(frame)
