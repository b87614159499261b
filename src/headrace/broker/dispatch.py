"""Dispatch: decode the requests of all connections, call their handlers, send the responses.

What a failure affects:

    PeerBroken        invalid bytes, or an API or version that the broker did not announce
                      -> the broker closes the connection
    Rejected          the handler cannot serve the request -> the response has the error code
    Fenced, TreeError the cluster metadata cannot be written -> an error that clients retry
    MetadataUnknown   the broker cannot describe the cluster yet -> it closes the connection
    other exceptions  a bug, before anything was appended -> UNKNOWN_SERVER_ERROR and a stack
                      trace in the log; the broker closes the connection
    other exceptions  a bug while writing or responding, so that the state of the logs is unknown
                      -> the broker stops, because it must not acknowledge anything more
"""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from headrace.broker.context import Context
from headrace.broker.error_responses import refused
from headrace.broker.handlers.fetch import Fetching, ParkedFetch, RememberedFetch
from headrace.broker.handlers.produce import Producing
from headrace.broker.handlers.produced import RememberedProduce
from headrace.broker.needs import (
    NeedsAppender,
    NeedsConnections,
    NeedsLogDirs,
    NeedsMetadata,
    NeedsReplicas,
    NeedsServedApis,
    NeedsTasks,
    NeedsToFail,
    NeedsWaiting,
    NeedsWorld,
)
from headrace.broker.outages import OUTAGES, as_rejection
from headrace.broker.protocol_errors import ProtocolErrorLog
from headrace.broker.replication.append import ACKS_NONE
from headrace.broker.response_cache import CacheKey, ResponseCache
from headrace.model.errors import ErrorCode, MetadataUnknown, PeerBroken, Rejected
from headrace.net.link import FileRange, Link, Slot
from headrace.wire import commit, schema
from headrace.wire.api import ApiKey, api_name, is_served, request_class, what_is_not_served
from headrace.wire.framing import RequestHeader, encode_response, parse_request_header
from headrace.wire.schema import Message

_log = logging.getLogger("headrace.broker")

_PRODUCE = int(ApiKey.PRODUCE)
_FETCH = int(ApiKey.FETCH)
_API_VERSIONS = int(ApiKey.API_VERSIONS)
_OFFSET_COMMIT = int(ApiKey.OFFSET_COMMIT)
_FIRST_SERVED_PRODUCE = 3
# Decoding a hostile frame creates up to 74 bytes of objects per byte, at about 1 µs each.
_FRAME_SIZE_ON_LOOP_MAX = 1 << 18
_FRAME_SIZE_MAX = 1 << 24
_FETCH_SIZE_MAX = 1 << 21  # 60,000 partitions
_SESSION_ERRORS = frozenset(
    {
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    }
)


# Calls the handler of a request, with the parts of the broker that it needs.
Handle = Callable[[Context, Any], Message | Awaitable[Message]]


class Needs(
    NeedsAppender,
    NeedsConnections,
    NeedsLogDirs,
    NeedsMetadata,
    NeedsReplicas,
    NeedsServedApis,
    NeedsTasks,
    NeedsToFail,
    NeedsWaiting,
    NeedsWorld,
    Protocol,
):
    """What dispatch itself uses of the broker."""


class ClientState:
    """What the broker remembers about one connection."""

    __slots__ = ("remembered_produce", "remembered_fetch", "parked")

    def __init__(self) -> None:
        self.remembered_produce: RememberedProduce | None = None
        self.remembered_fetch: RememberedFetch | None = None
        self.parked: ParkedFetch | None = None


