"""The hand-written Produce and Fetch paths say the same bytes as the general codec."""

import os

import pytest

from headrace.wire import messages as m
from headrace.wire import schema
from headrace.wire.api import ApiKey
from headrace.wire.fetch import FetchedPartition, encode_fetch_response
from headrace.wire.framing import encode_request, encode_response, parse_request_header
from headrace.wire.produce import ProduceShape, outcome_position

TOPIC_ID = bytes(range(16))
FETCH_VERSIONS = range(4, 19)
PRODUCE_VERSIONS = range(3, 14)


def general_fetch_response(version, session_id, topics):
    response = m.FetchResponse
    return encode_response(
        ApiKey.FETCH,
        version,
        77,
        response(
            session_id=session_id,
            responses=[
                response.FetchableTopicResponse(
                    topic="" if version >= 13 else topic,
                    topic_id=topic if version >= 13 else bytes(16),
                    partitions=[
                        response.PartitionData(
                            partition_index=entry.partition,
                            error_code=entry.error_code,
                            high_watermark=entry.high_watermark,
                            last_stable_offset=entry.last_stable_offset,
                            log_start_offset=entry.log_start,
                            aborted_transactions=None
                            if entry.aborted is None
                            else [
                                response.AbortedTransaction(producer_id=p, first_offset=o)
                                for p, o in entry.aborted
                            ],
                            records=entry.records if entry.records is not None else b"",
                            **(
                                {
                                    "diverging_epoch": response.EpochEndOffset(
                                        epoch=entry.diverging[0], end_offset=entry.diverging[1]
                                    )
                                }
                                if entry.diverging
                                else {}
                            ),
                        )
                        for entry in entries
                    ],
                )
                for topic, entries in topics
            ],
        ),
    )


@pytest.mark.parametrize("version", FETCH_VERSIONS)
def test_a_fetch_answer_is_what_the_general_codec_would_say(version):
    name = TOPIC_ID if version >= 13 else "orders"
    large = os.urandom(300)
    topics = [
        (
            name,
            [
                FetchedPartition(0, 0, 10, 9, 1, None, large, len(large)),
                FetchedPartition(1, 6),
                FetchedPartition(2, 0, 5, 5, 0, [(7, 3), (8, 4)], b"x", 1),
                FetchedPartition(3, 0, 5, 5, 0, []),
                *([FetchedPartition(4, 0, diverging=(3, 99))] if version >= 12 else []),
            ],
        ),
        (name, [FetchedPartition(9, 0, 0, 0, 0)]),
    ]
    parts = encode_fetch_response(version, 77, 5 if version >= 7 else 0, topics)
    assert b"".join(parts) == general_fetch_response(version, 5 if version >= 7 else 0, topics)


@pytest.mark.parametrize("version", FETCH_VERSIONS)
def test_an_empty_fetch_answer_carries_its_error(version):
    (only,) = encode_fetch_response(version, 1, 0, [], error_code=70)
    response, _ = schema.decoder(m.FetchResponse, version)(
        only, 9 if version >= 12 else 8, len(only)
    )
    assert response.responses == []
    assert response.error_code == (70 if version >= 7 else 0)


def produce_request(version, records, correlation_id=1, acks=-1):
    request = m.ProduceRequest
    return bytearray(
        encode_request(
            ApiKey.PRODUCE,
            version,
            correlation_id,
            "a client",
            request(
                acks=acks,
                timeout_ms=30_000,
                topic_data=[
                    request.TopicProduceData(
                        name="orders",
                        topic_id=TOPIC_ID,
                        partition_data=[request.PartitionProduceData(index=3, records=records)],
                    )
                ],
            ),
        )
    )


def learned(version, records):
    frame = memoryview(produce_request(version, records))[4:]
    header = parse_request_header(frame, 0, len(frame))
    request, _ = schema.decoder(m.ProduceRequest, version)(frame, header.body_position, len(frame))
    return ProduceShape(frame, version, request.topic_data[0].partition_data[0].records)


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
@pytest.mark.parametrize("size", [1, 126, 127, 128, 20_000, 3_000_000])
def test_the_next_request_of_a_shape_is_found_without_decoding(version, size):
    shape = learned(version, b"first")
    records = os.urandom(size)
    stale = b"bytes of an older request"
    data = bytearray(b"....") + produce_request(version, records, correlation_id=2) + stale
    view = memoryview(data)
    found = shape.match(view, 8, len(data) - len(stale))
    assert found == records


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
def test_a_request_of_another_shape_is_not_taken_for_it(version):
    shape = learned(version, b"first")
    other_acks = produce_request(version, b"second", acks=1)
    assert shape.match(memoryview(other_acks), 4, len(other_acks)) is None
    whole = produce_request(version, b"second")
    for end in range(4, len(whole)):
        assert shape.match(memoryview(whole), 4, end) is None


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
def test_an_answer_is_filled_in_where_the_outcome_stands(version):
    response = m.ProduceResponse

    def answer(correlation_id, **outcome):
        return bytes(
            encode_response(
                ApiKey.PRODUCE,
                version,
                correlation_id,
                response(
                    responses=[
                        response.TopicProduceResponse(
                            name="orders",
                            topic_id=TOPIC_ID,
                            partition_responses=[
                                response.PartitionProduceResponse(index=3, **outcome)
                            ],
                        )
                    ]
                ),
            )
        )

    shape = learned(version, b"first")
    shape.learn_answer(answer(0), outcome_position(version, len("orders")))
    filled = shape.answer((9).to_bytes(4, "big"), 6, 123, 456, 78)
    assert filled == answer(
        9, error_code=6, base_offset=123, log_append_time_ms=456, log_start_offset=78
    )
