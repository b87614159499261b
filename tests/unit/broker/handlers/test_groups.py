"""The versions of the group APIs, as options for the shard."""

import pytest

from headrace.broker.handlers.groups import commit_options, join_options
from headrace.wire import messages as m


@pytest.mark.parametrize(
    ("version", "requires_known_member", "supports_skip_assignment"),
    [(0, False, False), (3, False, False), (4, True, False), (8, True, False), (9, True, True)],
)
def test_join_options_follow_the_version(version, requires_known_member, supports_skip_assignment):
    assert join_options(version) == (requires_known_member, supports_skip_assignment)


@pytest.mark.parametrize(
    ("version", "by_topic_id", "supports_member_epoch"),
    [(2, False, False), (8, False, False), (9, False, True), (10, True, True)],
)
def test_commit_options_follow_the_version(version, by_topic_id, supports_member_epoch):
    options = commit_options(version)
    assert options[:2] == (by_topic_id, supports_member_epoch)
    assert commit_options(version) is options, "commits compare their options by identity"


def test_commit_options_encode_in_their_version():
    response = m.OffsetCommitResponse(
        topics=[m.OffsetCommitResponse.OffsetCommitResponseTopic(name="orders", topic_id=bytes(16))]
    )
    by_name, by_id = bytearray(), bytearray()
    commit_options(9).encode_response(response, by_name)
    commit_options(10).encode_response(response, by_id)
    assert b"orders" in by_name and b"orders" not in by_id
