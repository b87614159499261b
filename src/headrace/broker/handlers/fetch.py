"""Fetch: sends ranges of log files, immediately or when there is enough to send.

The answer is cut to whole batches. The first batch of an answer is delivered whatever its size
(KIP-74), so that a consumer with a small limit cannot get stuck. What is not in the page cache
is brought there by a thread first, because one cold megabyte would stop everybody for 14 ms.
"""

import asyncio
import logging
from struct import Struct
from typing import TYPE_CHECKING, Any

from headrace.broker.context import Context
from headrace.broker.replication.replica import READ_COMMITTED, Replica
from headrace.broker.replication.waiting import Waiting
from headrace.core.fetch_session import Fetch, FetchSessions, Want
from headrace.core.leader_epochs import UNDEFINED
from headrace.core.parked import Event
from headrace.model.errors import Corrupt, ErrorCode, Rejected
from headrace.model.ids import LeaderEpoch, Offset, ProducerId, TopicId
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
# Measured: below this, reading and one sendmsg beats the three calls of a sendfile.
_SENDFILE_SIZE_MIN = 1 << 17
_REMEMBERED_SIZE_MAX = 1 << 10  # of a request; every connection may have one


class RememberedFetch:
    """A consumer's last request, so that the next one like it need not be decoded."""

    __slots__ = ("_shape", "_context", "_request")

    def __init__(self, shape: FetchShape, context: Context, request: Any) -> None:
        self._shape = shape
        self._context = context
        self._request = request

    @classmethod
    def of(
        cls, context: Context, request: Any, frame: memoryview, body_at: int
    ) -> "RememberedFetch | None":
        """None if it is not of the kind that consumers repeat."""
        if len(frame) > _REMEMBERED_SIZE_MAX or not request.topics:
            return None
        shape = FetchShape.of(bytes(frame), context.api_version, body_at)
        return None if shape is None else cls(shape, context, request)

    def match(self, view: memoryview, start: int, end: int) -> tuple[Context, Any] | None:
        """The request in ``[start, end)``, if it differs only in where to go on.

        In place of the one before: no connection has two fetches under way.
        """
        found = self._shape.match(view, start, end)
        if found is None:
            return None
        request = self._request
        request.session_epoch, request.topics[0].partitions[0].fetch_offset = found
        return self._context.of_request(*_correlation_id(view, start + 4)), request


class ParkedFetch:
    """A fetch, and later a waiter for ``min_bytes`` or its deadline."""

    __slots__ = ("fetching", "link", "context", "request", "fetch", "slot")

    def __init__(
        self, fetching: "Fetching", link: Link, context: Context, request: Any, fetch: Fetch
    ) -> None:
        self.fetching = fetching
        self.link = link
        self.context = context
        self.request = request
        self.fetch = fetch
        self.slot: Slot | None = None

    def happened(self, event: Event, replica: Replica) -> bool:
        if not self.fetching.try_again(self, last_chance=False):
            return False
        self._is_parked_no_more()
        return True

    def deadline_passed(self) -> None:
        self._is_parked_no_more()
        self.fetching.try_again(self, last_chance=True)

    def _is_parked_no_more(self) -> None:
        if self.link.state is not None:
            self.link.state.parked = None


