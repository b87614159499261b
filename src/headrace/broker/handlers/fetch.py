"""Fetch: send ranges of log files to consumers and followers.

A fetch is answered at once, or when ``min_bytes`` are available (``fetch_reads`` reads).

A response contains whole batches. Its first batch is sent whatever its size (KIP-74), so that a
consumer with a small limit cannot get stuck. A thread first reads data that is not in the page
cache: one megabyte from disk would block all connections for 14 ms.
"""

import asyncio
import logging
from struct import Struct
from typing import TYPE_CHECKING, Any

from headrace.broker.context import Context
from headrace.broker.handlers.fetch_reads import FetchReads, Follower
from headrace.broker.replication.replica import READ_COMMITTED, Replica
from headrace.broker.replication.waiting import Waiting
from headrace.core.fetch_session import CachedPartition, Fetch, FetchSessions
from headrace.core.parked import Event
from headrace.model.errors import Rejected
from headrace.net.link import Link, Slot
from headrace.storage.files import FileSlice
from headrace.storage.page_cache import is_resident, read, read_resident, warm
from headrace.wire.fetch import (
    TOPIC_ID_SINCE,
    FetchedPartition,
    FetchShape,
    encode_fetch_response,
)

if TYPE_CHECKING:
    from headrace.broker.bugs import Bugs
    from headrace.broker.replication.replica_manager import ReplicaManager
    from headrace.broker.tasks import BackgroundTasks

_log = logging.getLogger("headrace.broker")

_correlation_id = Struct(">i").unpack_from
# Measured: below this size, read and sendmsg are faster than the three system calls of sendfile.
_SENDFILE_SIZE_MIN = 1 << 17
_REMEMBERED_SIZE_MAX = 1 << 10  # of a request; each connection may remember one


class RememberedFetch:
    """A consumer's last request, so that the next similar one need not be decoded."""

    __slots__ = ("_shape", "_context", "_request")

    def __init__(self, shape: FetchShape, context: Context, request: Any) -> None:
        self._shape = shape
        self._context = context
        self._request = request

    @classmethod
    def of(
        cls, context: Context, request: Any, frame: memoryview, body_at: int
    ) -> "RememberedFetch | None":
        """None if the request is not one that consumers repeat."""
        if len(frame) > _REMEMBERED_SIZE_MAX or not request.topics:
            return None
        shape = FetchShape.of(bytes(frame), context.api_version, body_at)
        return None if shape is None else cls(shape, context, request)

    def match(self, view: memoryview, start: int, end: int) -> tuple[Context, Any] | None:
        """The request in ``[start, end)``, if it differs only in its offset and session epoch.

        It reuses the object of the previous request: a connection has one fetch in flight.
        """
        found = self._shape.match(view, start, end)
        if found is None:
            return None
        request = self._request
        request.session_epoch, request.topics[0].partitions[0].fetch_offset = found
        return self._context.of_request(*_correlation_id(view, start + 4)), request


class ParkedFetch:
    """A fetch that may have to wait for ``min_bytes`` or its deadline."""

    __slots__ = (
        "fetching",
        "link",
        "context",
        "request",
        "fetch",
        "partitions",
        "follower",
        "slot",
    )

    def __init__(
        self,
        fetching: "Fetching",
        link: Link,
        context: Context,
        request: Any,
        fetch: Fetch,
        follower: Follower | None,
    ) -> None:
        self.fetching = fetching
        self.link = link
        self.context = context
        self.request = request
        self.fetch = fetch
        self.partitions = (
            fetch.partitions
        )  # that the response is about; see ``FetchReads.with_changes``
        self.follower = follower
        self.slot: Slot | None = None

    def happened(self, event: Event, replica: Replica) -> bool:
        if not self.fetching.try_again(self, last_chance=False):
            return False
        self._unparked()
        return True

    def deadline_passed(self) -> None:
        self._unparked()
        self.fetching.try_again(self, last_chance=True)

    def _unparked(self) -> None:
        if self.link.state is not None:
            self.link.state.parked = None


