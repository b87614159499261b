"""All rows of a batch visible together, or none: one transaction, run by the driver alone.

Tasks encode their rows and send nothing (or stage them where nobody looks). ``commit`` on the
driver then takes these steps, and may die after any of them:

    1  InitProducerId for the query's transactional id. Whoever used it before is fenced, and a
       transaction that was left open is ended. From here on no other run can commit.
    2  Read the query's marker. If it names this batch or a later one, all rows are visible
       already: done.
    3  Add the partitions, produce every batch restamped as this producer's, and the marker.
    4  EndTxn. If the answer is lost, ask again: the coordinator answers a second one alike.

Dying before 4 leaves an open transaction, which the next run's step 1 rolls back; nobody who
reads committed records saw any of it. Dying after 4 but before Spark has noted the batch as
done means that the batch is run again, and step 2 finds the marker. The marker must be read
after step 1: before it, an earlier run might still commit behind our back.

The marker's topic is shared by all queries of a cluster. Reading committed records of it up to
the high watermark waits for other queries' transactions that are still open; reading to the
last stable offset only would overlook our own marker behind one of them.
"""

import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from headrace.arrow.encoding import EncodedBatch
from headrace.arrow.partitioning import partitions_by_key
from headrace.model.errors import ErrorCode
from headrace.model.ids import TopicPartition
from headrace.records.record import Record, build_batch
from headrace.spark.cluster import EARLIEST, LATEST, Cluster
from headrace.spark.failures import (
    PipelineError,
    Refused,
    error_code,
    refuse,
)
from headrace.spark.fetching import RangeReader
from headrace.spark.offsets import Range
from headrace.spark.options import FetchSettings, SinkOptions
from headrace.spark.producing import BatchSender, Identity
from headrace.wire import messages as m

# Newer ones bump the producer's epoch at the end of each transaction by themselves and add
# partitions when they are written to. Step 1 gives every transaction an epoch of its own
# already, and these versions are spoken by every broker since Kafka 0.11.
_END_VERSION_MAX = 4
_ADD_VERSION_MAX = 3
_MARKER_PARTITIONS = 8
_STAGING_PARTITIONS = 8
_STAGED_SIZE_MAX = 1 << 30
_MARKERS_READ_FIRST = 1_000
_MARKERS_READ_GROWTH = 8
_DAY_MS = 86_400_000
_FULL_MESSAGES = 4

_FENCED = (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH)


class StagedBatch(NamedTuple):
    """A batch that waits in the staging topic: where it goes, and where it lies."""

    place: TopicPartition
    record_count: int
    staged: TopicPartition
    base_offset: int