class Dispatch:
    """The ``net.Service`` of all connections of one broker."""

    def __init__(
        self, broker: Needs, handle: Handle, producing: Producing, fetching: Fetching
    ) -> None:
        self._broker = broker
        self._call_handler = handle
        self._served = broker.served_apis
        self._tasks = broker.tasks
        self._waiting = broker.waiting
        self._replicas = broker.replicas
        self._appender = broker.appender
        self._bugs = broker.bugs
        self._producing = producing
        self._fetching = fetching
        self._response_cache = ResponseCache()
        self._protocol_errors = ProtocolErrorLog()
        # Part of net.Service. The test kit replaces it while a test injects faults.
        self.request: Callable[[Link, memoryview, int, int], None] = self._guarded_request

    # --- net.Service ---------------------------------------------------------

    def _guarded_request(self, link: Link, view: memoryview, start: int, end: int) -> None:
        try:
            self._request(link, view, start, end)
        except PeerBroken:
            raise
        except Exception as error:  # noqa: BLE001 - a bug; see the table above
            if self._appender.staged:
                self._broker.fail(error)
            else:
                header = parse_request_header(view, start, end)
                context = self._context(link, header)
                request = self._decode(header, view, end) if header.api_key == _PRODUCE else None
                frame = self._bugs.frame(link, context, request, error)
                if request is None or request.acks != ACKS_NONE:
                    link.answer([frame])

    def _request(self, link: Link, view: memoryview, start: int, end: int) -> None:
        state = link.state
        if state is None:
            state = link.state = ClientState()
        remembered = state.remembered_produce
        is_known = False
        if remembered is not None:
            records = remembered.shape.match(view, start, end)
            if records is not None and remembered.generation == self._replicas.generation:
                is_known = True
                correlation_id = bytes(view[start + 4 : start + 8])
                if self._producing.shaped(link, remembered, correlation_id, records):
                    return
        if state.remembered_fetch is not None:
            repeated = state.remembered_fetch.match(view, start, end)
            if repeated is not None:
                self._finish_produces()
                self._fetching.fetch(link, *repeated)
                return
        header = parse_request_header(view, start, end)
        if header.api_key == _PRODUCE:
            self._produce(link, header, view, start, end, is_known=is_known)
            return
        self._finish_produces()
        context = self._context(link, header)
        if not is_served(header.api_key, header.api_version, self._served):
            self._unserved(link, context)
            return
        size = end - start
        if size > (_FETCH_SIZE_MAX if header.api_key == _FETCH else _FRAME_SIZE_MAX):
            raise PeerBroken(
                f"{api_name(header.api_key)} of {size} bytes; only Produce may be this large"
            )
        if header.api_key == _FETCH:
            request = self._decode(header, view, end)
            state.remembered_fetch = RememberedFetch.of(
                context, request, view[start:end], header.body_position - start
            )
            self._fetching.fetch(link, context, request)
        elif size > _FRAME_SIZE_ON_LOOP_MAX:
            self._decode_in_thread(link, context, header, view[start:end], start)
        else:
            cache_key = ResponseCache.cache_key(context, view[header.body_position : end])
            cached = self._cached_response(context, cache_key)
            if cached is not None:
                link.answer([cached])
            else:
                self._handle(link, context, self._decode(header, view, end), cache_key)

    def refuse(self, link: Link, view: memoryview, start: int, end: int, refusal: Rejected) -> None:
        """Send an error response instead of handling a request."""
        self._finish_produces()
        header = parse_request_header(view, start, end)
        context = self._context(link, header)
        if not is_served(header.api_key, header.api_version, self._served):
            self._unserved(link, context)
            return
        request = self._decode(header, view, end)
        if header.api_key == _PRODUCE and request.acks == ACKS_NONE:
            link.close_when_sent()  # acks=0 has no response; the client only notices the close
            return
        answer: Any = refused(context, request, refusal)
        if header.api_key == _FETCH and answer.responses and refusal.code not in _SESSION_ERRORS:
            answer.error_code = ErrorCode.NONE  # otherwise clients ignore the partitions' errors
        link.answer([_encode(context, answer)])

    def _finish_produces(self) -> None:
        """Write the batches of earlier requests, because requests take effect in order.

        Consumers can read them then, unless ``flush.messages`` requires an fsync first.
        """
        if self._producing.turn_open:
            self._producing.finish_turn()

    def _cached_response(self, context: Context, cache_key: CacheKey | None) -> bytearray | None:
        if cache_key is None:
            return None
        cache = self._broker.metadata_cache
        generation = (cache.current.generation, cache.features_epoch)
        return self._response_cache.find(cache_key, generation, context.correlation_id)

    def turn_ended(self, link: Link) -> None:
        try:
            if self._producing.turn_open:
                self._producing.finish_turn()
            if self._waiting.has_events:
                self._waiting.serve()
        except Exception as error:  # noqa: BLE001 - a bug while writing: the broker stops
            self._broker.fail(error)

    def unreadable(self, file_range: FileRange, error: OSError) -> None:
        self._broker.logs.directories.unreadable(file_range.file.path, error)

    def peer_broken(self, link: Link, broken: PeerBroken) -> None:
        self._protocol_errors.report(link, broken, self._broker.loop.time())

    def link_closed(self, link: Link) -> None:
        self._broker.limits.closed(link)
        state = link.state
        if state is not None and state.parked is not None:
            self._waiting.unpark(state.parked)
            state.parked = None

    # --- requests ------------------------------------------------------------

    @staticmethod
    def _context(link: Link, header: RequestHeader) -> Context:
        return Context(
            header.api_key,
            header.api_version,
            header.correlation_id,
            header.client_id,
            link.listener_name,
            link.peer_host,
        )

    @staticmethod
    def _decode(header: RequestHeader, view: memoryview, end: int) -> Any:
        if header.api_key == _OFFSET_COMMIT and header.api_version in commit.VERSIONS:
            return commit.decode(view, header.body_position, end, header.api_version)
        decode = schema.decoder(request_class(header.api_key), header.api_version)
        # Kafka ignores bytes after the last field. librdkafka relies on that: its Metadata 13
        # has three bytes too many.
        request, _ = decode(view, header.body_position, end)
        return request

    def _decode_in_thread(
        self, link: Link, context: Context, header: RequestHeader, frame: memoryview, start: int
    ) -> None:
        """Decode a very large frame in a thread, so that it does not block other requests."""
        copy = memoryview(bytes(frame))
        shifted = header._replace(body_position=header.body_position - start)

        async def decode_and_answer() -> Message:
            request = await asyncio.to_thread(self._decode, shifted, copy, len(copy))
            try:
                answer = self._call_handler(context, request)
                return await answer if inspect.isawaitable(answer) else answer
            except Rejected as refusal:
                return refused(context, request, refusal)
            except OUTAGES as outage:
                return refused(context, request, as_rejection(context.api_key, outage))

        pending = decode_and_answer()
        self._tasks.spawn(self._answer_later(link, link.hold(), context, None, pending))

    def _produce(
        self,
        link: Link,
        header: RequestHeader,
        view: memoryview,
        start: int,
        end: int,
        *,
        is_known: bool,
    ) -> None:
        if header.api_version < _FIRST_SERVED_PRODUCE or not is_served(
            _PRODUCE, header.api_version
        ):
            raise PeerBroken(
                f"Produce version {header.api_version}; versions 3 to 13 are supported"
            )
        context = self._context(link, header)
        request = self._decode(header, view, end)
        self._producing.full(link, context, request, view[start:end], is_known=is_known)

    def _unserved(self, link: Link, context: Context) -> None:
        if context.api_key != _API_VERSIONS:
            raise PeerBroken(what_is_not_served(context.api_key, context.api_version, self._served))
        # The client does not know the supported versions yet. Version 0 of the response, which
        # every client can read, makes it repeat the request in an older version.
        self._handle(link, context._replace(api_version=0), None)

    def _handle(
        self, link: Link, context: Context, request: Any, cache_key: CacheKey | None = None
    ) -> None:
        try:
            answer = self._call_handler(context, request)
        except Rejected as refusal:
            answer, cache_key = refused(context, request, refusal), None
        except Exception as error:  # noqa: BLE001 - a bug; see the table above
            answer, cache_key = self._bugs.answer(link, context, request, error), None
        if not isinstance(answer, Message):
            # The handler changes something first, such as creating a topic, so the response must
            # not be cached.
            self._tasks.spawn(self._answer_later(link, link.hold(), context, request, answer))
            return
        frame = _encode(context, answer)
        if cache_key is not None:
            self._response_cache.keep(cache_key, frame)
        link.answer([frame])

    async def _answer_later(
        self, link: Link, slot: Slot, context: Context, request: Any, pending: Awaitable[Message]
    ) -> None:
        try:
            answer = await pending
        except Rejected as refusal:
            answer = refused(context, request, refusal)
        except OUTAGES as outage:
            answer = refused(context, request, as_rejection(context.api_key, outage))
        except PeerBroken as broken:
            self.peer_broken(link, broken)
            link.close()
            return
        except MetadataUnknown as unknown:
            _log.info("Closing a connection from %s: %s", link.peer_host, unknown)
            link.close()
            return
        except Exception as error:  # noqa: BLE001 - a bug; see the table above
            answer = self._bugs.answer(link, context, request, error)
        self._waiting.serve()
        if not link.closed:
            slot.answer([_encode(context, answer)])

    def answer_all_fetches(self) -> None:
        """Answer every parked fetch: a stopping broker gets no more records for it."""
        for waiter in self._waiting.all():
            if isinstance(waiter, ParkedFetch):
                self._waiting.unpark(waiter)
                waiter.deadline_passed()


def _encode(context: Context, answer: Message) -> bytearray:
    return encode_response(context.api_key, context.api_version, context.correlation_id, answer)
