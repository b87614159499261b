"""One Kafka transaction, from InitProducerId to EndTxn."""

import time
from collections.abc import Callable, Iterable
from functools import partial

from headrace.arrow.encoding import EncodedBatch
from headrace.client.errors import ClientError, Refused, error_code
from headrace.model.errors import ErrorCode
from headrace.model.ids import TopicPartition
from headrace.spark.cluster import Cluster
from headrace.spark.failures import PipelineError, refuse, refused
from headrace.spark.options import SinkOptions
from headrace.spark.producing import BatchSender, Identity
from headrace.wire import messages as m

# In newer versions EndTxn bumps the producer epoch, and brokers add partitions when they are
# written to. InitProducerId gives every transaction its own epoch already, and every broker since
# Kafka 0.11 supports these versions.
_END_VERSION_MAX = 4
_ADD_VERSION_MAX = 3

_FENCED = (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH)


class Transaction:
    """One transaction, from InitProducerId to EndTxn."""

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
        """Add the partitions of these batches to the transaction, and produce the batches."""
        for some in _in_groups(batches, self._options.message_size_max):
            self._add({batch.place for batch in some} - self._added)
            self._explained(partial(self._sender.send, some))

    def flush(self) -> None:
        self._explained(self._sender.flush)

    def commit(self) -> None:
        self._end(committed=True)

    def abort(self) -> None:
        """Try to abort: if that fails, the next run or the timeout ends the transaction."""
        self._sender.abandon()
        try:
            self._cluster.ask(
                self._cluster.transaction_coordinator(self._transactional_id),
                self._end_request(committed=False),
                m.EndTxnResponse,
                version_max=_END_VERSION_MAX,
            )
        except ClientError:
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
            problems = []
            for topic in answer.results_by_topic_v3_and_below:
                for result in topic.results_by_partition:
                    code = result.partition_error_code
                    if code:
                        place = TopicPartition(topic.name, result.partition_index)
                        problems.append(refused(error_code(code), f"writing to {place}"))
            # One bad partition fails all others with OPERATION_NOT_ATTEMPTED: report the bad one.
            problems.sort(key=lambda problem: problem.code == ErrorCode.OPERATION_NOT_ATTEMPTED)
            if problems:
                raise problems[0]

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
        """Run ``act``; say why the coordinator fenced this producer, if it did."""
        try:
            act()
        except ClientError as failed:
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
                f"another run of this query has taken over {self._transactional_id!r}; this run "
                "made no row of the batch visible"
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
