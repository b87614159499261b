"""From a frame to its handler and back: what stands behind every connection.

Who answers for a failure:

    PeerBroken   bytes that are no request, an API or version that was not announced
                 -> that connection is closed
    Rejected     the handler cannot serve the request -> its code in the answer
    anything     a bug, before anything was appended -> UNKNOWN_SERVER_ERROR, the trace in the
                 log, that connection closed
    anything     while writing or answering, where it is unclear what was done -> the broker
                 stops, because it must not go on acknowledging
"""

import asyncio
import inspect
import logging
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any

from headrace.broker.context import Context
from headrace.broker.error_responses import refused
from headrace.broker.handlers import handler
from headrace.broker.handlers.fetch import Fetching, ParkedFetch, RememberedFetch
from headrace.broker.handlers.produce import ACKS_NONE, Produced, Producing, RememberedShape
from headrace.broker.protocol_errors import ProtocolErrorLog
from headrace.broker.response_cache import CacheKey, ResponseCache
from headrace.core.parked import Event, Parked
from headrace.model.errors import ErrorCode, PeerBroken, Rejected
from headrace.net.link import FileRange, Link, Slot
from headrace.wire import commit, schema
from headrace.wire.api import ApiKey, api_name, is_served, request_class, what_is_not_served
from headrace.wire.framing import RequestHeader, encode_response, parse_request_header
from headrace.wire.schema import Message

if TYPE_CHECKING:
    from headrace.broker.broker import Broker
    from headrace.broker.replication.replica_manager import Replica

_log = logging.getLogger(__name__)

_PRODUCE = int(ApiKey.PRODUCE)
_FETCH = int(ApiKey.FETCH)
_API_VERSIONS = int(ApiKey.API_VERSIONS)
_OFFSET_COMMIT = int(ApiKey.OFFSET_COMMIT)
_FIRST_SERVED_PRODUCE = 3
# Decoding makes up to 74 bytes of objects per byte of a hostile frame, at about 1 µs each.
_FRAME_SIZE_ON_LOOP_MAX = 1 << 18
_FRAME_SIZE_MAX = 1 << 24
_FETCH_SIZE_MAX = 1 << 21  # 60,000 partitions at once


class ClientState:
    """What the broker remembers of one connection."""

    __slots__ = ("remembered", "remembered_fetch", "parked")

    def __init__(self) -> None:
        self.remembered: RememberedShape | None = None
        self.remembered_fetch: RememberedFetch | None = None
        self.parked: ParkedFetch | None = None


