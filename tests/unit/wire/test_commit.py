"""Commits of known partitions are decoded as by the general codec, without being decoded again."""

import pytest

from headrace.model.errors import PeerBroken
from headrace.wire import commit, schema
from headrace.wire import messages as m
from headrace.wire.commit import PackedPartitions

Request = m.OffsetCommitRequest


def a_request(*offsets, metadata="", topic="orders"):
    partitions = [
        Request.OffsetCommitRequestPartition(
            partition_index=index, committed_offset=offset, committed_metadata=metadata
        )
        for index, offset in enumerate(offsets)
    ]
    topics = [
        Request.OffsetCommitRequestTopic(name=topic, topic_id=bytes(15) + b"\1", partitions=part)
        for part in (partitions, partitions[:1])
    ]
    return Request(group_id="g", member_id="m", generation_id_or_member_epoch=3, topics=topics)


def encoded(request, version):
    out = bytearray()
    schema.encoder(Request, version)(request, out)
    return bytes(out)


def decoded(data, version):
    """The request, and whether its partitions are packed."""
    found = commit.decode(b"...." + data, 4, 4 + len(data), version)
    packed = isinstance(found.topics[0].partitions, PackedPartitions)
    for topic in found.topics:
        topic.partitions = list(topic.partitions)
    return found, packed


@pytest.mark.parametrize("version", commit.VERSIONS)
def test_every_commit_of_the_same_partitions_has_its_own_offsets(version):
    for offsets in ((1, 2, 3), (4, 5, 6), (-1, 0, 2**63 - 1)):
        data = encoded(a_request(*offsets), version)
        expected, _ = schema.decoder(Request, version)(data, 0, len(data))
        assert decoded(data, version) == (expected, True)


@pytest.mark.parametrize("version", commit.VERSIONS)
def test_requests_of_one_size_do_not_take_each_others_names(version):
    for topic in ("orders", "others"):
        data = encoded(a_request(1, 2, topic=topic), version)
        expected, _ = schema.decoder(Request, version)(data, 0, len(data))
        assert decoded(data, version)[0] == expected


@pytest.mark.parametrize("version", commit.VERSIONS)
def test_metadata_is_decoded_by_the_general_codec(version):
    data = encoded(a_request(1, 2, metadata="note"), version)
    found, packed = decoded(data, version)
    assert not packed
    assert found.topics[0].partitions[1].committed_metadata == "note"


@pytest.mark.parametrize("version", commit.VERSIONS)
def test_a_request_that_is_cut_short_is_broken(version):
    data = encoded(a_request(1, 2, 3), version)
    decoded(data, version)
    for end in range(len(data)):
        with pytest.raises(PeerBroken):
            commit.decode(data, 0, end, version)
