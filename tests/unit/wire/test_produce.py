"""The hand-written produce path recognizes requests and writes the bytes of the general codec."""

import os

import pytest

from headrace.wire import messages as m
from headrace.wire import schema
from headrace.wire.api import ApiKey
from headrace.wire.framing import encode_request, encode_response, parse_request_header
from headrace.wire.produce import ProduceShape, outcome_position

TOPIC_ID = bytes(range(16))
PRODUCE_VERSIONS = range(3, 14)


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
def test_a_request_of_another_shape_does_not_match(version):
    shape = learned(version, b"first")
    other_acks = produce_request(version, b"second", acks=1)
    assert shape.match(memoryview(other_acks), 4, len(other_acks)) is None
    whole = produce_request(version, b"second")
    for end in range(4, len(whole)):
        assert shape.match(memoryview(whole), 4, end) is None


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
def test_the_outcome_is_written_into_the_remembered_response(version):
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
