"""OffsetCommit and TxnOffsetCommit: who may commit, and what is taken."""

import pytest

from headrace.model.errors import ErrorCode, Rejected
from tests.fakes.groups import Groups, a_topic

ORDERS_ID = a_topic("orders", 1).topic_id
OK = ErrorCode.NONE


def test_a_consumer_without_a_group_commits_without_a_generation():
    groups = Groups()
    assert groups.commit({0: 5, 1: 6}) == {0: OK, 1: OK}
    assert groups.offsets() == {0: 5, 1: 6}
    assert groups.group.state_name == "Empty" and groups.group.protocol_type == ""


def test_a_member_commits_under_its_generation():
    groups = Groups()
    (member,), generation = groups.stable()
    assert groups.commit({0: 5}, member, generation) == {0: OK}
    assert groups.offsets() == {0: 5}


@pytest.mark.parametrize(
    ("member_id", "generation", "code"),
    [
        ("stranger", 1, ErrorCode.UNKNOWN_MEMBER_ID),
        ("", 1, ErrorCode.UNKNOWN_MEMBER_ID),
        ("", -1, ErrorCode.UNKNOWN_MEMBER_ID),
        ("client-#1", 0, ErrorCode.ILLEGAL_GENERATION),
        ("client-#1", 2, ErrorCode.ILLEGAL_GENERATION),
        ("client-#1", -1, ErrorCode.ILLEGAL_GENERATION),
    ],
)
def test_a_commit_with_a_wrong_identity_is_rejected(member_id, generation, code):
    groups = Groups()
    groups.stable()
    assert groups.commit({0: 5}, member_id, generation) == {0: code}
    assert groups.offsets() == {}


def test_an_empty_group_has_no_members():
    groups = Groups()
    groups.commit({0: 1})
    assert groups.commit({0: 2}, "m", 3) == {0: ErrorCode.UNKNOWN_MEMBER_ID}
    assert groups.commit({0: 2}, "m", -1) == {0: OK}, "as in Kafka: the commit claims no membership"
    assert groups.offsets() == {0: 2}


@pytest.mark.parametrize(
    ("supports_member_epoch", "code"),
    [(False, ErrorCode.ILLEGAL_GENERATION), (True, ErrorCode.GROUP_ID_NOT_FOUND)],
)
def test_an_unknown_group_has_no_generations(supports_member_epoch, code):
    groups = Groups()
    codes = groups.commit({0: 5}, "m", 1, supports_member_epoch=supports_member_epoch)
    assert codes == {0: code}
    assert groups.shard.groups == {}


def test_a_commit_of_an_older_generation_is_rejected():
    groups = Groups()
    (member,), generation = groups.stable()
    newcomer = groups.join()
    assert groups.commit({0: 5}, member, generation) == {0: OK}, "its last chance"
    again = groups.join(member)
    assert groups.commit({0: 6}, member, generation) == {0: ErrorCode.ILLEGAL_GENERATION}
    late = groups.commit({0: 6}, member, generation + 1)
    assert late == {0: ErrorCode.REBALANCE_IN_PROGRESS}, "another member may own the partition now"
    groups.settle([again, newcomer])
    assert groups.commit({0: 6}, member, generation + 1) == {0: OK}
    assert groups.offsets() == {0: 6}


def test_partitions_that_do_not_exist_are_refused_one_by_one():
    groups = Groups()
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert groups.commit({0: 1, 4: 1, -1: 1}) == {0: OK, 4: unknown, -1: unknown}
    assert groups.commit({0: 1}, topic="nothing") == {0: unknown}
    assert groups.offsets() == {0: 1}


def test_unknown_partitions_are_reported_even_to_an_unknown_member():
    groups = Groups()
    groups.stable()
    assert groups.commit({0: 1, 9: 1}, "stranger", 1) == {
        0: ErrorCode.UNKNOWN_MEMBER_ID,
        9: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }


def test_topics_may_be_named_by_their_id():
    groups = Groups()
    assert groups.commit({0: 7}, topic="", topic_id=ORDERS_ID) == {0: OK}
    assert groups.commit({0: 7}, topic="", topic_id=b"x" * 16) == {0: ErrorCode.UNKNOWN_TOPIC_ID}
    assert groups.commit({9: 7}, topic="", topic_id=ORDERS_ID) == {
        9: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    }
    (topic,) = groups.fetch([0, 1], topic="", topic_id=ORDERS_ID).topics
    assert topic.topic_id == ORDERS_ID
    assert [x.committed_offset for x in topic.partitions] == [7, -1]
    (topic,) = groups.fetch([0], topic="", topic_id=b"x" * 16).topics
    assert topic.partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID


def test_metadata_has_a_limit_and_what_fits_is_read_back():
    groups = Groups(offset_metadata_max_bytes=10)
    assert groups.commit({0: 1}, metadata="ten chars!") == {0: OK}
    assert groups.commit({1: 1}, metadata="eleven char") == {1: ErrorCode.OFFSET_METADATA_TOO_LARGE}
    assert groups.commit({2: 1}, metadata=None) == {2: OK}
    (topic,) = groups.fetch([0, 1, 2]).topics
    assert [x.metadata for x in topic.partitions] == ["ten chars!", "", ""]
    assert [x.committed_offset for x in topic.partitions] == [1, -1, 1]


def test_a_group_id_of_ten_thousand_letters_works_and_one_too_long_for_the_log_is_rejected():
    groups = Groups()
    assert groups.commit({0: 3}, group="g" * 10_000) == {0: OK}
    groups.reload()
    assert groups.offsets("g" * 10_000) == {0: 3}
    with pytest.raises(Rejected) as refused:
        groups.commit({0: 3}, group="g" * 40_000)
    assert refused.value.code == ErrorCode.INVALID_GROUP_ID


def test_a_transactional_commit_must_name_a_valid_member_if_it_names_one():
    groups = Groups()
    (member,), generation = groups.stable()
    assert groups.txn_commit({0: 1}) == {0: OK}, "old versions could not name a member"
    assert groups.txn_commit({0: 1}, member_id="x", generation=generation) == {
        0: ErrorCode.UNKNOWN_MEMBER_ID
    }
    assert groups.txn_commit({0: 1}, member_id=member, generation=9) == {
        0: ErrorCode.ILLEGAL_GENERATION
    }
    assert groups.txn_commit({0: 1}, member_id=member, generation=generation) == {0: OK}
    assert groups.txn_commit({0: 1}, group="none", generation=2, member_id="m") == {
        0: ErrorCode.ILLEGAL_GENERATION
    }
