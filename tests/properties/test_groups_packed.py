"""Packed commits against unpacked ones: same requests, same records, same answers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.broker.handlers.groups import commit_options
from headrace.core.groups import offset_commit
from headrace.core.groups.packed import CommitRecords
from headrace.model.errors import PeerBroken
from headrace.records.plain import batch_around, plain_batch
from headrace.wire import commit, schema
from headrace.wire import messages as m
from headrace.wire.api import ApiKey
from headrace.wire.commit import CommitDecoder, PackedPartitions
from headrace.wire.framing import encode_response
from tests.fakes.groups import Groups, a_topic

Request = m.OffsetCommitRequest
NAMES = ("orders", "other", "no-such-topic")
VERSIONS = st.sampled_from(commit.VERSIONS)

partitions = st.builds(
    lambda index, offset, leader_epoch, metadata: Request.OffsetCommitRequestPartition(
        partition_index=index,
        committed_offset=offset,
        committed_leader_epoch=leader_epoch,
        committed_metadata=metadata,
    ),
    st.integers(0, 3) | st.integers(-1, 2_000),
    st.integers(-1, 2**63 - 1),
    st.integers(-1, 2**31 - 1),
    st.sampled_from(["", "", None, "", "note"]),
)
topics = st.builds(
    lambda name, given: Request.OffsetCommitRequestTopic(
        name=name, topic_id=a_topic(name, 1).topic_id, partitions=given
    ),
    st.sampled_from(NAMES),
    st.lists(partitions, max_size=6),
)
requests = st.builds(
    lambda group_id, member_id, instance_id, generation, given: Request(
        group_id=group_id,
        member_id=member_id,
        group_instance_id=instance_id,
        generation_id_or_member_epoch=generation,
        topics=given,
    ),
    st.sampled_from(["g", "a group of a longer name " * 7, "ü"]),
    st.sampled_from(["", "", "member"]),
    st.sampled_from([None, None, "instance"]),
    st.sampled_from([-1, -1, 3]),
    st.lists(topics, max_size=3),
)


def encoded(request, version):
    out = bytearray()
    schema.encoder(Request, version)(request, out)
    return bytes(out)


def unpacked(request):
    """The request with all partitions as a list."""
    for topic in request.topics:
        topic.partitions = list(topic.partitions)
    return request


@given(requests, VERSIONS)
def test_the_hand_written_decoder_reads_what_the_compiled_one_reads(request, version):
    data = encoded(request, version)
    expected, _ = schema.decoder(Request, version)(data, 0, len(data))
    assert unpacked(commit.decode(b"??" + data + b"??", 2, 2 + len(data), version)) == expected


@given(requests, VERSIONS, st.data())
def test_broken_bytes_are_refused_or_read_as_the_compiled_decoder_does(request, version, data):
    raw = bytearray(encoded(request, version))
    if data.draw(st.booleans()):
        del raw[data.draw(st.integers(0, len(raw))) :]
    else:
        for _ in range(data.draw(st.integers(1, 3))):
            raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        expected, _ = schema.decoder(Request, version)(raw, 0, len(raw))
    except PeerBroken:
        with pytest.raises(PeerBroken):
            commit.decode(raw, 0, len(raw), version)
    else:
        assert unpacked(commit.decode(raw, 0, len(raw), version)) == expected


def a_commit(group_id, member_id, name, offsets):
    return Request(
        group_id=group_id,
        member_id=member_id,
        topics=[
            Request.OffsetCommitRequestTopic(
                name=name,
                partitions=[
                    Request.OffsetCommitRequestPartition(
                        partition_index=index, committed_offset=offset, committed_metadata=""
                    )
                    for index, offset in enumerate(offsets)
                ],
            )
        ],
    )


def named_by(data, decode=commit.decode):
    return decode(data, 0, len(data), 9).topics[0].partitions.named


def test_a_commit_of_a_known_form_is_not_decoded_again():
    first, second, other = (
        encoded(a_commit("g", member_id, "orders", offsets), 9)
        for member_id, offsets in (("m", [1, 2]), ("m", [2**40, 7]), ("n", [1, 2]))
    )
    assert named_by(first) is named_by(second)
    assert named_by(first) is not named_by(other)


@given(st.lists(st.integers(1, 9), min_size=2, max_size=6), st.data())
def test_requests_of_the_same_size_and_other_layouts_are_told_apart(member_sizes, data):
    for size in member_sizes:
        offsets = data.draw(st.lists(st.integers(0, 2**62), min_size=2, max_size=2))
        request = a_commit("g", "m" * size, "t" * (10 - size), offsets)
        raw = encoded(request, 9)
        assert unpacked(commit.decode(raw, 0, len(raw), 9)) == request


def test_known_forms_use_limited_memory():
    decode = CommitDecoder(kept_size_max=5_000, form_size_max=1_000).decode
    kept = encoded(a_commit("g", "kept", "orders", [1]), 9)
    before = named_by(kept, decode)
    for number in range(50):
        raw = encoded(a_commit("g", f"{number:04d}", "orders", [number]), 9)
        assert list(decode(raw, 0, len(raw), 9).topics[0].partitions)[0].committed_offset == number
    assert named_by(kept, decode) is not before
    long = encoded(a_commit("g", "m", "orders", range(100)), 9)
    assert named_by(long, decode) is not named_by(long, decode), "too large to be remembered"


@given(st.lists(requests, min_size=1, max_size=4), VERSIONS, st.booleans())
def test_packed_commits_do_what_unpacked_ones_do(given_requests, version, has_pending):
    short, long = Groups(), Groups()
    for groups in (short, long):
        if has_pending:
            groups.txn_commit({0: 1, 1: 1})
    for request in given_requests:
        data = encoded(request, version)
        packed = commit.decode(data, 0, len(data), version)
        plain = unpacked(commit.decode(data, 0, len(data), version))
        answers = [
            run(groups, asked, version) for groups, asked in ((short, packed), (long, plain))
        ]
        assert answers[0] == answers[1]
        assert short.log == long.log
    if has_pending:
        for groups in (short, long):
            groups.end_transaction(7, committed=True)
    for group_id in ("g", "ü"):
        for topic in NAMES:
            assert short.offsets(group_id, topic) == long.offsets(group_id, topic)


def run(groups, request, version):
    """As the runtime does: packed records are replayed together."""
    outcome = offset_commit.commit(groups.shard, 1, request, commit_options(version), groups.now)
    if isinstance(outcome.records, CommitRecords):
        assert outcome.records.count, "a reader of the log cannot pass a batch without records"
        groups.log += [(*record, -1) for record in outcome.records]
        outcome.records.replay(groups.shard, 0)
    else:
        groups.run(outcome._replace(replies=()))
    return encode_response(ApiKey.OFFSET_COMMIT, version, 1, outcome.replies[0].response)


@pytest.mark.parametrize("count", [1, 63, 64, 65, 127, 128, 1000, 8192])
@pytest.mark.parametrize("topic_count", [1, 3])
def test_a_packed_section_is_the_one_that_its_records_make(count, topic_count):
    groups = Groups()
    wide = [a_topic(f"wide-{number}", 8192) for number in range(topic_count)]
    groups.cluster.metadata = groups.cluster.metadata.with_topics(wide)
    share = -(-count // topic_count)
    request = Request(
        group_id="g",
        topics=[
            Request.OffsetCommitRequestTopic(
                name=topic.name,
                partitions=[
                    Request.OffsetCommitRequestPartition(
                        partition_index=index, committed_offset=index * 7, committed_metadata=""
                    )
                    for index in range(share)
                ],
            )
            for topic in wide
        ],
    )
    data = encoded(request, 9)
    packed = commit.decode(data, 0, len(data), 9)
    assert all(type(topic.partitions) is PackedPartitions for topic in packed.topics)
    outcome = offset_commit.commit(groups.shard, 1, packed, commit_options(9), groups.now)
    if share * topic_count > 8192:
        assert type(outcome.records) is tuple, "too many for the fast path"
        return
    records = outcome.records
    assert type(records) is CommitRecords and records.count == share * topic_count
    assert batch_around(records.section, records.count, None, groups.now) == plain_batch(
        list(records), None, groups.now
    )


def test_offsets_are_read_whatever_partitions_were_committed_before():
    """Values stay in one piece until one is read or other partitions are committed."""
    groups = Groups()
    expected = {}
    for turn, indexes in enumerate([(0, 1), (0, 1), (1, 2), (3,), (0, 1, 2, 3), (2,), (2,)]):
        offsets = {index: turn * 10 + index for index in indexes}
        request = Request(
            group_id="g",
            topics=[
                Request.OffsetCommitRequestTopic(
                    name="orders",
                    partitions=[
                        Request.OffsetCommitRequestPartition(
                            partition_index=index, committed_offset=offset, committed_metadata=""
                        )
                        for index, offset in offsets.items()
                    ],
                )
            ],
        )
        data = encoded(request, 9)
        run(groups, commit.decode(data, 0, len(data), 9), 9)
        expected |= offsets
        if turn % 2:
            found = groups.offsets("g", "orders")
            assert {index: found[index] for index in expected} == expected