class Fetching:
    """The Fetch requests of one broker."""

    def __init__(
        self,
        replicas: "ReplicaManager",
        sessions: FetchSessions,
        waiting: Waiting,
        tasks: "BackgroundTasks",
        bugs: "Bugs",
        loop: asyncio.AbstractEventLoop,
        *,
        size_max: int,
        selects_by_rack: bool = False,
    ) -> None:
        """``size_max`` is the broker's fetch.max.bytes.

        ``selects_by_rack``: replica.selector.class is Kafka's rack-aware selector.
        """
        self._replicas = replicas
        self._sessions = sessions
        self._waiting = waiting
        self._tasks = tasks
        self._bugs = bugs
        self._loop = loop
        self._size_max = size_max
        self._reads = FetchReads(replicas, loop, selects_by_rack=selects_by_rack)

    def fetch(self, link: Link, context: Context, request: Any) -> None:
        if request.max_bytes > self._size_max:
            request.max_bytes = self._size_max
        if request.min_bytes > request.max_bytes:
            # A response cannot have more; the fetch would always wait for max_wait_ms.
            request.min_bytes = request.max_bytes
        by_topic_id = context.api_version >= TOPIC_ID_SINCE
        partitions = [
            CachedPartition(
                topic.topic_id if by_topic_id else topic.topic,
                asked.partition,
                asked.current_leader_epoch,
                asked.fetch_offset,
                asked.last_fetched_epoch,
                asked.partition_max_bytes,
                asked.log_start_offset,
            )
            for topic in request.topics
            for asked in topic.partitions
        ]
        forgotten = [
            (topic.topic_id if by_topic_id else topic.topic, partition)
            for topic in request.forgotten_topics_data
            for partition in topic.partitions
        ]
        follower = Follower.of(request)
        try:
            fetch = self._sessions.resolve(
                request.session_id,
                request.session_epoch,
                partitions,
                forgotten,
                by_topic_id,
                self._loop.time() * 1000,
                is_followers=follower is not None,
            )
        except Rejected as refusal:
            link.answer(
                encode_fetch_response(
                    context.api_version, context.correlation_id, 0, [], error_code=refusal.code
                )
            )
            return
        if follower is not None:
            self._reads.note_progress(fetch.partitions, partitions, follower)
        waiting = ParkedFetch(self, link, context, request, fetch, follower)
        entries = self._read(waiting, last_chance=request.max_wait_ms <= 0 or not fetch.partitions)
        if entries is not None:
            self._answer(waiting, entries)
            return
        waiting.slot = link.hold()
        link.state.parked = waiting
        if follower is not None:
            until = Event.LOG_END
        elif request.isolation_level == READ_COMMITTED:
            until = Event.LAST_STABLE_OFFSET
        else:
            until = Event.HIGH_WATERMARK
        self._waiting.park(waiting, self._waited_for(waiting), request.max_wait_ms, until)

    def _waited_for(self, waiting: ParkedFetch) -> list[Replica]:
        if waiting.follower is not None:
            return self._reads.hosted(waiting.fetch.partitions)
        found = [self._reads.replica(cached) for cached in waiting.fetch.partitions]
        return [replica for replica in found if replica is not None]

    def try_again(self, waiting: ParkedFetch, *, last_chance: bool) -> bool:
        """Answer a parked fetch if enough is available, or if this is its ``last_chance``."""
        entries = self._read(waiting, last_chance=last_chance)
        if entries is None:
            return False
        self._answer(waiting, entries)
        return True

    # --- reading -------------------------------------------------------------

    def _read(self, waiting: ParkedFetch, *, last_chance: bool) -> list[FetchedPartition] | None:
        """One entry for each of ``waiting.partitions``; None if the fetch should wait for more."""
        request = waiting.request
        api_version = waiting.context.api_version
        follower = waiting.follower
        reads = self._reads
        size_left = request.max_bytes
        size_read = 0
        answer_now = last_chance
        entries = []
        if follower is not None and waiting.fetch.incremental:
            waiting.partitions = reads.with_changes(waiting.fetch.partitions)
        for cached in waiting.partitions:
            size_max = min(cached.size_max, size_left)
            try:
                if follower is None:
                    entry = reads.for_consumer(
                        cached, request, api_version, size_max, size_read == 0
                    )
                else:
                    entry = reads.for_follower(cached, follower, size_max, size_read == 0)
            except Rejected as refusal:
                entry = reads.refused(cached, refusal)
                answer_now = True
            size_read += entry.records_size
            size_left = max(0, size_left - entry.records_size)
            if entry.diverging is not None or entry.preferred_read_replica >= 0:
                answer_now = True
            entries.append(entry)
        if answer_now or (size_read and size_read >= request.min_bytes):
            return entries
        return entries if size_left == 0 or request.min_bytes <= 0 else None

    # --- responding ----------------------------------------------------------

    def _answer(self, waiting: ParkedFetch, entries: list[FetchedPartition]) -> None:
        cold = []
        for place, entry in enumerate(entries):
            records = entry.records
            if records is None:
                continue
            if records.size >= _SENDFILE_SIZE_MIN:
                if not is_resident(records):
                    cold.append((place, records))
            elif (data := read_resident(records)) is not None:
                entry.records = data
            else:
                cold.append((place, records))
        if cold:
            if waiting.slot is None:
                waiting.slot = waiting.link.hold()
            self._tasks.spawn(self._warm_and_answer(waiting, entries, cold))
        else:
            self._send(waiting, entries)

    async def _warm_and_answer(
        self,
        waiting: ParkedFetch,
        entries: list[FetchedPartition],
        cold: list[tuple[int, FileSlice]],
    ) -> None:
        for place, file_slice in cold:
            try:
                if file_slice.size >= _SENDFILE_SIZE_MIN:
                    await asyncio.to_thread(warm, file_slice)
                else:
                    # If the log was truncated meanwhile, there are fewer bytes than requested.
                    data = await asyncio.to_thread(read, file_slice)
                    entries[place].records, entries[place].records_size = data, len(data)
            except OSError as problem:
                entries[place] = self._unreadable(waiting.partitions[place], problem)
            except Exception as error:  # noqa: BLE001 - a bug closes only this connection
                frame = self._bugs.frame(waiting.link, waiting.context, waiting.request, error)
                assert waiting.slot is not None
                waiting.slot.answer([frame])
                return
        self._send(waiting, entries)

    def _unreadable(self, cached: CachedPartition, problem: OSError) -> FetchedPartition:
        """The error of a partition whose records the disk does not return."""
        replica = self._reads.replica(cached)
        if replica is None:
            refusal = self._replicas.unhosted(cached.topic, cached.partition)
        else:
            refusal = replica.unreadable(problem)
        return FetchedPartition(cached.partition, refusal.code)

    def _send(self, waiting: ParkedFetch, entries: list[FetchedPartition]) -> None:
        fetch = waiting.fetch
        session = fetch.session
        topics: list[tuple[str | bytes, list[FetchedPartition]]] = []
        leaders: list[int] = []
        for cached, entry in zip(waiting.partitions, entries, strict=True):
            if entry.current_leader is not None:
                leaders.append(entry.current_leader[0])
            if session is not None:
                changed = session.answered(
                    cached,
                    entry.high_watermark,
                    entry.log_start,
                    has_records=entry.records is not None,
                    failed=entry.error_code != 0 or entry.diverging is not None,
                )
                if fetch.incremental and not changed:
                    continue
            if topics and topics[-1][0] == cached.topic:
                topics[-1][1].append(entry)
            else:
                topics.append((cached.topic, [entry]))
        context = waiting.context
        parts = encode_fetch_response(
            context.api_version,
            context.correlation_id,
            fetch.session_id,
            topics,
            endpoints=self._replicas.endpoints_of(leaders, context.listener) if leaders else (),
        )
        if waiting.slot is None:
            waiting.link.answer(parts)
        else:
            waiting.slot.answer(parts)
