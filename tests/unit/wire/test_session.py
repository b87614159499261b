"""A client session fed with bytes: whole, one by one, with a tail, and with nonsense."""

import struct

import pytest

from headrace.model.errors import PeerBroken
from headrace.wire import framing
from headrace.wire import messages as m
from headrace.wire import session as session_module
from headrace.wire.api import ApiKey
from headrace.wire.session import (
    FrameReader,
    Session,
    UnsupportedVersion,
    has_response,
    parse_response,
)

METADATA_VERSION = 9
LARGE = bytes(range(256)) * 1000


def metadata_response(correlation_id: int, cluster_id: str = "c") -> bytes:
    answer = m.MetadataResponse(cluster_id=cluster_id)
    return bytes(framing.encode_response(ApiKey.METADATA, METADATA_VERSION, correlation_id, answer))


def session_with_requests(count: int) -> Session:
    session = Session("me")
    for _ in range(count):
        session.encode(m.MetadataRequest(), api_version=METADATA_VERSION)
    return session


def frame(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


FRAMES = [b"1234", b"a longer one", LARGE, b"5678", LARGE[:8192], LARGE[:8188], b"last"]


@pytest.mark.parametrize("step", [1, 2, 3, 5, 100, 8191, 8192, 8193, 1 << 20])
def test_frames_are_the_same_however_the_bytes_are_cut(step):
    data = b"".join(map(frame, FRAMES)) + frame(b"tail")[:-1]
    reader, found = FrameReader(), []
    for position in range(0, len(data), step):
        found += reader.feed(data[position : position + step])
    assert found == FRAMES
    assert reader.feed(b"l") == [b"tail"]


def test_the_bulk_of_a_large_frame_is_received_in_place():
    reader = FrameReader()
    data = frame(LARGE)
    reader.buffer()[:100] = data[:100]
    assert reader.advance(100) == []
    rest = reader.buffer()
    assert len(rest) == len(data) - 100
    rest[:] = data[100:]
    (found,) = reader.advance(len(rest))
    assert found == LARGE
    assert found.obj is rest.obj, "nothing was copied"


def test_each_frame_has_a_writable_buffer_of_its_own():
    first, second = FrameReader().feed(frame(b"1234") + frame(b"5678"))
    first[:] = b"...."
    assert second == b"5678"
    assert not first.readonly


def test_the_caller_can_pass_one_buffer_for_all_frames():
    kept = bytearray(100)
    reader = FrameReader(allocate=lambda size: kept)
    for body in (b"first", b"second"):
        (found,) = reader.feed(frame(body))
        assert found == body
        assert found.obj is kept


@pytest.mark.parametrize("size", [-1, 0, 3, 101, 0x48545450, -(1 << 31)])
def test_a_frame_of_an_impossible_size_is_refused_before_it_is_allocated(size):
    reader = FrameReader(size_max=100)
    with pytest.raises(PeerBroken, match=f"a response of {size} bytes"):
        reader.feed(struct.pack(">i", size))


def test_a_frame_of_the_largest_size_is_taken():
    assert FrameReader(size_max=100).feed(frame(bytes(100))) == [bytes(100)]


def test_a_request_carries_its_version_the_client_id_and_the_next_correlation_id():
    session = Session("me")
    for number in (1, 2):
        sent = session.encode(m.MetadataRequest(), api_version=METADATA_VERSION)
        assert int.from_bytes(sent[:4], "big") == len(sent) - 4
        header = framing.parse_request_header(sent, 4, len(sent))
        assert header[:4] == (ApiKey.METADATA, METADATA_VERSION, number, "me")
    assert session.in_flight == 2


def test_responses_belong_to_the_requests_in_order():
    session = Session("me")
    session.encode(m.MetadataRequest(), api_version=METADATA_VERSION)
    session.encode(m.HeartbeatRequest(), api_version=4)
    heartbeat = framing.encode_response(ApiKey.HEARTBEAT, 4, 2, m.HeartbeatResponse(error_code=27))
    responses = [
        session.response(found) for found in session.feed(metadata_response(1) + heartbeat)
    ]
    assert responses[0].decode(m.MetadataResponse).cluster_id == "c"
    assert responses[1].decode(m.HeartbeatResponse).error_code == 27
    assert [one.correlation_id for one in responses] == [1, 2]
    assert session.in_flight == 0


def test_a_body_can_be_decoded_without_copying():
    session = Session("me")
    session.encode(m.FetchRequest(), api_version=11)
    kind = m.FetchResponse
    answer = kind(
        responses=[
            kind.FetchableTopicResponse(
                topic="t", partitions=[kind.PartitionData(partition_index=0, records=LARGE)]
            )
        ]
    )
    (found,) = session.feed(framing.encode_response(ApiKey.FETCH, 11, 1, answer))
    records = session.response(found).decode(kind).responses[0].partitions[0].records
    assert records == LARGE
    assert records.obj is found.obj


def test_a_response_to_another_request_is_refused():
    session = session_with_requests(2)
    with pytest.raises(PeerBroken, match="response 2 to request 1"):
        session.response(session.feed(metadata_response(2))[0])


def test_a_response_to_no_request_is_refused():
    session = session_with_requests(1)
    first, second = session.feed(metadata_response(1) + metadata_response(2))
    session.response(first)
    with pytest.raises(PeerBroken, match="to no request"):
        session.response(second)


@pytest.mark.parametrize("body", [b"\0\0\0\1", b"\0\0\0\1\0", b"\0\0\0\1\0" + b"\xff" * 40])
def test_a_response_that_cannot_be_decoded_is_refused(body):
    session = session_with_requests(1)
    with pytest.raises(PeerBroken):
        session.response(session.feed(frame(body))[0]).decode(m.MetadataResponse)


def test_a_response_is_decoded_as_the_answer_to_its_request_only():
    session = session_with_requests(1)
    response = session.response(session.feed(metadata_response(1))[0])
    with pytest.raises(TypeError, match="Metadata does not answer with HeartbeatResponse"):
        response.decode(m.HeartbeatResponse)


def test_produce_with_acks_0_has_no_response():
    session = Session("me")
    session.encode(m.ProduceRequest(acks=0), api_version=9)
    assert session.in_flight == 0
    session.encode(m.ProduceRequest(acks=1), api_version=9)
    assert session.in_flight == 1
    assert not has_response(m.ProduceRequest(acks=0))
    assert has_response(m.MetadataRequest())


def test_versions_are_the_newest_that_both_sides_know():
    session = Session("me")
    entry = m.ApiVersionsResponse.ApiVersion
    session.learn_versions(
        m.ApiVersionsResponse(
            api_keys=[
                entry(api_key=ApiKey.METADATA, min_version=0, max_version=7),
                entry(api_key=ApiKey.HEARTBEAT, min_version=0, max_version=99),
                entry(api_key=ApiKey.FETCH, min_version=50, max_version=60),
            ]
        )
    )
    assert session.version_of(m.MetadataRequest) == 7
    assert session.version_of(m.MetadataRequest, version_max=5) == 5
    assert session.version_of(m.HeartbeatRequest) == 4
    sent = session.encode(m.MetadataRequest(), version_max=6)
    assert framing.parse_request_header(sent, 4, len(sent)).api_version == 6
    with pytest.raises(UnsupportedVersion, match="the broker serves 50 to 60"):
        session.version_of(m.FetchRequest)
    with pytest.raises(UnsupportedVersion, match="the broker has none"):
        session.encode(m.JoinGroupRequest())
    assert session.in_flight == 1, "a request that was not encoded is not in flight"


def test_versions_can_be_given():
    session = Session("me", {ApiKey.METADATA: (3, 5)})
    assert session.version_of(m.MetadataRequest) == 5


def test_a_frame_from_elsewhere_is_parsed_by_its_api_and_version():
    response = parse_response(metadata_response(77)[4:], ApiKey.METADATA, METADATA_VERSION)
    assert response.correlation_id == 77
    assert response.decode(m.MetadataResponse).cluster_id == "c"


def test_correlation_ids_start_over_after_their_largest_value(monkeypatch):
    assert struct.pack(">i", session_module.CORRELATION_ID_MAX) == b"\x7f\xff\xff\xff"
    monkeypatch.setattr(session_module, "CORRELATION_ID_MAX", 2)
    session = Session("me")
    ids = []
    for _ in range(3):
        sent = session.encode(m.MetadataRequest(), api_version=METADATA_VERSION)
        ids.append(framing.parse_request_header(sent, 4, len(sent)).correlation_id)
    assert ids == [1, 2, 1]
