"""OffsetDelete, deleted topics, and expiration."""

from headrace.model.errors import ErrorCode
from tests.fakes.groups import SESSION_MS, Groups

MINUTE_MS = 60_000
WEEK_MS = 7 * 24 * 60 * MINUTE_MS
CHECK_MS = 10 * MINUTE_MS
OK = ErrorCode.NONE


def test_deleted_topics_take_their_offsets_with_them():
    groups = Groups()
    groups.commit({0: 5})
    groups.commit({0: 5}, topic="other")
    groups.txn_commit({1: 9})
    groups.run(groups.shard.topics_deleted(["orders"], groups.now))
    groups.end_transaction(7, committed=True)
    assert groups.offsets() == {}
    assert groups.offsets(topic="other") == {0: 5}
    groups.reload()
    assert groups.offsets() == {}


def test_offsets_can_be_deleted_unless_the_topic_is_subscribed():
    groups = Groups()
    (member,), generation = groups.stable()
    groups.commit({0: 5, 1: 5}, member, generation)
    groups.commit({0: 5, 1: 6}, member, generation, topic="other")
    answer = groups.delete_offsets(0)
    assert answer.topics[0].partitions[0].error_code == ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
    answer = groups.delete_offsets(0, 9, topic="other")
    assert [x.error_code for x in answer.topics[0].partitions] == [
        OK,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    assert groups.offsets() == {0: 5, 1: 5}
    assert groups.offsets(topic="other") == {1: 6}
    groups.leave(member)
    assert groups.delete_offsets(0, 3).topics[0].partitions[0].error_code == OK
    assert groups.offsets() == {1: 5}


def test_offsets_of_a_group_with_unreadable_subscriptions_cannot_be_deleted():
    groups = Groups()
    groups.stable(protocols=(("range", b"garbage"),))
    assert groups.group.is_subscribed("anything")
    groups.stable(group="h", protocol_type="connect")
    assert groups.delete_offsets(0, group="h").error_code == ErrorCode.NON_EMPTY_GROUP
    assert groups.delete_offsets(0, group="none").error_code == ErrorCode.GROUP_ID_NOT_FOUND


def test_offsets_of_a_simple_group_expire_by_their_commit_and_not_before():
    groups = Groups()
    groups.commit({0: 5})
    groups.pass_time(CHECK_MS)
    groups.commit({1: 6})
    groups.pass_time(WEEK_MS - CHECK_MS - 1)
    assert groups.offsets() == {0: 5, 1: 6}
    groups.pass_time(1)
    assert groups.offsets() == {1: 6}
    groups.pass_time(CHECK_MS)
    assert groups.offsets() == {} and groups.shard.groups == {}
    groups.reload()
    assert groups.shard.groups == {}


def test_offsets_do_not_expire_while_the_group_has_members_that_read_the_topic():
    groups = Groups()
    (member,), generation = groups.stable(session_ms=1_800_000)
    groups.commit({0: 5}, member, generation)
    groups.commit({0: 5}, member, generation, topic="other")
    for _ in range(2 * WEEK_MS // 1_000_000):
        groups.pass_time(1_000_000)
        groups.heartbeat(member, generation)
    assert groups.offsets() == {0: 5}
    assert groups.offsets(topic="other") == {}, "no member subscribes to it"


def test_offsets_expire_by_the_time_the_group_became_empty():
    groups = Groups()
    (member,), generation = groups.stable()
    groups.commit({0: 5}, member, generation)
    for _ in range(1 + WEEK_MS // (SESSION_MS - 1)):
        groups.pass_time(SESSION_MS - 1)
        groups.heartbeat(member, generation)
    groups.leave(member)
    groups.reload()
    groups.pass_time(WEEK_MS - 1)
    assert groups.offsets() == {0: 5}
    groups.pass_time(CHECK_MS)
    assert groups.offsets() == {} and groups.shard.groups == {}


def test_an_offset_set_after_the_group_became_empty_expires_by_its_commit():
    groups = Groups()
    (member,), _ = groups.stable()
    groups.leave(member)
    groups.commit({0: 1})
    groups.pass_time(WEEK_MS // 2)
    groups.commit({1: 1})
    groups.pass_time(WEEK_MS // 2 + CHECK_MS)
    assert groups.offsets() == {1: 1}


def test_the_retention_time_of_a_commit_overrides_the_brokers():
    groups = Groups()
    groups.commit({0: 5}, retention_ms=CHECK_MS)
    groups.commit({1: 5}, retention_ms=2 * WEEK_MS)
    assert groups.offsets() == {0: 5, 1: 5}
    groups.pass_time(CHECK_MS)
    assert groups.offsets() == {1: 5}
    groups.pass_time(WEEK_MS + CHECK_MS)
    assert groups.offsets() == {1: 5}
    groups.pass_time(WEEK_MS)
    assert groups.offsets() == {}


def test_the_largest_retention_time_is_accepted():
    groups = Groups()
    assert groups.commit({0: 5}, retention_ms=2**63 - 1) == {0: ErrorCode.NONE}
    groups.pass_time(2 * WEEK_MS)
    assert groups.offsets() == {0: 5}


def test_a_group_without_members_and_offsets_is_removed_at_the_next_check():
    groups = Groups()
    (member,), _ = groups.stable()
    groups.leave(member)
    groups.pass_time(CHECK_MS - 1)
    assert groups.list()[0].group_id == "g"
    groups.pass_time(1)
    assert groups.list() == []


def test_a_group_with_a_pending_member_is_not_removed():
    groups = Groups(group_max_session_timeout_ms=2 * WEEK_MS)
    groups.join(requires_known_member=True, session_ms=WEEK_MS)
    groups.pass_time(2 * CHECK_MS)
    assert "g" in groups.shard.groups


def test_many_groups_are_checked_in_several_rounds():
    groups = Groups()
    for number in range(450):
        groups.commit({0: number}, group=f"g{number}")
    groups.pass_time(WEEK_MS + CHECK_MS)
    assert groups.shard.groups == {}


def test_offsets_that_a_transaction_holds_do_not_expire():
    groups = Groups()
    groups.commit({0: 5})
    groups.txn_commit({0: 6})
    groups.pass_time(2 * WEEK_MS)
    assert groups.offsets() == {0: 5}
    groups.end_transaction(7, committed=False)
    groups.pass_time(CHECK_MS)
    assert groups.offsets() == {}
