"""The classes and codecs that ``schema`` generates from the tables."""

import tracemalloc

import pytest

from headrace.model.errors import PeerBroken
from headrace.wire import messages as m
from headrace.wire import schema
from headrace.wire.messages.tables import TABLES
from tests.unit.wire.message_values import Values, encoded, every_message_and_version

ALL_NAMES = sorted(TABLES)


def versions_of(name: str) -> range:
    versions = schema.definition(name).versions
    return range(versions.first, versions.last + 1)


@pytest.mark.parametrize("name", ALL_NAMES)
def test_a_message_of_any_version_is_read_back(name: str) -> None:
    for message_version in versions_of(name):
        for seed in range(3):
            message = Values(name, message_version, seed).message()
            raw = encoded(message, message_version)
            decode = schema.decoder(name, message_version)
            # Alone, and from the middle of a used buffer of each kind.
            assert decode(raw, 0, len(raw)) == (message, len(raw))
            used = b"\xfe" * 7 + raw + b"\xff" * 9
            for buffer in (used, bytearray(used), memoryview(bytearray(used))):
                assert decode(buffer, 7, 7 + len(raw)) == (message, 7 + len(raw))
            again = bytearray(b"before")
            schema.encoder(name, message_version)(message, again)
            assert again == b"before" + raw


@pytest.mark.parametrize("name", ALL_NAMES)
def test_a_message_truncated_at_any_byte_is_refused_even_if_the_buffer_has_the_rest(
    name: str,
) -> None:
    for message_version in versions_of(name):
        raw = encoded(Values(name, message_version, 7).message(), message_version)[:2000]
        decode = schema.decoder(name, message_version)
        for end in range(len(raw)):
            with pytest.raises(PeerBroken):
                decode(raw, 0, end)


@pytest.mark.parametrize("name", ALL_NAMES)
def test_unknown_tagged_fields_are_skipped(name: str) -> None:
    """A newer peer may add tagged fields at the end of any struct; the outermost is enough here."""
    for message_version in versions_of(name):
        if not schema.definition(name).flexible.includes(message_version):
            continue
        message = getattr(m, name)()
        raw = encoded(message, message_version)
        # At their defaults no tagged field is written: the last byte counts none of them.
        assert raw[-1] == 0
        unknown = raw[:-1] + b"\x02" + b"\xe8\x07\x03abc" + b"\xe9\x07\x00"
        decode = schema.decoder(name, message_version)
        assert decode(unknown, 0, len(unknown)) == (message, len(unknown))


def test_unknown_tagged_fields_inside_an_element_are_skipped() -> None:
    topics = [m.MetadataRequest.MetadataRequestTopic(name=name) for name in ("ab", "cd")]
    request = m.MetadataRequest(topics=topics)
    raw = encoded(request, 12)
    assert raw.count(b"\x03ab\x00") == 1  # the name, then no tagged fields
    newer = raw.replace(b"\x03ab\x00", b"\x03ab\x02\x00\x01x\x81\x01\x02yz")
    decode = schema.decoder(m.MetadataRequest, 12)
    assert decode(newer, 0, len(newer)) == (request, len(newer))


def test_no_element_of_an_array_is_empty_on_the_wire() -> None:
    """A count is checked against the bytes left, so every element needs at least one."""
    for name, message_version in every_message_and_version():
        source = schema.DecoderSource(schema.definition(name), message_version)
        for struct_name, fields in source.known.structs.items():
            for field in fields:
                if field.is_array and field.versions.includes(message_version):
                    assert source.width_of_element(field) > 0, (name, message_version, struct_name)


HUGE_COUNTS = {
    "huge": b"\x7f\xff\xff\xff",
    "one below null": b"\xff\xff\xff\xfe",
    "least": b"\x80\x00\x00\x00",
}


@pytest.mark.parametrize("count", HUGE_COUNTS.values(), ids=HUGE_COUNTS.keys())
def test_a_count_too_large_for_the_frame_is_refused_before_memory_is_allocated(
    count: bytes,
) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(PeerBroken):
            schema.decoder(m.MetadataRequest, 1)(count, 0, 4)
        with pytest.raises(PeerBroken):
            schema.decoder(m.ProduceRequest, 3)(
                b"\xff\xff" + b"\x00\x01" + b"\x00" * 4 + count + b"abc", 0, 15
            )
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2_000_000  # compiling two decoders takes most of it


@pytest.mark.parametrize(
    "count", [b"\xff\xff\xff\xff\x0f", b"\xff\xff\xff\xff\x7f", b"\x80\x80\x80\x80\x10"]
)
def test_a_compact_count_too_large_for_the_frame_is_refused(count: bytes) -> None:
    with pytest.raises(PeerBroken):
        schema.decoder(m.MetadataRequest, 12)(count + b"abc", 0, 8)


