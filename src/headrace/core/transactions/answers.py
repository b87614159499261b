"""Answers of a transaction shard, as messages."""

from collections.abc import Iterable, Mapping, Sequence

from headrace.core.outcome import Outcome, Reply, Ticket
from headrace.core.transactions.transaction import STATE_NAMES, Transaction
from headrace.model.errors import ErrorCode
from headrace.model.ids import TopicPartition
from headrace.wire import messages as m
from headrace.wire.schema import Message


def answer(ticket: Ticket, response: Message) -> Outcome:
    return Outcome(replies=(Reply(ticket, response),))


class VerifiedPartitions(Message):
    """The answer to another part of this broker; it is never encoded."""

    __slots__ = ("codes",)

    def __init__(self, codes: Mapping[TopicPartition, ErrorCode]) -> None:
        self.codes = codes


def results(
    transactional_id: str,
    partitions: Sequence[TopicPartition],
    codes: ErrorCode | Mapping[TopicPartition, ErrorCode],
) -> m.AddPartitionsToTxnResponse.AddPartitionsToTxnResult:
    """The result for all partitions: one code for all of them, or one for each."""
    response = m.AddPartitionsToTxnResponse
    by_topic: dict[str, list[m.AddPartitionsToTxnResponse.AddPartitionsToTxnPartitionResult]] = {}
    for topic_partition in partitions:
        code = codes if isinstance(codes, ErrorCode) else codes[topic_partition]
        by_topic.setdefault(topic_partition.topic, []).append(
            response.AddPartitionsToTxnPartitionResult(
                partition_index=topic_partition.partition, partition_error_code=code
            )
        )
    return response.AddPartitionsToTxnResult(
        transactional_id=transactional_id,
        topic_results=[
            response.AddPartitionsToTxnTopicResult(name=topic, results_by_partition=answers)
            for topic, answers in by_topic.items()
        ],
    )


def init_refused(ticket: Ticket, code: ErrorCode) -> Outcome:
    return answer(ticket, m.InitProducerIdResponse(error_code=code, producer_epoch=-1))


def end_refused(ticket: Ticket, code: ErrorCode) -> Outcome:
    return answer(ticket, m.EndTxnResponse(error_code=code))


def ended(transaction: Transaction) -> m.EndTxnResponse:
    """The producer id and epoch of the next transaction."""
    producer_id, producer_epoch = transaction.producer_when_completed()
    return m.EndTxnResponse(producer_id=producer_id, producer_epoch=producer_epoch)


def not_described(
    transactional_id: str, code: ErrorCode = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
) -> m.DescribeTransactionsResponse.TransactionState:
    return m.DescribeTransactionsResponse.TransactionState(
        transactional_id=transactional_id, error_code=code
    )


def described(
    transaction: Transaction, partitions: Iterable[TopicPartition]
) -> m.DescribeTransactionsResponse.TransactionState:
    """``partitions``: all of the transaction, or those without a marker once it is prepared."""
    by_topic: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        by_topic.setdefault(topic, []).append(partition)
    return m.DescribeTransactionsResponse.TransactionState(
        transactional_id=transaction.transactional_id,
        transaction_state=STATE_NAMES[transaction.state],
        transaction_timeout_ms=transaction.timeout_ms,
        transaction_start_time_ms=transaction.started_at,
        producer_id=transaction.producer_id,
        producer_epoch=transaction.producer_epoch,
        topics=[
            m.DescribeTransactionsResponse.TopicData(topic=topic, partitions=ids)
            for topic, ids in by_topic.items()
        ],
    )


def listed(transactions: Iterable[Transaction]) -> m.ListTransactionsResponse:
    return m.ListTransactionsResponse(
        transaction_states=[
            m.ListTransactionsResponse.TransactionState(
                transactional_id=transaction.transactional_id,
                producer_id=transaction.producer_id,
                transaction_state=STATE_NAMES[transaction.state],
            )
            for transaction in transactions
        ]
    )
