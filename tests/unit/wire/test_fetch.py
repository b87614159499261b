"""The hand-written fetch path recognizes requests and writes the bytes of the general codec."""

import os

import pytest

from headrace.wire import messages as m
from headrace.wire import schema
from headrace.wire.api import ApiKey
from headrace.wire.fetch import FetchedPartition, FetchShape, encode_fetch_response
from headrace.wire.framing import encode_request, encode_response, parse_request_header

TOPIC_ID = bytes(range(16))
FETCH_VERSIONS = range(4, 19)


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
def test_a_fetch_response_has_the_bytes_of_the_general_codec(version):
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
def test_an_empty_fetch_response_has_its_error(version):
    (only,) = encode_fetch_response(version, 1, 0, [], error_code=70)
    response, _ = schema.decoder(m.FetchResponse, version)(
        only, 9 if version >= 12 else 8, len(only)
    )
    assert response.responses == []
    assert response.error_code == (70 if version >= 7 else 0)


def fetch_request(version, *, correlation_id=1, epoch=-1, offset=0, **fields):
    request = m.FetchRequest
    partition = request.FetchPartition(
        partition=3, current_leader_epoch=2, fetch_offset=offset, partition_max_bytes=1 << 20
    )
    fields = {
        "max_wait_ms": 100,
        "min_bytes": 1,
        "max_bytes": 1 << 20,
        "session_epoch": epoch,
        "topics": [request.FetchTopic(topic_id=TOPIC_ID, partitions=[partition])],
    } | fields
    return bytearray(
        encode_request(ApiKey.FETCH, version, correlation_id, "a client", request(**fields))
    )


def fetch_shape(version, frame):
    header = parse_request_header(frame, 4, len(frame))
    return FetchShape.of(bytes(frame[4:]), version, header.body_position - 4)


FETCH_BY_ID = range(13, 19)
PLACES = [(-1, 0), (0, 1), (7, 2**40), (2**31 - 1, -1)]


@pytest.mark.parametrize("version", FETCH_BY_ID)
def test_the_next_fetch_of_a_shape_is_found_without_decoding(version):
    shape = fetch_shape(version, fetch_request(version))
    stale = b"bytes of an older request"
    for epoch, offset in PLACES:
        again = fetch_request(version, correlation_id=9, epoch=epoch, offset=offset)
        data = bytearray(b"....") + again + stale
        assert shape.match(memoryview(data), 8, len(data) - len(stale)) == (epoch, offset)
        for end in range(8, len(data) - len(stale)):
            assert shape.match(memoryview(data), 8, end) is None


@pytest.mark.parametrize("version", FETCH_BY_ID)
def test_a_fetch_that_differs_in_any_other_byte_does_not_match(version):
    frame = fetch_request(version)
    shape = fetch_shape(version, frame)
    marked = fetch_request(version, correlation_id=-1, epoch=0, offset=-1)
    may_differ = [at for at in range(4, len(frame)) if frame[at] != marked[at]]
    assert len(may_differ) == 4 + 4 + 8
    for at in range(4, len(frame)):
        changed = bytearray(frame)
        changed[at] ^= 1
        matched = shape.match(memoryview(changed), 4, len(changed)) is not None
        assert matched == (at in may_differ)


@pytest.mark.parametrize("version", range(4, 19))
def test_fetches_of_another_kind_are_not_remembered(version):
    request = m.FetchRequest
    one = request.FetchPartition(partition=0, fetch_offset=5, partition_max_bytes=1)
    topic = request.FetchTopic(topic="orders", topic_id=TOPIC_ID, partitions=[one])
    two = request.FetchTopic(topic="orders", topic_id=TOPIC_ID, partitions=[one, one])
    for topics in ([topic, topic], [two], *([[topic]] if version < 13 else [])):
        frame = fetch_request(version, topics=topics)
        assert fetch_shape(version, frame) is None
    if version >= 13:
        # The same count in two bytes: allowed, though no client does it.
        frame = fetch_request(version)
        at = frame.index(b"\x02" + TOPIC_ID)
        frame[at : at + 1] = b"\x82\x00"
        assert fetch_shape(version, frame) is None