class Transaction:
    """One transaction from InitProducerId to EndTxn."""

    def __init__(self, cluster: Cluster, transactional_id: str, options: SinkOptions) -> None:
        self._cluster = cluster
        self._options = options
        self._transactional_id = transactional_id
        self._identity = cluster.persistently(self._init, f"fencing {transactional_id!r}")
        self._added: set[TopicPartition] = set()
        self._began_at = time.monotonic()
        self._sender = BatchSender(
            cluster, self._identity, acks=-1, timeout_ms=options.delivery_timeout_ms
        )

    def _init(self) -> Identity:
        request = m.InitProducerIdRequest(
            transactional_id=self._transactional_id,
            transaction_timeout_ms=self._options.transaction_timeout_ms,
            producer_id=-1,
            producer_epoch=-1,
        )
        coordinator = self._cluster.transaction_coordinator(self._transactional_id)
        answer = self._cluster.ask(coordinator, request, m.InitProducerIdResponse)
        if answer.error_code == ErrorCode.INVALID_TRANSACTION_TIMEOUT:
            raise PipelineError(
                f"kafka.transaction.timeout.ms is {self._options.transaction_timeout_ms}, more "
                "than the brokers' transaction.max.timeout.ms allows"
            )
        refuse(answer.error_code, f"transactional id {self._transactional_id!r}")
        return Identity(answer.producer_id, answer.producer_epoch, self._transactional_id)

    def write(self, batches: Iterable[EncodedBatch]) -> None:
        """Produces batches; their partitions are made part of the transaction first."""
        for some in _in_groups(batches, self._options.message_size_max):
            self._add({batch.place for batch in some} - self._added)
            self._explained(partial(self._sender.send, some))

    def flush(self) -> None:
        self._explained(self._sender.flush)

    def commit(self) -> None:
        self._end(committed=True)

    def abort(self) -> None:
        """Best effort: left open, it ends with the next run or with its timeout."""
        self._sender.abandon()
        try:
            self._cluster.ask(
                self._cluster.transaction_coordinator(self._transactional_id),
                self._end_request(committed=False),
                m.EndTxnResponse,
                version_max=_END_VERSION_MAX,
            )
        except PipelineError:
            return

    def _add(self, places: set[TopicPartition]) -> None:
        if not places:
            return
        by_topic: dict[str, list[int]] = {}
        for place in sorted(places):
            by_topic.setdefault(place.topic, []).append(place.partition)
        request = m.AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self._transactional_id,
            v3_and_below_producer_id=self._identity.producer_id,
            v3_and_below_producer_epoch=self._identity.producer_epoch,
            v3_and_below_topics=[
                m.AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(
                    name=topic, partitions=partitions
                )
                for topic, partitions in by_topic.items()
            ],
        )

        def attempt() -> None:
            coordinator = self._cluster.transaction_coordinator(self._transactional_id)
            answer = self._cluster.ask(
                coordinator, request, m.AddPartitionsToTxnResponse, version_max=_ADD_VERSION_MAX
            )
            refused = []
            for topic in answer.results_by_topic_v3_and_below:
                for result in topic.results_by_partition:
                    code = result.partition_error_code
                    if code:
                        place = TopicPartition(topic.name, result.partition_index)
                        refused.append(Refused(error_code(code), f"writing to {place}"))
            # One bad partition fails them all with OPERATION_NOT_ATTEMPTED; name the bad one.
            refused.sort(key=lambda problem: problem.code == ErrorCode.OPERATION_NOT_ATTEMPTED)
            if refused:
                raise refused[0]

        self._explained(
            lambda: self._cluster.persistently(
                attempt,
                "adding partitions to the transaction",
                give_up_on=[ErrorCode.UNKNOWN_TOPIC_OR_PARTITION],
            )
        )
        self._added |= places

    def _end(self, *, committed: bool) -> None:
        request = self._end_request(committed=committed)

        def attempt() -> None:
            coordinator = self._cluster.transaction_coordinator(self._transactional_id)
            answer = self._cluster.ask(
                coordinator, request, m.EndTxnResponse, version_max=_END_VERSION_MAX
            )
            refuse(answer.error_code, f"ending transaction {self._transactional_id!r}")

        self._explained(lambda: self._cluster.persistently(attempt, "committing the transaction"))

    def _end_request(self, *, committed: bool) -> m.EndTxnRequest:
        return m.EndTxnRequest(
            transactional_id=self._transactional_id,
            producer_id=self._identity.producer_id,
            producer_epoch=self._identity.producer_epoch,
            committed=committed,
        )

    def _explained(self, act: Callable[[], object]) -> None:
        try:
            act()
        except PipelineError as failed:
            cause: BaseException | None = failed
            while cause is not None and not isinstance(cause, Refused):
                cause = cause.__cause__
            if cause is None or cause.code not in _FENCED:
                raise
            took_ms = int((time.monotonic() - self._began_at) * 1000)
            if took_ms >= self._options.transaction_timeout_ms:
                raise PipelineError(
                    f"the transaction took {took_ms} ms, longer than kafka.transaction.timeout.ms "
                    f"({self._options.transaction_timeout_ms}); raise it or make batches smaller"
                ) from failed
            raise PipelineError(
                f"another run of this query has taken over {self._transactional_id!r}; nothing of "
                "this batch became visible through this run"
            ) from failed


def _in_groups(batches: Iterable[EncodedBatch], size_max: int) -> Iterable[list[EncodedBatch]]:
    group: list[EncodedBatch] = []
    size = 0
    for batch in batches:
        group.append(batch)
        size += len(batch.data)
        if size > size_max:
            yield group
            group, size = [], 0
    if group:
        yield group


# --- the marker ---------------------------------------------------------------------------------


