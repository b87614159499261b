"""Headers around messages, and the versions in front of records."""

import pytest

from headrace.model.errors import PeerBroken
from headrace.wire import framing, schema
from headrace.wire import messages as m
from headrace.wire.api import ApiKey, api_name
from headrace.wire.messages.tables import APIS
from tests.unit.wire.message_values import encoded


def header_bytes(
    api_key: int, api_version: int, header_version: int, client_id: str | None
) -> bytes:
    """The header, encoded as the message ``RequestHeader``."""
    header = m.RequestHeader(
        request_api_key=api_key,
        request_api_version=api_version,
        correlation_id=77,
        client_id=client_id,
    )
    return encoded(header, header_version)


@pytest.mark.parametrize("client_id", ["rdkafka", "", "clé", None])
def test_the_header_of_every_request_is_read_in_place(client_id: str | None) -> None:
    for api_key, (_, oldest, newest, first_flexible) in APIS.items():
        for api_version in range(oldest, newest + 1):
            if api_key == ApiKey.CONTROLLED_SHUTDOWN and api_version == 0:
                continue
            header_version = 2 if api_version >= first_flexible else 1
            raw = header_bytes(api_key, api_version, header_version, client_id)
            for buffer in (b"--" + raw + b"body", bytearray(b"--" + raw + b"body")):
                header = framing.parse_request_header(buffer, 2, len(buffer))
                expected = (api_key, api_version, 77, client_id, 2 + len(raw))
                assert header == expected


def test_controlled_shutdown_0_has_no_client_id() -> None:
    frame = framing.encode_request(7, 0, 5, "ignored", m.ControlledShutdownRequest(broker_id=9))
    header = framing.parse_request_header(frame, 4, len(frame))
    assert header == (7, 0, 5, None, 12)
    decode = schema.decoder(m.ControlledShutdownRequest, 0)
    assert decode(frame, 12, len(frame))[0].broker_id == 9


def test_tagged_fields_in_a_header_are_skipped() -> None:
    raw = header_bytes(3, 12, 2, "x")[:-1] + b"\x01\x05\x02ab"
    assert framing.parse_request_header(raw, 0, len(raw)).body_position == len(raw)


def test_an_unannounced_version_of_api_versions_still_has_a_flexible_header() -> None:
    raw = header_bytes(18, 99, 2, "x")
    assert framing.parse_request_header(raw, 0, len(raw)).body_position == len(raw)


def test_the_header_of_an_unknown_api_key_is_read() -> None:
    raw = header_bytes(999, 3, 1, "x")
    assert framing.parse_request_header(raw, 0, len(raw)).api_key == 999


@pytest.mark.parametrize("header_version", [1, 2])
def test_a_header_truncated_at_any_byte_is_refused_even_if_the_buffer_has_the_rest(
    header_version: int,
) -> None:
    raw = header_bytes(3, 12 if header_version == 2 else 4, header_version, "client")
    for end in range(len(raw)):
        with pytest.raises(PeerBroken):
            framing.parse_request_header(raw, 0, end)


@pytest.mark.parametrize("size", [b"\xff\xfe", b"\x80\x00", b"\x7f\xff", b"\x00\x04"])
def test_a_client_id_of_an_impossible_size_is_refused(size: bytes) -> None:
    raw = header_bytes(3, 4, 1, "")[:-2] + size + b"abc"
    with pytest.raises(PeerBroken):
        framing.parse_request_header(raw + b"stale", 0, len(raw))


def test_a_client_id_that_is_no_utf8_is_refused() -> None:
    raw = header_bytes(3, 4, 1, "")[:-2] + b"\x00\x01\xff"
    with pytest.raises(PeerBroken):
        framing.parse_request_header(raw, 0, len(raw))


@pytest.mark.parametrize("tags", [b"\x01", b"\x01\x00", b"\x01\x00\x05a", b"\x80" * 9, b""])
def test_broken_tagged_fields_in_a_header_are_refused(tags: bytes) -> None:
    raw = header_bytes(3, 12, 2, "x")[:-1] + tags
    with pytest.raises(PeerBroken):
        framing.parse_request_header(raw + b"\x00" * 9, 0, len(raw))


def test_every_request_and_response_frame_is_read_back() -> None:
    for api_key, (_, oldest, newest, _) in APIS.items():
        request = getattr(m, api_name(api_key) + "Request")()
        response = getattr(m, api_name(api_key) + "Response")()
        for api_version in range(oldest, newest + 1):
            frame = framing.encode_request(api_key, api_version, 3, "me", request)
            assert int.from_bytes(frame[:4], "big") == len(frame) - 4
            header = framing.parse_request_header(frame, 4, len(frame))
            decode = schema.decoder(type(request), api_version)
            assert decode(frame, header.body_position, len(frame))[1] == len(frame)

            frame = framing.encode_response(api_key, api_version, 3, response)
            assert int.from_bytes(frame[:4], "big") == len(frame) - 4
            correlation_id, body_position = framing.parse_response_header(
                frame, 4, len(frame), api_key, api_version
            )
            assert correlation_id == 3
            decode = schema.decoder(type(response), api_version)
            assert decode(frame, body_position, len(frame))[1] == len(frame)


def test_the_response_to_api_versions_keeps_the_oldest_header() -> None:
    for api_version in range(5):
        assert framing.response_header(18, api_version, 1) == b"\x00\x00\x00\x01"
    assert framing.response_header(3, 8, 1) == b"\x00\x00\x00\x01"
    assert framing.response_header(3, 9, 1) == b"\x00\x00\x00\x01\x00"


def test_a_response_header_truncated_at_any_byte_is_refused() -> None:
    raw = framing.response_header(3, 9, 1)
    for end in range(len(raw)):
        with pytest.raises(PeerBroken):
            framing.parse_response_header(raw, 0, end, 3, 9)


def test_a_record_value_carries_its_version() -> None:
    value = m.OffsetCommitValue(offset=5, metadata="note", commit_timestamp=9)
    for message_version in range(5):
        raw = framing.encode_versioned(value, message_version)
        assert raw[:2] == bytes([0, message_version])
        assert framing.decode_versioned(m.OffsetCommitValue, raw).offset == 5


def test_a_record_value_of_an_unknown_version_or_size_is_refused() -> None:
    raw = framing.encode_versioned(m.OffsetCommitValue(), 3)
    for broken in (b"", b"\x00", b"\x00\x63" + raw[2:], b"\xff\xff" + raw[2:], raw + b"\x00"):
        with pytest.raises(PeerBroken):
            framing.decode_versioned(m.OffsetCommitValue, broken)


def test_a_record_key_carries_its_type() -> None:
    keys = (m.OffsetCommitKey, m.GroupMetadataKey)
    offset = m.OffsetCommitKey(group="g", topic="t", partition=2)
    group = m.GroupMetadataKey(group="g")
    assert framing.encode_record_key(offset) == b"\x00\x01\x00\x01g\x00\x01t\x00\x00\x00\x02"
    assert framing.encode_record_key(group) == b"\x00\x02\x00\x01g"
    for key in (offset, group):
        assert framing.decode_record_key(keys, framing.encode_record_key(key)) == key
    assert framing.decode_record_key(keys, b"\x00\x63") is None
    with pytest.raises(PeerBroken):
        framing.decode_record_key(keys, b"\x00\x02\x00\x01gg")
