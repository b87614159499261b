"""The transaction APIs: what the versions say differently, around the answers of the shard.

A client that does not know PRODUCER_FENCED is told INVALID_PRODUCER_EPOCH; since when it knows is
a matter of each API's version.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any

from headrace.broker.context import Context
from headrace.broker.coordinators.runtime import Decide
from headrace.broker.coordinators.transaction import refusal_of
from headrace.core.groups.offset_commit import Commit, take_commits, txn_commit
from headrace.core.outcome import RequestContext
from headrace.core.topics import OFFSETS_TOPIC, is_internal
from headrace.core.transactions import add_partitions, answers
from headrace.core.transactions import end_txn as ending
from headrace.core.transactions.init_producer_id import init_producer_id
from headrace.core.transactions.listing import Filter
from headrace.core.transactions.shard import TransactionShard
from headrace.model.errors import ErrorCode, Rejected
from headrace.model.ids import NO_PRODUCER_ID, Millis, ProducerEpoch, ProducerId, TopicPartition
from headrace.wire import messages as m
from headrace.wire.schema import Message

if TYPE_CHECKING:
    from headrace.broker.coordinators.markers import Codes
    from headrace.broker.services import Services

# An answer, or the coroutine that will have it: dispatch takes either.
Answer = Message | Coroutine[Any, Any, Message]

_FIRST_INIT_WITH_FENCED = 4
_FIRST_WITH_FENCED = 2  # of AddPartitionsToTxn, AddOffsetsToTxn, EndTxn
_FIRST_ADD_IN_BATCHES = 4
_FIRST_ADD_BY_SECOND_GENERATION = 5
_FIRST_END_WITH_BUMP = 5
_FIRST_COMMIT_ABORTABLE = 4
_FIRST_COMMIT_THAT_ADDS = 5

_ID_SIZE_MAX = 32_767  # what the key of a record has room for
_TOO_LARGE = (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE)

# The transaction version that a client speaks, as its record keeps it.
_FIRST_GENERATION, _SECOND_GENERATION = 0, 2


def init_transactional_producer(
    broker: "Services", context: Context, request: m.InitProducerIdRequest
) -> Answer:
    transactional_id = request.transactional_id
    assert transactional_id is not None
    fenced = _fenced(context, _FIRST_INIT_WITH_FENCED)

    def refuse(code: ErrorCode) -> Message:
        return m.InitProducerIdResponse(error_code=fenced(code), producer_epoch=-1)

    def shaped(answer: Any) -> Message:
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
        shaped,
    )


# Partitions that join a transaction.


def add_partitions_to_txn(
    broker: "Services", context: Context, request: m.AddPartitionsToTxnRequest
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

    return _gather([_add_partitions(broker, context, one) for one in wanted], finish)


def _add_partitions(
    broker: "Services",
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
    fenced = _fenced(context, _FIRST_WITH_FENCED)

    def refuse(code: ErrorCode) -> Message:
        return answers.results(transactional_id, partitions, code)

    def shaped(answer: Any) -> Message:
        for topic in answer.topic_results:
            for partition in topic.results_by_partition:
                partition.partition_error_code = fenced(partition.partition_error_code)
        return answer  # type: ignore[no-any-return]

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
            shaped,
        )
    generation = _FIRST_GENERATION
    if context.api_version >= _FIRST_ADD_BY_SECOND_GENERATION:
        generation = _SECOND_GENERATION
    return _ask(
        broker,
        transactional_id,
        lambda shard, ticket, now: add_partitions.add(
            shard, ticket, transactional_id, producer, partitions, generation, now
        ),
        refuse,
        shaped,
    )


def _not_addable(
    broker: "Services", context: Context, partitions: Sequence[TopicPartition]
) -> "Codes":
    """Codes for all of them if one cannot be part of a transaction; else nothing."""
    topics = broker.metadata.topics
    codes = {}
    for topic_partition in partitions:
        topic, partition = topic_partition
        state = topics.get(topic)
        if context.api_version < _FIRST_ADD_IN_BATCHES and is_internal(topic):
            # Offsets join by AddOffsetsToTxn; only brokers may name the topic itself.
            codes[topic_partition] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        elif state is None or not 0 <= partition < len(state.partitions):
            codes[topic_partition] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if codes:
        for topic_partition in partitions:
            codes.setdefault(topic_partition, ErrorCode.OPERATION_NOT_ATTEMPTED)
    return codes


def add_offsets_to_txn(
    broker: "Services", context: Context, request: m.AddOffsetsToTxnRequest
) -> Answer:
    transactional_id = request.transactional_id
    producer = request.producer_id, request.producer_epoch
    fenced = _fenced(context, _FIRST_WITH_FENCED)

    def refuse(code: ErrorCode) -> Message:
        return m.AddOffsetsToTxnResponse(error_code=fenced(code))

    def shaped(answer: Any) -> Message:
        return refuse(answer.topic_results[0].results_by_partition[0].partition_error_code)

    if not transactional_id:
        return refuse(ErrorCode.INVALID_REQUEST)
    offsets = TopicPartition(OFFSETS_TOPIC, broker.groups.partition_of(request.group_id))
    return _ask(
        broker,
        transactional_id,
        lambda shard, ticket, now: add_partitions.add(
            shard, ticket, transactional_id, producer, [offsets], _FIRST_GENERATION, now
        ),
        refuse,
        shaped,
    )


def end_txn(broker: "Services", context: Context, request: m.EndTxnRequest) -> Answer:
    transactional_id = request.transactional_id
    producer = request.producer_id, request.producer_epoch
    fenced = _fenced(context, _FIRST_WITH_FENCED)

    def refuse(code: ErrorCode) -> Message:
        return m.EndTxnResponse(error_code=fenced(code))

    def shaped(answer: Any) -> Message:
        return refuse(answer.error_code) if answer.error_code else answer

    if not transactional_id:
        return refuse(ErrorCode.INVALID_REQUEST)
    bumps = context.api_version >= _FIRST_END_WITH_BUMP
    generation = _SECOND_GENERATION if bumps else _FIRST_GENERATION
    return _ask(
        broker,
        transactional_id,
        lambda shard, ticket, now: ending.end(
            shard, ticket, transactional_id, producer, request.committed, generation, now
        ),
        refuse,
        shaped,
    )


# Offsets that a transaction commits.


def txn_offset_commit(
    broker: "Services", context: Context, request: m.TxnOffsetCommitRequest
) -> Answer:
    if not request.group_id:
        return _commit_refused(broker, request, ErrorCode.INVALID_GROUP_ID)
    offsets = TopicPartition(OFFSETS_TOPIC, broker.groups.partition_of(request.group_id))
    producer = ProducerId(request.producer_id), ProducerEpoch(request.producer_epoch)
    adds = context.api_version >= _FIRST_COMMIT_THAT_ADDS
    replica = broker.replicas.get(*offsets)
    is_verified = replica is not None and replica.log.producers.has_ongoing_transaction(*producer)
    verifies = broker.config.bool("transaction.partition.verification.enable")
    if replica is None or is_verified or not (adds or verifies):
        return _commit(broker, context, request)
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
            codes,
            # Else its marker lies there by now, as in ``verification``.
            lambda: (
                adds
                or producers.entries.get(producer[0]) is known
                or producers.has_ongoing_transaction(*producer)
            ),
        )
    return _commit_verified(broker, context, request, codes[offsets])


async def _commit_later(
    broker: "Services",
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
    broker: "Services", context: Context, request: m.TxnOffsetCommitRequest, code: ErrorCode
) -> Answer:
    if code is ErrorCode.NONE:
        return _commit(broker, context, request)
    refusal = refusal_of(
        code,
        adds=context.api_version >= _FIRST_COMMIT_THAT_ADDS,
        abortable=context.api_version >= _FIRST_COMMIT_ABORTABLE,
        retriable=ErrorCode.COORDINATOR_NOT_AVAILABLE,
    )
    return _commit_refused(broker, request, refusal.code)


def _commit(broker: "Services", context: Context, request: m.TxnOffsetCommitRequest) -> Answer:
    asker = RequestContext(context.client_id or "", f"/{context.client_host}", context.api_version)
    try:
        answer = broker.groups.ask(
            request.group_id,
            lambda shard, ticket, now: txn_commit(shard, ticket, asker, request, now),
        )
    except Rejected as refusal:
        return _commit_refused(broker, request, refusal.code)
    if isinstance(answer, asyncio.Future):
        return _settle(answer, lambda code: _commit_refused(broker, request, code), None)
    return answer  # type: ignore[no-any-return]


def _commit_refused(
    broker: "Services", request: m.TxnOffsetCommitRequest, code: ErrorCode
) -> Message:
    if code in _TOO_LARGE:
        code = ErrorCode.INVALID_COMMIT_OFFSET_SIZE
    response = m.TxnOffsetCommitResponse()
    commit = Commit(request.group_id, broker.metadata, False, code, 0, -1, Millis(0))
    take_commits(commit, request, response, None)
    return response


# Looking at transactions.


def describe_transactions(
    broker: "Services", context: Context, request: m.DescribeTransactionsRequest
) -> Answer:
    def ask(transactional_id: str) -> Answer:
        if not transactional_id:
            return answers.not_described(transactional_id, ErrorCode.INVALID_REQUEST)
        return _ask(
            broker,
            transactional_id,
            lambda shard, ticket, now: shard.describe(ticket, transactional_id, now),
            lambda code: answers.not_described(transactional_id, code),
        )

    return _gather(
        [ask(transactional_id) for transactional_id in request.transactional_ids],
        lambda states: m.DescribeTransactionsResponse(transaction_states=states),
    )


def list_transactions(
    broker: "Services", context: Context, request: m.ListTransactionsRequest
) -> Answer:
    transactions = broker.transactions
    if transactions.is_loading():
        raise Rejected(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    wanted = Filter(request)

    def finish(parts: list[Any]) -> Message:
        return m.ListTransactionsResponse(
            unknown_state_filters=wanted.unknown_states,
            transaction_states=[state for part in parts for state in part.transaction_states],
        )

    return _gather(
        [
            transactions.ask_partition(
                partition,
                lambda shard, ticket, now: shard.list_transactions(ticket, wanted, now),
            )
            for partition in transactions.loaded_partitions()
        ],
        finish,
    )


# How shards are asked.


def _fenced(context: Context, first_version: int) -> Callable[[int], ErrorCode]:
    """Puts a code into words that the client's version knows."""

    def spell(code: int) -> ErrorCode:
        if code == ErrorCode.PRODUCER_FENCED and context.api_version < first_version:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        return ErrorCode(code)

    return spell