class Markers:
    """Which batch of which query is done, in a compacted topic."""

    def __init__(self, cluster: Cluster, topic: str, query_id: str) -> None:
        import pyarrow as pa

        self._cluster = cluster
        self._key = query_id.encode()
        cluster.create_topic(
            topic,
            _MARKER_PARTITIONS,
            {
                "cleanup.policy": "compact",
                # Small enough that compaction keeps up with a batch per second and query.
                "segment.ms": str(_DAY_MS // 24),
                "min.cleanable.dirty.ratio": "0.1",
            },
            option="delivery.markerTopic",
        )
        count = len(cluster.existing_topic(topic).leaders)
        partition = int(partitions_by_key(pa.array([self._key], pa.binary()), count)[0])
        self.place = TopicPartition(topic, partition)

    def last_batch(self, timeout_ms: int) -> int | None:
        """The newest batch that is committed; the caller has fenced every other run before.

        A running query's marker is among the newest records, so they are read from the end in
        growing pieces until one of ours is found.
        """
        bounds = {
            which: self._cluster.list_offsets({self.place: which}, read_committed=False)[self.place]
            for which in (EARLIEST, LATEST)
        }
        end, count = bounds[LATEST], _MARKERS_READ_FIRST
        while end > bounds[EARLIEST]:
            first = max(bounds[EARLIEST], end - count)
            found = self._last_batch_within(first, end, timeout_ms)
            if found is not None:
                return found
            end, count = first, count * _MARKERS_READ_GROWTH
        return None

    def _last_batch_within(self, first: int, end: int, timeout_ms: int) -> int | None:
        settings = FetchSettings(
            read_committed=True, poll_timeout_ms=timeout_ms, fail_on_data_loss=False
        )
        topic_id = self._cluster.existing_topic(self.place.topic).topic_id
        found = None
        for records in RangeReader(
            self._cluster, Range(self.place, first, end), topic_id, settings
        ):
            pairs = zip(records.keys().to_pylist(), records.values().to_pylist(), strict=True)
            for key, value in pairs:
                if key == self._key and value is not None:
                    found = int(json.loads(value)["batch"])
        return found

    def record(self, batch_id: int) -> EncodedBatch:
        now_ms = int(time.time() * 1000)
        value = json.dumps({"batch": batch_id}).encode()
        return EncodedBatch(self.place, 1, build_batch([Record(0, now_ms, self._key, value)]))


# --- staging ------------------------------------------------------------------------------------


def message_size_max(options: SinkOptions, task: int) -> int:
    """How many bytes of rows this task may hand to the driver; above, it stages them.

    Spark tells a Python task its number and not how many there are, and all messages of a batch
    meet in the driver's memory. So the first few tasks may fill a message and later ones get
    less and less of one: however many there are, they add up to less than eight full messages.
    """
    nth = task + 1
    return options.message_size_max * min(_FULL_MESSAGES**2, nth**2) // nth**2


def stage(
    cluster: Cluster, options: SinkOptions, batches: Sequence[EncodedBatch], task: int
) -> list[StagedBatch]:
    """Puts a task's batches where ``commit`` finds them; the broker keeps them as they are."""
    cluster.create_topic(
        options.staging_topic,
        _STAGING_PARTITIONS,
        {
            "cleanup.policy": "delete",
            "retention.ms": str(_DAY_MS),
            # Append time or another codec would change the batches.
            "message.timestamp.type": "CreateTime",
            "compression.type": "producer",
            # Which rows are too large is for the topic to say that they go to.
            "max.message.bytes": str(_STAGED_SIZE_MAX),
        },
        option="delivery.stagingTopic",
    )
    count = len(cluster.existing_topic(options.staging_topic).leaders)
    staged_at = TopicPartition(options.staging_topic, task % count)
    with BatchSender(
        cluster, Identity(), timeout_ms=options.delivery_timeout_ms, keep_places=True
    ) as sender:
        sender.send(batch._replace(place=staged_at) for batch in batches)
        sender.flush()
    staged = []
    stored = iter(sender.stored)
    for batch in batches:
        left = batch.record_count
        while left:  # more than one where the staging topic wanted smaller batches
            where = next(stored)
            staged.append(
                StagedBatch(batch.place, where.record_count, staged_at, where.base_offset)
            )
            left -= where.record_count
    return staged


def unstaged(cluster: Cluster, staged: Sequence[StagedBatch]) -> Iterator[EncodedBatch]:
    """One task's staged batches, read back whole and in their order."""
    if not staged:
        return
    wanted = {batch.base_offset: batch for batch in staged}
    place = staged[0].staged
    last = max(staged, key=lambda batch: batch.base_offset)
    range_ = Range(place, min(wanted), last.base_offset + last.record_count)
    topic_id = cluster.existing_topic(place.topic).topic_id
    for _, sections in RangeReader(cluster, range_, topic_id, FetchSettings()).batches():
        for header, data in sections:
            batch = wanted.pop(header.base_offset, None)
            if batch is not None:
                yield EncodedBatch(batch.place, batch.record_count, bytes(data))
    if wanted:
        raise PipelineError(
            f"{len(wanted)} staged batches are missing from {place}; is its retention too short?"
        )


def commit_batch(
    cluster: Cluster,
    options: SinkOptions,
    batches: Callable[[], Iterable[EncodedBatch]],
    query_id: str,
    batch_id: int | None,
) -> bool:
    """Makes the batches visible, all or none; False if an earlier run had done so.

    Without a number there is no marker: such a write is never run again under the same id.
    """
    transaction = Transaction(cluster, f"headrace-{query_id}", options)
    marker: list[EncodedBatch] = []
    if batch_id is not None:
        markers = Markers(cluster, options.marker_topic, query_id)
        done = markers.last_batch(options.transaction_timeout_ms + options.block_ms_max)
        if done is not None and done >= batch_id:
            return False
        marker.append(markers.record(batch_id))
    try:
        transaction.write(batches())
        transaction.write(marker)
        transaction.flush()
    except BaseException:
        transaction.abort()
        raise
    # From here on the outcome may be unknown, and an abort could undo what a reader has seen
    # as committed by our word; only the next run may judge.
    transaction.commit()
    return True