def test_a_varint_without_end_is_refused() -> None:
    endless = b"\x80" * 1000
    for decode in (
        schema.decoder(m.MetadataRequest, 12),  # as a count
        schema.decoder(m.FindCoordinatorRequest, 3),  # as a length
        schema.decoder(m.ListPartitionReassignmentsRequest, 0),
    ):
        with pytest.raises(PeerBroken):
            decode(endless, 0, len(endless))
    # As a number of tagged fields, as a tag, as the size of one.
    for tags in (endless, b"\x01" + endless, b"\x01\x00" + endless):
        raw = b"\x00" + tags
        with pytest.raises(PeerBroken):
            schema.decoder(m.DeleteShareGroupOffsetsRequest, 0)(raw, 0, len(raw))
        raw = b"\x02a\x02b" + tags
        with pytest.raises(PeerBroken):
            schema.decoder(m.ApiVersionsRequest, 3)(raw, 0, len(raw))


def test_five_billion_tagged_fields_are_refused_at_the_end_of_the_frame() -> None:
    raw = b"\x02a\x02b" + b"\xff\xff\xff\xff\x7f" + b"\x00\x00" * 20
    with pytest.raises(PeerBroken):
        schema.decoder(m.ApiVersionsRequest, 3)(raw, 0, len(raw))


@pytest.mark.parametrize("message_version", [0, 11])  # a number is missing, or a byte
def test_a_message_that_ends_early_is_called_truncated(message_version: int) -> None:
    with pytest.raises(PeerBroken, match=f"MetadataRequest version {message_version}, truncated"):
        schema.decoder(m.MetadataRequest, message_version)(b"\x01", 0, 1)


def test_a_tagged_field_must_have_the_size_it_announced() -> None:
    message = m.ApiVersionsResponse(zk_migration_ready=True)
    raw = bytearray(encoded(message, 3))
    assert raw[-4:] == b"\x01\x03\x01\x01"  # one field, tag 3, one byte, true
    raw[-2] = 2
    raw += b"\x00"
    with pytest.raises(PeerBroken):
        schema.decoder(m.ApiVersionsResponse, 3)(raw, 0, len(raw))


def test_null_in_a_field_that_is_not_nullable_is_refused() -> None:
    with pytest.raises(PeerBroken):
        schema.decoder(m.FindCoordinatorRequest, 0)(b"\xff\xff", 0, 2)
    with pytest.raises(PeerBroken):
        schema.decoder(m.MetadataRequest, 0)(b"\xff\xff\xff\xff", 0, 4)
    with pytest.raises(PeerBroken):
        schema.decoder(m.FindCoordinatorRequest, 3)(b"\x00\x00\x00", 0, 3)


def test_only_minus_one_means_null() -> None:
    decode = schema.decoder(m.MetadataRequest, 1)
    assert decode(b"\xff\xff\xff\xff", 0, 4)[0].topics is None
    with pytest.raises(PeerBroken):
        decode(b"\xff\xff\xff\xf0", 0, 4)


def test_in_a_tag_a_struct_that_is_null_is_a_zero() -> None:
    """As Kafka 4.3.1 keeps a consumer that does not speak the classic protocol."""
    raw = (
        bytes.fromhex("0000")
        + b"\x03c1\x0b/127.0.0.1\x02\x02t\x01"
        + bytes.fromhex("000493e00001000100")
    )
    decode = schema.decoder("ConsumerGroupMemberMetadataValue", 0)
    message, end = decode(raw, 0, len(raw))
    assert end == len(raw)
    assert message.classic_member_metadata is None
    assert message.rebalance_timeout_ms == 300_000
    assert encoded(message, 0) == raw
    for other in (b"\x02", b"\xff"):
        with pytest.raises(PeerBroken):
            decode(raw[:-1] + other, 0, len(raw))


def test_text_that_is_not_utf8_is_refused() -> None:
    with pytest.raises(PeerBroken):
        schema.decoder(m.FindCoordinatorRequest, 0)(b"\x00\x02\xc3\x28", 0, 4)
    # Also where records make the decoder work on views.
    with pytest.raises(PeerBroken):
        schema.decoder(m.ProduceRequest, 3)(b"\x00\x02\xc3\x28" + b"\x00" * 10, 0, 14)


def test_an_end_beyond_the_buffer_is_refused() -> None:
    raw = encoded(m.FindCoordinatorRequest(key="orders"), 0)
    with pytest.raises(PeerBroken):
        schema.decoder(m.FindCoordinatorRequest, 0)(raw[:-1], 0, len(raw))