class Fetching:
    """The fetch side of one broker."""

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
    ) -> None:
        """``size_max`` is the broker's fetch.max.bytes."""
        self._replicas = replicas
        self._sessions = sessions
        self._waiting = waiting
        self._tasks = tasks
        self._bugs = bugs
        self._loop = loop
        self._size_max = size_max

    def fetch(self, link: Link, context: Context, request: Any) -> None:
        if request.max_bytes > self._size_max:
            request.max_bytes = self._size_max
        if request.min_bytes > request.max_bytes:
            # A response can never have more; the fetch would always wait for max_wait_ms.
            request.min_bytes = request.max_bytes
        by_topic_id = context.api_version >= TOPIC_ID_SINCE
        wants = [
            Want(
                topic.topic_id if by_topic_id else topic.topic,
                asked.partition,
                asked.current_leader_epoch,
                asked.fetch_offset,
                asked.last_fetched_epoch,
                asked.partition_max_bytes,
            )
            for topic in request.topics
            for asked in topic.partitions
        ]
        forgotten = [
            (topic.topic_id if by_topic_id else topic.topic, partition)
            for topic in request.forgotten_topics_data
            for partition in topic.partitions
        ]
        try:
            fetch = self._sessions.resolve(
                request.session_id,
                request.session_epoch,
                wants,
                forgotten,
                by_topic_id,
                self._loop.time() * 1000,
            )
        except Rejected as refusal:
            link.answer(
                encode_fetch_response(
                    context.api_version, context.correlation_id, 0, [], error_code=refusal.code
                )
            )
            return
        waiting = ParkedFetch(self, link, context, request, fetch)
        entries = self._read(waiting, last_chance=request.max_wait_ms <= 0 or not fetch.wants)
        if entries is not None:
            self._answer(waiting, entries)
            return
        waiting.slot = link.hold()
        link.state.parked = waiting
        committed = request.isolation_level == READ_COMMITTED
        self._waiting.park(
            waiting,
            self._waited_for(waiting),
            request.max_wait_ms,
            Event.LAST_STABLE_OFFSET if committed else Event.HIGH_WATERMARK,
        )

    def _waited_for(self, waiting: ParkedFetch) -> list[Replica]:
        found = [self._replica(want) for want in waiting.fetch.wants]
        return [replica for replica in found if replica is not None]

    def try_again(self, waiting: ParkedFetch, *, last_chance: bool) -> bool:
        """Answer a parked fetch if there is enough by now, or if its time is over."""
        entries = self._read(waiting, last_chance=last_chance)
        if entries is None:
            return False
        self._answer(waiting, entries)
        return True

    # --- reading -------------------------------------------------------------

    def _replica(self, want: Want) -> Replica | None:
        topic = want.topic
        if isinstance(topic, str):
            return self._replicas.get(topic, want.partition)
        return self._replicas.get_by_id(TopicId(topic), want.partition)

    def _read(self, waiting: ParkedFetch, *, last_chance: bool) -> list[FetchedPartition] | None:
        """One entry per wanted partition; None if it is better to wait for more."""
        request = waiting.request
        isolation_level = request.isolation_level
        size_left = request.max_bytes
        size_read = 0
        answer_now = last_chance
        entries = []
        for want in waiting.fetch.wants:
            try:
                entry = self._read_one(
                    want, isolation_level, min(want.size_max, size_left), size_read == 0
                )
            except Rejected as refusal:
                entry = FetchedPartition(want.partition, refusal.code)
                answer_now = True
            size_read += entry.records_size
            size_left = max(0, size_left - entry.records_size)
            if entry.diverging is not None:
                answer_now = True
            entries.append(entry)
        if answer_now or (size_read and size_read >= request.min_bytes):
            return entries
        return entries if size_left == 0 or request.min_bytes <= 0 else None

    def _read_one(
        self, want: Want, isolation_level: int, size_max: int, at_least_one: bool
    ) -> FetchedPartition:
        replica = self._replica(want)
        if replica is None:
            raise self._replicas.unhosted(want.topic, want.partition)
        high_watermark = replica.lead_in(want.current_leader_epoch).high_watermark
        log = replica.log
        if want.last_fetched_epoch >= 0:
            diverging = log.leader_epochs.end_of(LeaderEpoch(want.last_fetched_epoch), log.log_end)
            if diverging == UNDEFINED:
                raise Rejected(
                    ErrorCode.OFFSET_OUT_OF_RANGE,
                    f"{replica.topic_partition} knows no leader epoch {want.last_fetched_epoch}",
                )
            if (
                diverging.leader_epoch < want.last_fetched_epoch
                or diverging.end_offset < want.fetch_offset
            ):
                return FetchedPartition(want.partition, 0, diverging=diverging)
        stable_end = log.last_stable_offset(high_watermark)
        readable_end = stable_end if isolation_level == READ_COMMITTED else high_watermark
        fetch_offset = Offset(want.fetch_offset)
        if not log.log_start <= fetch_offset <= log.log_end:
            raise Rejected(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"{replica.topic_partition} holds offsets {log.log_start} to {log.log_end}",
            )
        found: FileSlice | None = None
        aborted: list[tuple[ProducerId, Offset]] | None = (
            [] if isolation_level == READ_COMMITTED else None
        )
        if fetch_offset < readable_end and (size_max > 0 or at_least_one):
            try:
                found = log.read(fetch_offset, size_max, readable_end, at_least_one=at_least_one)
                if found is not None and aborted is not None:
                    # Not those behind what is sent: a reader far back would be told of all of
                    # them with every piece.
                    end_offset = log.end_of(found, fetch_offset, readable_end)
                    aborted = log.aborted_transactions(fetch_offset, end_offset)
            except (Corrupt, OSError) as problem:
                raise replica.unreadable(problem) from problem
        return FetchedPartition(
            want.partition,
            0,
            high_watermark,
            stable_end,
            log.log_start,
            aborted,
            found,
            found.size if found is not None else 0,
        )

    # --- answering -----------------------------------------------------------

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
                    # A log cut meanwhile gives fewer bytes than it was asked for.
                    data = await asyncio.to_thread(read, file_slice)
                    entries[place].records, entries[place].records_size = data, len(data)
            except OSError as problem:
                entries[place] = self._unreadable(waiting.fetch.wants[place], problem)
            except Exception as error:  # noqa: BLE001 - a bug costs its own connection
                frame = self._bugs.frame(waiting.link, waiting.context, waiting.request, error)
                assert waiting.slot is not None
                waiting.slot.answer([frame])
                return
        self._send(waiting, entries)

    def _unreadable(self, want: Want, problem: OSError) -> FetchedPartition:
        """The answer where the disk does not yield what the log holds."""
        replica = self._replica(want)
        if replica is None:
            refusal = self._replicas.unhosted(want.topic, want.partition)
        else:
            refusal = replica.unreadable(problem)
        return FetchedPartition(want.partition, refusal.code)

    def _send(self, waiting: ParkedFetch, entries: list[FetchedPartition]) -> None:
        fetch = waiting.fetch
        session = fetch.session
        topics: list[tuple[str | bytes, list[FetchedPartition]]] = []
        for want, entry in zip(fetch.wants, entries, strict=True):
            if session is not None:
                changed = session.answered(
                    want,
                    entry.high_watermark,
                    entry.log_start,
                    has_records=entry.records is not None,
                    failed=entry.error_code != 0 or entry.diverging is not None,
                )
                if fetch.incremental and not changed:
                    continue
            if topics and topics[-1][0] == want.topic:
                topics[-1][1].append(entry)
            else:
                topics.append((want.topic, [entry]))
        parts = encode_fetch_response(
            waiting.context.api_version,
            waiting.context.correlation_id,
            fetch.session_id,
            topics,
        )
        if waiting.slot is None:
            waiting.link.answer(parts)
        else:
            waiting.slot.answer(parts)
