"""Sends encoded batches: in order per partition, and each stored once if the sender is idempotent.

One request per broker is in flight at a time. A batch keeps its sequence number until it is
acknowledged, so a batch sent again after a lost response is not stored twice. This needs a
producer ID, which non-idempotent senders do not have.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, Self

from headrace.arrow.encoding import EncodedBatch, stamp_producer
from headrace.arrow.errors import BadRow
from headrace.client.errors import ClientError, Disconnected, Refused, error_code
from headrace.model.errors import ErrorCode
from headrace.model.ids import TopicPartition
from headrace.records.batch import MAX_SEQUENCE, read_header
from headrace.records.record import build_batch, iter_records
from headrace.spark.cluster import Cluster
from headrace.spark.failures import PipelineError, refuse, refused
from headrace.wire import messages as m

log = logging.getLogger("headrace.spark")

# Version 12 adds partitions to a transaction automatically, version 13 requires topic IDs.
_VERSION_MAX = 11
_REQUEST_SIZE_MAX = 16 << 20
_WAITING_SIZE_MAX = 32 << 20
_PRODUCER_CHANGES_MAX = 3

_NEW_PRODUCER_HELPS = (
    ErrorCode.UNKNOWN_PRODUCER_ID,
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
)
_STORED = (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER)
_ADVICE = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "there is no such topic or partition; create it, or "
    "change the option topic, the column topic or the column partition",
    ErrorCode.INVALID_TOPIC_EXCEPTION: "this is not a valid topic name; change the option topic or "
    "the column topic",
    ErrorCode.NOT_ENOUGH_REPLICAS: "fewer replicas are in sync than min.insync.replicas requires",
    ErrorCode.INVALID_RECORD: "the topic refuses such records (a compacted topic requires keys)",
}


class Identity(NamedTuple):
    producer_id: int = -1
    producer_epoch: int = -1
    transactional_id: str | None = None


class Stored(NamedTuple):
    """The position of a stored batch, or of a part of a batch that was too large."""

    base_offset: int
    record_count: int


class _Waiting:
    """A batch that is not yet acknowledged."""

    __slots__ = ("batch", "data", "base_sequence")

    def __init__(self, batch: EncodedBatch) -> None:
        self.batch = batch
        self.data: bytearray | None = None  # stamped when the batch is first sent
        self.base_sequence = -1


class BatchSender:
    """Sends the batches of one producer, from one thread."""

    def __init__(
        self,
        cluster: Cluster,
        identity: Identity,
        *,
        acks: int = -1,
        timeout_ms: int = 120_000,
        keep_places: bool = False,
        gives_up: Callable[[], bool] = lambda: False,
    ) -> None:
        """``gives_up`` is asked after each failure: True ends the retries before ``timeout_ms``."""
        self._cluster = cluster
        self._identity = identity
        self._acks = acks
        self._timeout_ms = timeout_ms
        self._queues: dict[TopicPartition, deque[_Waiting]] = {}
        self._waiting_size = 0
        self._next_sequence: dict[TopicPartition, int] = {}
        self._in_flight: dict[int, list[tuple[TopicPartition, _Waiting]]] = {}
        self._progress_at = time.monotonic()
        self._producer_changes = 0
        self._last_problem = ""
        self._keep_places = keep_places
        self._gives_up = gives_up
        self.stored: list[Stored] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self.abandon()

    def send(self, batches: Iterable[EncodedBatch]) -> None:
        """Queue batches and send; blocks while too many bytes are waiting."""
        for batch in batches:
            self._queues.setdefault(batch.place, deque()).append(_Waiting(batch))
            self._waiting_size += len(batch.data)
        sent = self._pump()
        while self._waiting_size > _WAITING_SIZE_MAX:
            sent = self._receive_or_pause(sent)

    def flush(self) -> None:
        """Wait until every batch is acknowledged."""
        sent = self._pump()
        while self._queues:
            sent = self._receive_or_pause(sent)

    def _receive_or_pause(self, sent: bool) -> bool:
        """Receive a response if one is due, else pause if nothing could be sent; then send more."""
        if self._in_flight:
            self._receive_response()
        elif not sent:
            self._pause()  # no leader is available
        return self._pump()

    def abandon(self) -> None:
        """Close connections with responses pending, which the next user must not receive."""
        for leader in self._in_flight:
            self._cluster.drop(leader)
        self._in_flight.clear()
        self._queues.clear()

    # --- requests ----------------------------------------------------------------------

    def _pump(self) -> bool:
        """Send to every broker that has batches waiting and no request in flight."""
        chosen: dict[int, list[tuple[TopicPartition, _Waiting]]] = {}
        sizes: dict[int, int] = {}
        # A batch waits for its response even if its leader has moved: otherwise the second
        # response would be taken for that of the next batch.
        awaited = {place for entries in self._in_flight.values() for place, _ in entries}
        for place, queue in self._queues.items():
            if place in awaited:
                continue
            try:
                leader = self._cluster.leader(*place)
            except (Refused, Disconnected) as failed:
                self._failed(place, failed)
                continue
            size = sizes.get(leader, 0) + len(queue[0].batch.data)
            if leader in self._in_flight or (leader in chosen and size > _REQUEST_SIZE_MAX):
                continue
            sizes[leader] = size
            chosen.setdefault(leader, []).append((place, queue[0]))
        for leader, entries in chosen.items():
            self._send_to(leader, entries)
        return bool(chosen)

    def _send_to(self, leader: int, entries: list[tuple[TopicPartition, _Waiting]]) -> None:
        by_topic: dict[str, list[m.ProduceRequest.PartitionProduceData]] = {}
        for place, waiting in entries:
            self._stamp(place, waiting)
            by_topic.setdefault(place.topic, []).append(
                m.ProduceRequest.PartitionProduceData(index=place.partition, records=waiting.data)
            )
        request = m.ProduceRequest(
            transactional_id=self._identity.transactional_id,
            acks=self._acks,
            timeout_ms=self._cluster.settings.request_timeout_ms,
            topic_data=[
                m.ProduceRequest.TopicProduceData(name=topic, partition_data=partitions)
                for topic, partitions in by_topic.items()
            ],
        )
        try:
            connection = self._cluster.connection(leader)
            connection.send(request, version_max=_VERSION_MAX)
        except (Disconnected, Refused) as failed:
            self._cluster.drop(leader)
            self._failed(entries[0][0], failed)
            return
        if self._acks == 0:
            for place, _ in entries:
                self._acknowledged(place, -1)
        else:
            self._in_flight[leader] = entries

    def _stamp(self, place: TopicPartition, waiting: _Waiting) -> None:
        if waiting.data is not None:
            return
        waiting.data = bytearray(waiting.batch.data)
        identity = self._identity
        if identity.producer_id >= 0:
            waiting.base_sequence = self._next_sequence.get(place, 0)
            after = waiting.base_sequence + waiting.batch.record_count
            self._next_sequence[place] = after & MAX_SEQUENCE
        stamp_producer(
            waiting.data,
            identity.producer_id,
            identity.producer_epoch,
            waiting.base_sequence,
            transactional=identity.transactional_id is not None,
        )

    # --- responses ---------------------------------------------------------------------

    def _receive_response(self) -> None:
        leader = next(iter(self._in_flight))
        entries = self._in_flight.pop(leader)
        try:
            answer = self._cluster.connection(leader).receive(m.ProduceResponse)
        except (Disconnected, Refused) as failed:  # Refused: the broker has left the cluster
            self._cluster.drop(leader)
            self._failed(entries[0][0], failed)
            return
        for topic in answer.responses:
            for partition in topic.partition_responses:
                place = TopicPartition(topic.name, partition.index)
                self._answered(place, error_code(partition.error_code), partition)

    def _answered(
        self,
        place: TopicPartition,
        code: ErrorCode,
        said: m.ProduceResponse.PartitionProduceResponse,
    ) -> None:
        if code in _STORED:
            self._acknowledged(place, said.base_offset)
        elif code == ErrorCode.MESSAGE_TOO_LARGE:
            self._split(place)
        elif code in _NEW_PRODUCER_HELPS and self._identity.transactional_id is None:
            # A response may report this for many partitions; the first one changes the producer.
            if self._queues[place][0].data is not None:
                self._change_producer(code)
        else:
            reasons = [said.error_message] if said.error_message else []
            reasons += [
                f"row {error.batch_index} of the batch: {error.batch_index_error_message}"
                for error in said.record_errors[:1]
            ]
            detail = f" ({'; '.join(reasons)})" if reasons else ""
            self._failed(place, refused(code, f"writing to {place}{detail}"))

    def _acknowledged(self, place: TopicPartition, base_offset: int) -> None:
        queue = self._queues[place]
        waiting = queue.popleft()
        self._waiting_size -= len(waiting.batch.data)
        if not queue:
            del self._queues[place]
        if self._keep_places:
            self.stored.append(Stored(base_offset, waiting.batch.record_count))
        self._progress_at = time.monotonic()

    def _failed(self, place: TopicPartition, problem: ClientError) -> None:
        """Pause before a retry, or raise an error with advice for the user."""
        code = problem.code if isinstance(problem, Refused) else None
        advice = f": {_ADVICE[code]}" if code in _ADVICE else ""
        if isinstance(problem, Refused) and not problem.retriable:
            raise PipelineError(f"cannot write to {place} ({problem}){advice}") from problem
        waited_ms = (time.monotonic() - self._progress_at) * 1000
        limit_ms = self._timeout_ms
        if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            limit_ms = min(limit_ms, self._cluster.settings.api_timeout_ms)
        if waited_ms > limit_ms:
            raise PipelineError(
                f"could not write to {place} within {limit_ms} ms; the last problem was: "
                f"{problem}{advice}. See kafka.delivery.timeout.ms and kafka.max.block.ms"
            ) from problem
        if self._gives_up():
            queued = [one.batch.record_count for queue in self._queues.values() for one in queue]
            raise PipelineError(
                f"stopped before the brokers acknowledged the last {sum(queued):,} records; the "
                f"problem was: {problem}"
            ) from problem
        if self._last_problem != str(problem):
            self._last_problem = str(problem)
            log.warning("retrying the write to %s: %s", place, problem)
        self._cluster.forget()
        if not self._in_flight:
            self._pause()

    def _pause(self) -> None:
        time.sleep(self._cluster.settings.retry_backoff_ms / 1000)

    def _split(self, place: TopicPartition) -> None:
        """Replace a batch that is too large for the topic with its two halves."""
        queue = self._queues[place]
        waiting = queue.popleft()
        self._waiting_size -= len(waiting.batch.data)
        if waiting.batch.record_count == 1:
            key = next(iter_records(waiting.batch.data)).key
            raise BadRow(
                f"{_which_row(waiting.batch)} "
                + ("without a key" if key is None else f"with the key {key[:40]!r}")
                + f", {len(waiting.batch.data)} bytes as sent, is too large for {place}: raise the "
                "topic's max.message.bytes, or make the row smaller"
            )
        if waiting.base_sequence >= 0:
            # Later batches of the queue are unsent, so their sequence numbers can be reassigned.
            self._next_sequence[place] = waiting.base_sequence
        for half in reversed(list(halves(waiting.batch))):
            queue.appendleft(_Waiting(half))
            self._waiting_size += len(half.data)

    def _change_producer(self, code: ErrorCode) -> None:
        """Continue with a new producer ID; the broker has forgotten the old one.

        Retention deleted all that this producer wrote. The refused batch is not stored, but an
        earlier batch whose response was lost may be: so delivery is at least once, not exactly.
        """
        self._producer_changes += 1
        if self._producer_changes > _PRODUCER_CHANGES_MAX:
            raise PipelineError(f"the brokers keep refusing sequence numbers ({code.name})")
        self._identity = new_identity(self._cluster)
        self._next_sequence.clear()
        for queue in self._queues.values():
            for waiting in queue:
                waiting.data = None
                waiting.base_sequence = -1


def halves(batch: EncodedBatch) -> Iterator[EncodedBatch]:
    """The same rows as two batches; slow, for the rare batch that is too large for its topic."""
    codec = read_header(batch.data).codec
    records = list(iter_records(batch.data))
    middle = len(records) // 2
    for first, part in ((0, records[:middle]), (middle, records[middle:])):
        numbered = [record._replace(offset=index) for index, record in enumerate(part)]
        data = build_batch(numbered, codec=codec)
        yield EncodedBatch(batch.place, len(part), data, _rows_of_part(batch, first, len(part)))


def _rows_of_part(batch: EncodedBatch, first: int, count: int) -> tuple[int, int] | None:
    if batch.rows is None or batch.rows[1] - batch.rows[0] + 1 != batch.record_count:
        return batch.rows  # some rows between them went to other partitions
    return batch.rows[0] + first, batch.rows[0] + first + count - 1


def _which_row(batch: EncodedBatch) -> str:
    if batch.rows is None:
        return "a row"
    first, last = batch.rows
    return f"row {first} of its task" if first == last else f"a row of its task's {first} to {last}"


def new_identity(cluster: Cluster) -> Identity:
    """A producer ID for sending without transactions."""

    def attempt() -> Identity:
        answer = cluster.ask_any(
            m.InitProducerIdRequest(
                transactional_id=None,
                transaction_timeout_ms=60_000,
                producer_id=-1,
                producer_epoch=-1,
            ),
            m.InitProducerIdResponse,
        )
        refuse(answer.error_code, "getting a producer id")
        return Identity(answer.producer_id, answer.producer_epoch)

    return cluster.persistently(attempt, "getting a producer id")