def a_produce_request(records: bytes) -> m.ProduceRequest:
    partition = m.ProduceRequest.PartitionProduceData(index=3, records=records)
    topic = m.ProduceRequest.TopicProduceData(name="orders", partition_data=[partition])
    return m.ProduceRequest(acks=-1, timeout_ms=5, topic_data=[topic])


def test_records_are_a_view_into_the_buffer_and_can_be_stamped_there() -> None:
    raw = bytearray(encoded(a_produce_request(b"records"), 9))
    request, _ = schema.decoder(m.ProduceRequest, 9)(raw, 0, len(raw))
    view = request.topic_data[0].partition_data[0].records
    assert isinstance(view, memoryview) and bytes(view) == b"records"
    view[:3] = b"REC"
    assert b"RECords" in raw


def test_a_message_without_records_keeps_no_view_of_the_buffer() -> None:
    message = m.SaslAuthenticateRequest(auth_bytes=b"secret")
    raw = bytearray(encoded(message, 2))
    request, _ = schema.decoder(m.SaslAuthenticateRequest, 2)(raw, 0, len(raw))
    raw.clear()  # would raise BufferError while a view is held
    assert request.auth_bytes == b"secret"


def test_a_field_that_a_version_lacks_has_its_default_when_read_and_is_dropped_when_written() -> (
    None
):
    request = m.MetadataRequest(topics=[], allow_auto_topic_creation=False)
    raw = encoded(request, 3)
    assert raw == b"\x00\x00\x00\x00"
    read, _ = schema.decoder(m.MetadataRequest, 3)(raw, 0, 4)
    assert read.allow_auto_topic_creation is True


def test_structs_are_attributes_of_their_message_with_defaults_of_their_own() -> None:
    one, other = m.MetadataResponse(), m.MetadataResponse()
    one.brokers.append(m.MetadataResponse.MetadataResponseBroker(node_id=1, host="h", port=9))
    assert other.brokers == []
    assert m.FetchRequest().replica_state is not m.FetchRequest().replica_state
    assert repr(one.brokers[0]) == (
        "MetadataResponse.MetadataResponseBroker(node_id=1, host='h', port=9, rack=None)"
    )


def test_messages_are_equal_by_their_fields_and_have_no_others() -> None:
    assert m.FindCoordinatorRequest(key="a") == m.FindCoordinatorRequest(key="a")
    assert m.FindCoordinatorRequest(key="a") != m.FindCoordinatorRequest(key="b")
    assert m.FindCoordinatorRequest() != m.HeartbeatRequest()
    with pytest.raises(AttributeError):
        m.FindCoordinatorRequest().color = 1  # type: ignore[attr-defined]
    with pytest.raises(TypeError):
        m.FindCoordinatorRequest(color=1)  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        hash(m.FindCoordinatorRequest())


def test_a_message_or_version_that_does_not_exist_is_a_programming_error() -> None:
    with pytest.raises(LookupError):
        schema.decoder(m.MetadataRequest, 99)
    with pytest.raises(LookupError):
        schema.encoder("MetadataRequest", -1)
    with pytest.raises(AttributeError):
        m.NoSuchRequest  # type: ignore[attr-defined]  # noqa: B018


def test_codecs_are_compiled_once() -> None:
    assert schema.decoder(m.MetadataRequest, 4) is schema.decoder(m.MetadataRequest, 4)
    assert schema.encoder("MetadataRequest", 4) is schema.encoder("MetadataRequest", 4)


def test_versions_that_kafka_has_removed_can_still_be_encoded() -> None:
    """Their definitions come from the older release; one class serves them all."""
    for name, oldest in {
        "ProduceRequest": 0,
        "FetchRequest": 0,
        "JoinGroupRequest": 0,
        "OffsetCommitRequest": 0,
        "ListOffsetsRequest": 0,
        "LeaderAndIsrRequest": 0,
        "UpdateMetadataRequest": 0,
        "StopReplicaRequest": 0,
        "ControlledShutdownRequest": 0,
    }.items():
        assert schema.definition(name).versions.first == oldest
    # OffsetCommit 1 alone had a commit time for each partition.
    partition = m.OffsetCommitRequest.OffsetCommitRequestPartition(partition_index=1)
    topic = m.OffsetCommitRequest.OffsetCommitRequestTopic(name="t", partitions=[partition])
    request = m.OffsetCommitRequest(group_id="g", topics=[topic])
    assert len(encoded(request, 1)) - len(encoded(request, 0)) == 4 + 2 + 8
