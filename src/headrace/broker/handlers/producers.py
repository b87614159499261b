"""InitProducerId, DescribeProducers and WriteTxnMarkers."""

import asyncio
from typing import Any, Protocol

from headrace.broker.context import Context
from headrace.broker.coordinators.markers import Codes, Marker
from headrace.broker.needs import (
    NeedsProducers,
    NeedsReplicas,
    NeedsTransactions,
    NeedsWorld,
)
from headrace.model.errors import ErrorCode, Rejected
from headrace.model.ids import NO_PRODUCER_ID, TopicPartition
from headrace.wire import messages as m

_NO_EPOCH = -1


class Needs(NeedsProducers, NeedsReplicas, NeedsTransactions, NeedsWorld, Protocol):
    """What these handlers use of the broker."""


def init_producer_id(broker: Needs, context: Context, request: m.InitProducerIdRequest) -> Any:
    # A producer that keeps its id sends id and epoch. Other negative values are rejected later.
    if (request.producer_id != NO_PRODUCER_ID) != (request.producer_epoch != _NO_EPOCH):
        return m.InitProducerIdResponse(
            error_code=ErrorCode.INVALID_REQUEST, producer_epoch=_NO_EPOCH
        )
    if request.transactional_id is None:
        return _fresh_producer_id(broker)
    # Imported on first use: most producers are idempotent only.
    from headrace.broker.handlers.transactions import init_transactional_producer

    return init_transactional_producer(broker, context, request)


async def _fresh_producer_id(broker: Needs) -> m.InitProducerIdResponse:
    producer_id = await broker.producer_ids.next()
    return m.InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)


def describe_producers(
    broker: Needs, context: Context, request: m.DescribeProducersRequest
) -> m.DescribeProducersResponse:
    response = m.DescribeProducersResponse
    return response(
        topics=[
            response.TopicResponse(
                name=topic.name,
                partitions=[
                    _described(broker, topic.name, partition)
                    for partition in topic.partition_indexes
                ],
            )
            for topic in request.topics
        ]
    )


def _described(
    broker: Needs, topic: str, partition: int
) -> m.DescribeProducersResponse.PartitionResponse:
    response = m.DescribeProducersResponse
    try:
        replica = broker.replicas.require(topic, partition)
        replica.require_leadership()
    except Rejected as refusal:
        return response.PartitionResponse(
            partition_index=partition, error_code=refusal.code, error_message=refusal.message
        )
    return response.PartitionResponse(
        partition_index=partition,
        active_producers=[
            response.ProducerState(
                producer_id=producer_id,
                producer_epoch=entry.producer_epoch,
                last_sequence=entry.last_sequence,
                last_timestamp=entry.last_timestamp,
                coordinator_epoch=entry.coordinator_epoch,
                current_txn_start_offset=entry.transaction_start,
            )
            for producer_id, entry in replica.log.producers.entries.items()
        ],
    )


async def write_txn_markers(
    broker: Needs, context: Context, request: m.WriteTxnMarkersRequest
) -> m.WriteTxnMarkersResponse:
    """Write markers for a coordinator on another broker, or a tool that aborts a transaction."""
    response = m.WriteTxnMarkersResponse
    written = [_written(broker, marker) for marker in request.markers]
    results = []
    for marker, pending in zip(request.markers, written, strict=True):
        codes = await pending
        results.append(
            response.WritableTxnMarkerResult(
                producer_id=marker.producer_id,
                topics=[
                    response.WritableTxnMarkerTopicResult(
                        name=topic.name,
                        partitions=[
                            response.WritableTxnMarkerPartitionResult(
                                partition_index=partition,
                                error_code=codes[TopicPartition(topic.name, partition)],
                            )
                            for partition in topic.partition_indexes
                        ],
                    )
                    for topic in marker.topics
                ],
            )
        )
    return response(markers=results)


def _written(
    broker: Needs, wanted: m.WriteTxnMarkersRequest.WritableTxnMarker
) -> "asyncio.Future[Codes]":
    partitions = dict.fromkeys(
        TopicPartition(topic.name, partition)
        for topic in wanted.topics
        for partition in topic.partition_indexes
    )
    done: asyncio.Future[Codes] = broker.loop.create_future()
    if wanted.producer_id < 0 or wanted.producer_epoch < 0 or not partitions:
        # As in Kafka, which has no better code for a marker without a producer.
        done.set_result(dict.fromkeys(partitions, ErrorCode.UNKNOWN_SERVER_ERROR))
        return done
    marker = Marker(
        wanted.producer_id,
        wanted.producer_epoch,
        wanted.coordinator_epoch,
        wanted.transaction_result,
        wanted.transaction_version,
    )

    def report(codes: Codes) -> None:
        if not done.done():  # the broker may be stopping
            done.set_result(codes)

    broker.markers.write(marker, partitions, report)
    return done