class Dispatch:
    """The ``Service`` behind all links of one broker."""

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self.producing = Producing(broker)
        self.fetching = Fetching(broker)
        self.parked_fetches: Parked[ParkedFetch] = Parked()
        self.parked_produces: Parked[Produced] = Parked()
        self._committed: dict[Replica, None] = {}
        self._response_cache = ResponseCache()
        self._protocol_errors = ProtocolErrorLog()

    # --- net.Service ---------------------------------------------------------

    def request(self, link: Link, view: memoryview, start: int, end: int) -> None:
        try:
            self._request(link, view, start, end)
        except PeerBroken:
            raise
        except Exception as error:  # noqa: BLE001 - a bug; see the table above
            if self._broker.replicas.staged:
                self._broker.fail(error)
            else:
                header = parse_request_header(view, start, end)
                context = self._context(link, header)
                request = self._decode(header, view, end) if header.api_key == _PRODUCE else None
                frame = self.bug_frame(link, context, request, error)
                if request is None or request.acks != ACKS_NONE:
                    link.answer([frame])

    def _request(self, link: Link, view: memoryview, start: int, end: int) -> None:
        state = link.state
        if state is None:
            state = link.state = ClientState()
        remembered = state.remembered
        is_known = False
        if remembered is not None:
            records = remembered.shape.match(view, start, end)
            if records is not None and remembered.generation == self._broker.replicas.generation:
                is_known = True
                correlation_id = bytes(view[start + 4 : start + 8])
                if self.producing.shaped(link, remembered, correlation_id, records):
                    return
        if state.remembered_fetch is not None:
            again = state.remembered_fetch.match(view, start, end)
            if again is not None:
                self._finish_produces()
                self.fetching.fetch(link, *again)
                return
        header = parse_request_header(view, start, end)
        if header.api_key == _PRODUCE:
            self._produce(link, header, view, start, end, is_known=is_known)
            return
        self._finish_produces()
        context = self._context(link, header)
        if not is_served(header.api_key, header.api_version):
            self._unserved(link, context)
            return
        size = end - start
        if size > (_FETCH_SIZE_MAX if header.api_key == _FETCH else _FRAME_SIZE_MAX):
            raise PeerBroken(
                f"{api_name(header.api_key)} of {size} bytes; only Produce may be that large"
            )
        if header.api_key == _FETCH:
            request = self._decode(header, view, end)
            state.remembered_fetch = RememberedFetch.of(
                context, request, view[start:end], header.body_position - start
            )
            self.fetching.fetch(link, context, request)
        elif size > _FRAME_SIZE_ON_LOOP_MAX:
            self._decode_apart(link, context, header, view[start:end], start)
        else:
            question = ResponseCache.question(context, view[header.body_position : end])
            known = self._cached_response(context, question)
            if known is not None:
                link.answer([known])
            else:
                self._handle(link, context, self._decode(header, view, end), question)

    def _finish_produces(self) -> None:
        """Requests take effect in their order: what was produced before is written.

        It counts, too, unless ``flush.messages`` has an fsync come first.
        """
        if self.producing.turn_open:
            self.producing.finish_turn()

    def _cached_response(self, context: Context, question: CacheKey | None) -> bytearray | None:
        if question is None:
            return None
        broker = self._broker
        generation = (broker.metadata.generation, broker.control.features_epoch)
        return self._response_cache.find(question, generation, context.correlation_id)

    def turn_ended(self, link: Link) -> None:
        try:
            if self.producing.turn_open:
                self.producing.finish_turn()
            if self._committed:
                self.serve_committed()
        except Exception as error:  # noqa: BLE001 - a bug while applying: the broker stops
            self._broker.fail(error)

    def unreadable(self, file_range: FileRange, error: OSError) -> None:
        self._broker.logs.unreadable(file_range.file.path, error)

    def peer_broken(self, link: Link, broken: PeerBroken) -> None:
        self._protocol_errors.say(link, broken, self._broker.loop.time())

    def link_closed(self, link: Link) -> None:
        self._broker.limits.closed(link)
        state = link.state
        if state is not None and state.parked is not None:
            self.parked_fetches.remove(state.parked)
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
        # Kafka reads no further than the last field, and librdkafka's Metadata 13 relies on it:
        # it sends three bytes more.
        request, _ = decode(view, header.body_position, end)
        return request

    def _decode_apart(
        self, link: Link, context: Context, header: RequestHeader, frame: memoryview, start: int
    ) -> None:
        """Decode a frame of unusual size in a thread, so that others are served meanwhile."""
        copy = memoryview(bytes(frame))
        shifted = header._replace(body_position=header.body_position - start)

        async def decode_and_answer() -> Message:
            request = await asyncio.to_thread(self._decode, shifted, copy, len(copy))
            try:
                answer = handler(context.api_key)(self._broker, context, request)
                return await answer if inspect.isawaitable(answer) else answer  # type: ignore[no-any-return]
            except Rejected as refusal:
                return refused(context, request, refusal)

        pending = decode_and_answer()
        self._broker.spawn(self._answer_later(link, link.hold(), context, None, pending))

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
            raise PeerBroken(f"Produce version {header.api_version}; versions 3 to 13 are served")
        context = self._context(link, header)
        request = self._decode(header, view, end)
        self.producing.full(link, context, request, view[start:end], is_known=is_known)

    def _unserved(self, link: Link, context: Context) -> None:
        if context.api_key != _API_VERSIONS:
            raise PeerBroken(what_is_not_served(context.api_key, context.api_version))
        # The client cannot know what we speak yet: answer in the oldest words there are, with
        # the error that makes it ask again in an older version.
        self._handle(link, context._replace(api_version=0), None)

    def _handle(
        self, link: Link, context: Context, request: Any, question: CacheKey | None = None
    ) -> None:
        try:
            answer = handler(context.api_key)(self._broker, context, request)
        except Rejected as refusal:
            answer, question = refused(context, request, refusal), None
        except Exception as error:  # noqa: BLE001 - a bug; see the table above
            answer, question = self._bug(link, context, request, error), None
        if not isinstance(answer, Message):
            # Something is changed first (a topic is made): the next one to ask gets another answer.
            self._broker.spawn(self._answer_later(link, link.hold(), context, request, answer))
            return
        frame = _encode(context, answer)
        if question is not None:
            self._response_cache.keep(question, frame)
        link.answer([frame])

    async def _answer_later(
        self, link: Link, slot: Slot, context: Context, request: Any, pending: Awaitable[Message]
    ) -> None:
        try:
            answer = await pending
        except Rejected as refusal:
            answer = refused(context, request, refusal)
        except PeerBroken as broken:
            self.peer_broken(link, broken)
            link.close()
            return
        except Exception as error:  # noqa: BLE001 - a bug; see the table above
            answer = self._bug(link, context, request, error)
        self.serve_committed()
        if not link.closed:
            slot.answer([_encode(context, answer)])

    def _bug(self, link: Link, context: Context, request: Any, error: Exception) -> Message:
        """The answer to a request that met a bug before anything was appended; then it closes."""
        _log.error(
            "%s version %d from %s (client id %s) failed; closing its connection",
            api_name(context.api_key),
            context.api_version,
            link,
            context.client_id,
            exc_info=error,
        )
        self._broker.bugs.append(error)
        link.close_when_sent()
        return refused(context, request, Rejected(ErrorCode.UNKNOWN_SERVER_ERROR))

    def bug_frame(self, link: Link, context: Context, request: Any, error: Exception) -> bytearray:
        """The same as it goes over the wire."""
        return _encode(context, self._bug(link, context, request, error))

    # --- those that wait -----------------------------------------------------

    def park_fetch(self, waiting: ParkedFetch, wait_ms: int) -> None:
        deadline = self._broker.clock.monotonic_ms() + wait_ms
        waiting.link.state.parked = waiting
        self.parked_fetches.add(waiting, self.fetching.partitions_waited_for(waiting), deadline)
        self._broker.arm_timer(deadline)

    def park_produce(self, produced: Produced) -> None:
        deadline = self._broker.clock.monotonic_ms() + produced.timeout_ms
        self.parked_produces.add(produced, self.producing.replicas_waited_for(produced), deadline)
        self._broker.arm_timer(deadline)

    def committed(self, replica: "Replica") -> None:
        """New records of ``replica`` may be seen; those who wait are served at the turn's end."""
        self._committed[replica] = None

    def serve_committed(self) -> None:
        while self._committed:
            committed, self._committed = self._committed, {}
            for replica in committed:
                for produced in self.parked_produces.affected_by(
                    replica.topic_partition, Event.HIGH_WATERMARK
                ):
                    if self.producing.try_again(produced):
                        self.parked_produces.remove(produced)
                for waiting in self.parked_fetches.affected_by(replica, Event.HIGH_WATERMARK):
                    if self.fetching.try_again(waiting, last_chance=False):
                        self._unpark(waiting)

    def _unpark(self, waiting: ParkedFetch) -> None:
        self.parked_fetches.remove(waiting)
        if waiting.link.state is not None:
            waiting.link.state.parked = None

    def next_deadline(self) -> float | None:
        deadlines = [
            deadline
            for parked in (self.parked_fetches, self.parked_produces)
            if (deadline := parked.next_deadline()) is not None
        ]
        return min(deadlines, default=None)

    def deadlines_passed(self, now: float) -> None:
        for waiting in self.parked_fetches.expired(now):
            waiting.link.state.parked = None
            self.fetching.try_again(waiting, last_chance=True)
        for produced in self.parked_produces.expired(now):
            self.producing.time_out(produced)

    def answer_all_fetches(self) -> None:
        """Nobody waits for data from a broker that stops."""
        for waiting in self.parked_fetches.all():
            self._unpark(waiting)
            self.fetching.try_again(waiting, last_chance=True)


def _encode(context: Context, answer: Message) -> bytearray:
    return encode_response(context.api_key, context.api_version, context.correlation_id, answer)
