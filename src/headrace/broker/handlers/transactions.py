"""The transaction APIs: differences between versions, around the responses of the shard.

Older versions of each API do not know PRODUCER_FENCED. Their clients get INVALID_PRODUCER_EPOCH.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from headrace.broker.context import Context
from headrace.broker.coordinators.runtime import Decide
from headrace.broker.handlers.coordinator_requests import (
    TOO_LARGE,
    Answer,
    ask,
    gather,
    reported_code,
)
from headrace.broker.handlers.transaction_verification import CoordinatorAnswer
from headrace.broker.needs import (
    NeedsConfig,
    NeedsGroups,
    NeedsMetadata,
    NeedsReplicas,
    NeedsTransactions,
    NeedsWaiting,
)
from headrace.core.groups.offset_commit import Commit, take_commits, txn_commit
from headrace.core.topics import OFFSETS_TOPIC, is_internal
from headrace.core.transaction_verification import is_still_open, refusal_of
from headrace.core.transactions import add_partitions, answers
from headrace.core.transactions import end_txn as ending
from headrace.core.transactions.init_producer_id import init_producer_id
from headrace.core.transactions.listing import Filter
from headrace.core.transactions.shard import TransactionShard
from headrace.core.transactions.transaction import EPOCH_BUMP
from headrace.model.errors import ErrorCode, Rejected
from headrace.model.ids import NO_PRODUCER_ID, Millis, ProducerEpoch, ProducerId, TopicPartition
from headrace.wire import messages as m
from headrace.wire.schema import Message

if TYPE_CHECKING:
    from headrace.broker.coordinators.markers import Codes

_FIRST_INIT_WITH_FENCED = 4
_FIRST_WITH_FENCED = 2  # of AddPartitionsToTxn, AddOffsetsToTxn, EndTxn
_FIRST_ADD_IN_BATCHES = 4
_FIRST_ADD_WITH_BUMP = 5
_FIRST_END_WITH_BUMP = 5
_FIRST_COMMIT_ABORTABLE = 4
_FIRST_COMMIT_THAT_ADDS = 5

# Codes of an offsets partition that this broker lost while it waited for the coordinator.
_OFFSETS_LOST = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.KAFKA_STORAGE_ERROR)

_ID_SIZE_MAX = 32_767  # what fits in a record key

# The transaction version of a client, as stored in the record of its transaction.
_WITHOUT_EPOCH_BUMP, _WITH_EPOCH_BUMP = 0, EPOCH_BUMP


class Needs(
    NeedsConfig,
    NeedsGroups,
    NeedsMetadata,
    NeedsReplicas,
    NeedsTransactions,
    NeedsWaiting,
    Protocol,
):
    """What these handlers use of the broker."""


def init_transactional_producer(
    broker: NeedsTransactions, context: Context, request: m.InitProducerIdRequest
) -> Answer:
    transactional_id = request.transactional_id
    assert transactional_id is not None
    known_code = _known_codes(context, _FIRST_INIT_WITH_FENCED)

    def refuse(code: ErrorCode) -> Message:
        return m.InitProducerIdResponse(error_code=known_code(code), producer_epoch=-1)

    def shape(answer: Any) -> Message:
        return refuse(answer.error_code) if answer.error_code else answer

    if not transactional_id or len(transactional_id.encode()) > _ID_SIZE_MAX:
        return refuse(ErrorCode.INVALID_REQUEST)
    expected = None
    if request.producer_id != NO_PRODUCER_ID:
        expected = request.producer_id, request.producer_epoch
    return _ask(
        broker,
        transactional_id,
        lambda shard, ticket, now: init_producer_id(
            shard, ticket, transactional_id, request.transaction_timeout_ms, expected, now
        ),
        refuse,
        shape,
    )


# Partitions that are added to a transaction.


def add_partitions_to_txn(
    broker: Needs, context: Context, request: m.AddPartitionsToTxnRequest
) -> Answer:
    wanted = request.transactions
    in_batches = context.api_version >= _FIRST_ADD_IN_BATCHES
    if not in_batches:
        wanted = [
            m.AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction(
                transactional_id=request.v3_and_below_transactional_id,
                producer_id=request.v3_and_below_producer_id,
                producer_epoch=request.v3_and_below_producer_epoch,
                topics=request.v3_and_below_topics,
            )
        ]

    def finish(results: list[Any]) -> Message:
        response = m.AddPartitionsToTxnResponse
        if in_batches:
            return response(results_by_transaction=results)
        return response(results_by_topic_v3_and_below=results[0].topic_results)

    return gather([_add_partitions(broker, context, one) for one in wanted], finish)


def _add_partitions(
    broker: Needs,
    context: Context,
    wanted: m.AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction,
) -> Answer:
    transactional_id = wanted.transactional_id
    producer = wanted.producer_id, wanted.producer_epoch
    partitions = [
        TopicPartition(topic.name, partition)
        for topic in wanted.topics
        for partition in topic.partitions
    ]
    known_code = _known_codes(context, _FIRST_WITH_FENCED)

    def refuse(code: ErrorCode) -> Message:
        return answers.results(transactional_id, partitions, code)

    def shape(answer: m.AddPartitionsToTxnResponse.AddPartitionsToTxnResult) -> Message:
        for topic in answer.topic_results:
            for partition in topic.results_by_partition:
                partition.partition_error_code = known_code(partition.partition_error_code)
        return answer

    if not transactional_id:
        return refuse(ErrorCode.INVALID_REQUEST)
    codes = _not_addable(broker, context, partitions)
    if codes:
        return answers.results(transactional_id, partitions, codes)
    if not partitions:
        return refuse(ErrorCode.NONE)
    if wanted.verify_only:
        return _ask(
            broker,
            transactional_id,
            lambda shard, ticket, now: add_partitions.verify(
                shard, ticket, transactional_id, producer, partitions, now
            ),
            refuse,
            shape,
        )
    bumps = context.api_version >= _FIRST_ADD_WITH_BUMP
    version = _WITH_EPOCH_BUMP if bumps else _WITHOUT_EPOCH_BUMP
    return _ask(
        broker,
        transactional_id,
        lambda shard, ticket, now: add_partitions.add(
            shard, ticket, transactional_id, producer, partitions, version, now
        ),
        refuse,
        shape,
    )


def _not_addable(broker: Needs, context: Context, partitions: Sequence[TopicPartition]) -> "Codes":
    """A code for each partition if one of them cannot be in a transaction; else an empty dict."""
    topics = broker.metadata.topics
    codes = {}
    for topic_partition in partitions:
        topic, partition = topic_partition
        state = topics.get(topic)
        if context.api_version < _FIRST_ADD_IN_BATCHES and is_internal(topic):
            # Clients add offsets with AddOffsetsToTxn; only brokers may name the internal topic.
            codes[topic_partition] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        elif state is None or not 0 <= partition < len(state.partitions):
            codes[topic_partition] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if codes:
        for topic_partition in partitions:
            codes.setdefault(topic_partition, ErrorCode.OPERATION_NOT_ATTEMPTED)
    return codes


def add_offsets_to_txn(
    broker: Needs, context: Context, request: m.AddOffsetsToTxnRequest
) -> Answer:
    transactional_id = request.transactional_id
    producer = request.producer_id, request.producer_epoch
    known_code = _known_codes(context, _FIRST_WITH_FENCED)

    def refuse(code: ErrorCode) -> Message:
        return m.AddOffsetsToTxnResponse(error_code=known_code(code))

    def shape(answer: Any) -> Message:
        return refuse(answer.topic_results[0].results_by_partition[0].partition_error_code)

    if not transactional_id:
        return refuse(ErrorCode.INVALID_REQUEST)
    offsets = TopicPartition(OFFSETS_TOPIC, broker.groups.partition_of(request.group_id))
    return _ask(
        broker,
        transactional_id,
        lambda shard, ticket, now: add_partitions.add(
            shard, ticket, transactional_id, producer, [offsets], _WITHOUT_EPOCH_BUMP, now
        ),
        refuse,
        shape,
    )


def end_txn(broker: Needs, context: Context, request: m.EndTxnRequest) -> Answer:
    transactional_id = request.transactional_id
    producer = request.producer_id, request.producer_epoch
    known_code = _known_codes(context, _FIRST_WITH_FENCED)

    def refuse(code: ErrorCode) -> Message:
        return m.EndTxnResponse(error_code=known_code(code))

    def shape(answer: Any) -> Message:
        return refuse(answer.error_code) if answer.error_code else answer

    if not transactional_id:
        return refuse(ErrorCode.INVALID_REQUEST)
    bumps = context.api_version >= _FIRST_END_WITH_BUMP
    version = _WITH_EPOCH_BUMP if bumps else _WITHOUT_EPOCH_BUMP
    return _ask(
        broker,
        transactional_id,
        lambda shard, ticket, now: ending.end(
            shard, ticket, transactional_id, producer, request.committed, version, now
        ),
        refuse,
        shape,
    )


# Offsets that a transaction commits.


def txn_offset_commit(broker: Needs, context: Context, request: m.TxnOffsetCommitRequest) -> Answer:
    if not request.group_id:
        return _commit_refused(broker, request, ErrorCode.INVALID_GROUP_ID)
    offsets = TopicPartition(OFFSETS_TOPIC, broker.groups.partition_of(request.group_id))
    producer = ProducerId(request.producer_id), ProducerEpoch(request.producer_epoch)
    adds = context.api_version >= _FIRST_COMMIT_THAT_ADDS
    replica = broker.replicas.get(*offsets)
    is_verified = replica is not None and replica.log.producers.has_ongoing_transaction(*producer)
    verifies = broker.config.bool("transaction.partition.verification.enable")
    is_led = replica is not None and replica.leadership is not None
    if replica is None or not is_led or is_verified or not (adds or verifies):
        return _commit(broker, request)
    codes = broker.transactions.verify_or_add(
        request.transactional_id, producer, [offsets], adds=adds
    )
    if isinstance(codes, Awaitable):
        producers = replica.log.producers
        known = producers.entries.get(producer[0])
        return _commit_later(
            broker,
            context,
            request,
            CoordinatorAnswer([replica]).wait(broker.waiting, codes),
            lambda: adds or is_still_open(producers, producer, known),
        )
    return _commit_verified(broker, context, request, codes[offsets])


async def _commit_later(
    broker: Needs,
    context: Context,
    request: m.TxnOffsetCommitRequest,
    pending: "Awaitable[Codes]",
    is_still_open: Callable[[], bool],
) -> Message:
    (code,) = (await pending).values()
    if code is ErrorCode.NONE and not is_still_open():
        code = ErrorCode.INVALID_TXN_STATE
    answer = _commit_verified(broker, context, request, code)
    return answer if isinstance(answer, Message) else await answer


def _commit_verified(
    broker: Needs, context: Context, request: m.TxnOffsetCommitRequest, code: ErrorCode
) -> Answer:
    if code is ErrorCode.NONE:
        return _commit(broker, request)
    if code in _OFFSETS_LOST:
        return _commit_refused(broker, request, ErrorCode.NOT_COORDINATOR)
    refusal = refusal_of(
        code,
        adds=context.api_version >= _FIRST_COMMIT_THAT_ADDS,
        abortable=context.api_version >= _FIRST_COMMIT_ABORTABLE,
        retriable=ErrorCode.COORDINATOR_NOT_AVAILABLE,
    )
    return _commit_refused(broker, request, refusal.code)


def _commit(broker: Needs, request: m.TxnOffsetCommitRequest) -> Answer:
    return ask(
        broker.groups.ask,
        request.group_id,
        lambda shard, ticket, now: txn_commit(shard, ticket, request, now),
        lambda refusal: _commit_refused(broker, request, refusal.code),
    )


def _commit_refused(broker: Needs, request: m.TxnOffsetCommitRequest, code: ErrorCode) -> Message:
    if code in TOO_LARGE:
        code = ErrorCode.INVALID_COMMIT_OFFSET_SIZE
    response = m.TxnOffsetCommitResponse()
    commit = Commit(request.group_id, broker.metadata, False, code, 0, -1, Millis(0))
    take_commits(commit, request, response, None)
    return response


# Descriptions and lists.


def describe_transactions(
    broker: Needs, context: Context, request: m.DescribeTransactionsRequest
) -> Answer:
    def ask_for(transactional_id: str) -> Answer:
        if not transactional_id:
            return answers.not_described(transactional_id, ErrorCode.INVALID_REQUEST)
        return _ask(
            broker,
            transactional_id,
            lambda shard, ticket, now: shard.describe(ticket, transactional_id, now),
            lambda code: answers.not_described(transactional_id, code),
        )

    return gather(
        [ask_for(transactional_id) for transactional_id in request.transactional_ids],
        lambda states: m.DescribeTransactionsResponse(transaction_states=states),
    )


def list_transactions(
    broker: Needs, context: Context, request: m.ListTransactionsRequest
) -> Answer:
    transactions = broker.transactions
    if transactions.shards.is_loading():
        raise Rejected(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    wanted = Filter(request)

    def finish(parts: list[Any]) -> Message:
        return m.ListTransactionsResponse(
            unknown_state_filters=wanted.unknown_states,
            transaction_states=[state for part in parts for state in part.transaction_states],
        )

    return gather(
        [
            transactions.ask_partition(
                partition,
                lambda shard, ticket, now: shard.list_transactions(ticket, wanted, now),
            )
            for partition in transactions.shards.loaded_partitions()
        ],
        finish,
    )


# Asking shards.


def _known_codes(context: Context, first_version: int) -> Callable[[int], ErrorCode]:
    """A function that replaces PRODUCER_FENCED for versions below ``first_version``."""

    def known_code(code: int) -> ErrorCode:
        if code == ErrorCode.PRODUCER_FENCED and context.api_version < first_version:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        return ErrorCode(code)

    return known_code


def _ask(
    broker: NeedsTransactions,
    transactional_id: str,
    decide: Decide[TransactionShard],
    refuse: Callable[[ErrorCode], Message],
    shape: Callable[[Any], Message] | None = None,
) -> Answer:
    return ask(
        broker.transactions.ask_drawing,
        transactional_id,
        decide,
        lambda refusal: refuse(reported_code(refusal.code)),
        shape,
    )