def _ask(
    broker: "Services",
    transactional_id: str,
    decide: Decide[TransactionShard],
    refuse: Callable[[ErrorCode], Message],
    shaped: Callable[[Any], Message] | None = None,
) -> Answer:
    """Ask the shard of an id; ``refuse`` puts a failure into words, ``shaped`` an answer."""
    try:
        answer = broker.transactions.ask_drawing(transactional_id, decide)
    except Rejected as refusal:
        # As Kafka says it: the client cannot know the record that did not fit.
        is_too_large = refusal.code in _TOO_LARGE
        return refuse(ErrorCode.UNKNOWN_SERVER_ERROR if is_too_large else refusal.code)
    if not isinstance(answer, Message):
        return _settle(answer, refuse, shaped)
    return shaped(answer) if shaped is not None else answer


async def _settle(
    pending: Awaitable[Message],
    refuse: Callable[[ErrorCode], Message],
    shaped: Callable[[Any], Message] | None,
) -> Message:
    try:
        answer = await pending
    except Rejected as refusal:
        return refuse(refusal.code)
    return shaped(answer) if shaped is not None else answer


def _gather(collected: Sequence[Any], finish: Callable[[list[Any]], Message]) -> Answer:
    """All answers in order, then ``finish``; at once unless one of them has to wait."""
    if all(isinstance(answer, Message) for answer in collected):
        return finish(list(collected))
    return _gather_later(collected, finish)


async def _gather_later(
    collected: Sequence[Any], finish: Callable[[list[Any]], Message]
) -> Message:
    return finish([one if isinstance(one, Message) else await one for one in collected])
