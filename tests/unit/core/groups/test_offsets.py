"""Offsets: who may commit, what is read back, what grows old, what a transaction holds."""

import pytest

from headrace.core.groups.offsets import CommittedOffset, decode_value, encode_value, key_prefix
from headrace.model.errors import ErrorCode, PeerBroken, Rejected
from headrace.wire import messages as m
from headrace.wire.framing import decode_record_key, encode_record_key, encode_versioned
from tests.fakes.groups import SESSION_MS, START, Groups, a_topic, subscription

MINUTE_MS = 60_000
WEEK_MS = 7 * 24 * 60 * MINUTE_MS
CHECK_MS = 10 * MINUTE_MS
ORDERS_ID = a_topic("orders", 1).topic_id

OK = ErrorCode.NONE


# Who may commit.


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
def test_who_lies_about_itself_commits_nothing(member_id, generation, code):
    groups = Groups()
    groups.stable()
    assert groups.commit({0: 5}, member_id, generation) == {0: code}
    assert groups.offsets() == {}


def test_an_empty_group_knows_no_members():
    groups = Groups()
    groups.commit({0: 1})
    assert groups.commit({0: 2}, "m", 3) == {0: ErrorCode.UNKNOWN_MEMBER_ID}
    assert groups.commit({0: 2}, "m", -1) == {0: OK}, "as Kafka: nobody is claimed to be here"
    assert groups.offsets() == {0: 2}


@pytest.mark.parametrize(
    ("version", "code"), [(8, ErrorCode.ILLEGAL_GENERATION), (9, ErrorCode.GROUP_ID_NOT_FOUND)]
)
def test_a_group_that_is_not_there_has_no_generations(version, code):
    groups = Groups()
    assert groups.commit({0: 5}, "m", 1, version=version) == {0: code}
    assert groups.shard.groups == {}


def test_no_commit_of_an_older_generation_is_taken():
    groups = Groups()
    (member,), generation = groups.stable()
    newcomer = groups.join()
    assert groups.commit({0: 5}, member, generation) == {0: OK}, "its last chance"
    again = groups.join(member)
    assert groups.commit({0: 6}, member, generation) == {0: ErrorCode.ILLEGAL_GENERATION}
    late = groups.commit({0: 6}, member, generation + 1)
    assert late == {0: ErrorCode.REBALANCE_IN_PROGRESS}, "it may be another's partition now"
    groups.settle([again, newcomer])
    assert groups.commit({0: 6}, member, generation + 1) == {0: OK}
    assert groups.offsets() == {0: 6}


# What is committed.


def test_partitions_that_do_not_exist_are_refused_one_by_one():
    groups = Groups()
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert groups.commit({0: 1, 4: 1, -1: 1}) == {0: OK, 4: unknown, -1: unknown}
    assert groups.commit({0: 1}, topic="nothing") == {0: unknown}
    assert groups.offsets() == {0: 1}


def test_unknown_partitions_are_unknown_even_to_a_stranger():
    groups = Groups()
    groups.stable()
    assert groups.commit({0: 1, 9: 1}, "stranger", 1) == {
        0: ErrorCode.UNKNOWN_MEMBER_ID,
        9: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }


def test_topics_are_named_by_their_id_from_version_10_on():
    groups = Groups()
    assert groups.commit({0: 7}, topic="", topic_id=ORDERS_ID, version=10) == {0: OK}
    assert groups.commit({0: 7}, topic="", topic_id=b"x" * 16, version=10) == {
        0: ErrorCode.UNKNOWN_TOPIC_ID
    }
    assert groups.commit({9: 7}, topic="", topic_id=ORDERS_ID, version=10) == {
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


def test_a_group_id_of_ten_thousand_letters_is_kept_and_one_too_long_for_the_log_is_refused():
    groups = Groups()
    assert groups.commit({0: 3}, group="g" * 10_000) == {0: OK}
    groups.reload()
    assert groups.offsets("g" * 10_000) == {0: 3}
    with pytest.raises(Rejected) as refused:
        groups.commit({0: 3}, group="g" * 40_000)
    assert refused.value.code == ErrorCode.INVALID_GROUP_ID


def test_offsets_of_a_group_that_never_was_are_minus_one_without_an_error():
    groups = Groups()
    answer = groups.fetch([0, 77], group="none")
    assert answer.error_code == OK
    assert [(x.committed_offset, x.error_code) for x in answer.topics[0].partitions] == [
        (-1, OK),
        (-1, OK),
    ]
    assert groups.fetch(group="none").topics == []


def test_offsets_survive_a_restart():
    groups = Groups()
    groups.commit({0: 5, 1: 6}, metadata="m")
    groups.commit({0: 7})
    groups.commit({1: 1}, topic="other", group="h")
    groups.reload()
    assert groups.offsets() == {0: 7, 1: 6}
    assert groups.offsets("h", "other") == {1: 1}
    assert groups.fetch([1]).topics[0].partitions[0].metadata == "m"


def test_offsets_of_a_topic_that_was_made_anew_are_not_those_of_the_old_one():
    groups = Groups()
    groups.commit({0: 5})
    groups.cluster.metadata = groups.cluster.metadata.with_topics(
        [a_topic("orders", 4, fill="new")]
    )
    assert groups.fetch([0]).topics[0].partitions[0].committed_offset == -1
    groups.commit({0: 0})
    assert groups.fetch([0]).topics[0].partitions[0].committed_offset == 0


def test_offsets_of_a_topic_that_is_gone_can_still_be_listed_by_name_but_not_by_id():
    groups = Groups()
    groups.commit({0: 5})
    groups.cluster.metadata = groups.cluster.metadata.with_topics([], ["orders"])
    assert groups.offsets() == {0: 5}
    request = m.OffsetFetchRequest.OffsetFetchRequestGroup(group_id="g", topics=None)
    answer = groups.ask(
        lambda ticket: groups.shard.fetch_offsets(
            ticket, request, require_stable=False, by_topic_id=True
        )
    )
    assert answer.topics == []


# What goes.


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


def test_offsets_can_be_deleted_unless_somebody_reads_the_topic():
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


def test_offsets_of_a_group_whose_subscriptions_cannot_be_read_stay():
    groups = Groups()
    groups.stable(protocols=(("range", b"garbage"),))
    assert groups.group.is_subscribed("anything")
    groups.stable(group="h", protocol_type="connect")
    assert groups.delete_offsets(0, group="h").error_code == ErrorCode.NON_EMPTY_GROUP
    assert groups.delete_offsets(0, group="none").error_code == ErrorCode.GROUP_ID_NOT_FOUND


def test_a_group_with_members_cannot_be_deleted_and_one_without_goes_with_its_offsets():
    groups = Groups()
    (member,), generation = groups.stable()
    groups.commit({0: 5}, member, generation)
    assert groups.delete() == ErrorCode.NON_EMPTY_GROUP
    groups.leave(member)
    groups.txn_commit({1: 9})
    assert groups.delete() == OK
    assert groups.shard.groups == {} and groups.offsets() == {}
    assert groups.delete() == ErrorCode.GROUP_ID_NOT_FOUND
    groups.end_transaction(7, committed=True)
    assert groups.offsets() == {}, "what was pending is gone too"
    groups.reload()
    assert groups.shard.groups == {}


def test_offsets_of_a_simple_group_expire_so_long_after_their_commit_and_not_before():
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
    assert groups.offsets(topic="other") == {}, "nobody is subscribed to it"


def test_offsets_expire_so_long_after_the_group_became_empty():
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


def test_an_offset_set_after_the_group_became_empty_counts_from_then():
    groups = Groups()
    (member,), _ = groups.stable()
    groups.leave(member)
    groups.commit({0: 1})
    groups.pass_time(WEEK_MS // 2)
    groups.commit({1: 1})
    groups.pass_time(WEEK_MS // 2 + CHECK_MS)
    assert groups.offsets() == {1: 1}


def test_a_retention_time_of_the_commit_counts_instead_of_the_brokers():
    groups = Groups()
    groups.commit({0: 5}, retention_ms=CHECK_MS, version=4)
    groups.commit({1: 5}, retention_ms=2 * WEEK_MS, version=4)
    assert groups.offsets() == {0: 5, 1: 5}
    groups.pass_time(CHECK_MS)
    assert groups.offsets() == {1: 5}
    groups.pass_time(WEEK_MS + CHECK_MS)
    assert groups.offsets() == {1: 5}
    groups.pass_time(WEEK_MS)
    assert groups.offsets() == {}


def test_a_retention_time_without_end_is_no_error():
    groups = Groups()
    assert groups.commit({0: 5}, retention_ms=2**63 - 1, version=4) == {0: ErrorCode.NONE}
    groups.pass_time(2 * WEEK_MS)
    assert groups.offsets() == {0: 5}


def test_a_group_without_members_and_offsets_goes_at_the_next_look():
    groups = Groups()
    (member,), _ = groups.stable()
    groups.leave(member)
    groups.pass_time(CHECK_MS - 1)
    assert groups.list()[0].group_id == "g"
    groups.pass_time(1)
    assert groups.list() == []


def test_a_group_somebody_is_about_to_join_does_not_go():
    groups = Groups(group_max_session_timeout_ms=2 * WEEK_MS)
    groups.join(version=4, session_ms=WEEK_MS)
    groups.pass_time(2 * CHECK_MS)
    assert "g" in groups.shard.groups


def test_many_groups_are_looked_at_in_several_goes():
    groups = Groups()
    for number in range(450):
        groups.commit({0: number}, group=f"g{number}")
    groups.pass_time(WEEK_MS + CHECK_MS)
    assert groups.shard.groups == {}


# Transactions.


def test_offsets_of_a_transaction_count_once_it_is_committed():
    groups = Groups()
    groups.commit({0: 1})
    assert groups.txn_commit({0: 5, 1: 6}) == {0: OK, 1: OK}
    assert groups.offsets() == {0: 1}
    groups.end_transaction(7, committed=True)
    assert groups.offsets() == {0: 5, 1: 6}


def test_offsets_of_an_aborted_transaction_are_dropped():
    groups = Groups()
    groups.commit({0: 1})
    groups.txn_commit({0: 5})
    groups.end_transaction(7, committed=False)
    assert groups.offsets() == {0: 1}
    groups.end_transaction(7, committed=True)
    assert groups.offsets() == {0: 1}, "there is nothing any more that could be committed"


@pytest.mark.parametrize("committed", [True, False])
def test_who_asks_for_stable_offsets_is_told_to_wait_for_the_transaction(committed):
    groups = Groups()
    groups.commit({0: 1, 1: 2})
    groups.txn_commit({0: 5})
    (topic,) = groups.fetch([0, 1], require_stable=True).topics
    assert [(x.committed_offset, x.error_code) for x in topic.partitions] == [
        (-1, ErrorCode.UNSTABLE_OFFSET_COMMIT),
        (2, OK),
    ]
    (everything,) = groups.fetch(require_stable=True).topics
    assert everything.partitions[0].error_code == ErrorCode.UNSTABLE_OFFSET_COMMIT
    assert groups.fetch([0]).topics[0].partitions[0].committed_offset == 1
    groups.end_transaction(7, committed=committed)
    (topic,) = groups.fetch([0], require_stable=True).topics
    assert topic.partitions[0].committed_offset == (5 if committed else 1)


def test_a_commit_after_a_pending_one_wins_over_it():
    groups = Groups()
    groups.txn_commit({0: 5})
    groups.commit({0: 9})
    (topic,) = groups.fetch([0], require_stable=True).topics
    assert topic.partitions[0].error_code == ErrorCode.UNSTABLE_OFFSET_COMMIT
    groups.end_transaction(7, committed=True)
    assert groups.offsets() == {0: 9}
    groups.reload()
    assert groups.offsets() == {0: 9}


def test_two_transactions_may_hold_the_same_offset():
    groups = Groups()
    groups.txn_commit({0: 5}, producer_id=7)
    groups.txn_commit({0: 6}, producer_id=8)
    groups.end_transaction(8, committed=True)
    assert groups.offsets() == {0: 6}
    (topic,) = groups.fetch([0], require_stable=True).topics
    assert topic.partitions[0].error_code == ErrorCode.UNSTABLE_OFFSET_COMMIT
    groups.end_transaction(7, committed=False)
    assert groups.fetch([0], require_stable=True).topics[0].partitions[0].committed_offset == 6


def test_an_open_transaction_is_still_open_after_a_restart():
    groups = Groups()
    groups.txn_commit({0: 5})
    groups.reload()
    assert groups.offsets() == {}
    groups.end_transaction(7, committed=True)
    assert groups.offsets() == {0: 5}
    groups.reload()
    assert groups.offsets() == {0: 5}


def test_a_transaction_must_name_its_member_rightly_if_it_names_one():
    groups = Groups()
    (member,), generation = groups.stable()
    assert groups.txn_commit({0: 1}) == {0: OK}, "old versions could not"
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


def test_offsets_that_a_transaction_holds_do_not_expire():
    groups = Groups()
    groups.commit({0: 5})
    groups.txn_commit({0: 6})
    groups.pass_time(2 * WEEK_MS)
    assert groups.offsets() == {0: 5}
    groups.end_transaction(7, committed=False)
    groups.pass_time(CHECK_MS)
    assert groups.offsets() == {}


# Looking at groups.


def test_groups_are_listed_by_state_and_kind():
    groups = Groups()
    groups.stable(group="stable")
    groups.commit({0: 1}, group="simple")
    listed = {x.group_id: x for x in groups.list()}
    assert listed["stable"].group_state == "Stable" and listed["stable"].group_type == "classic"
    assert listed["stable"].protocol_type == "consumer" and listed["simple"].protocol_type == ""
    assert [x.group_id for x in groups.list(states=["empty"])] == ["simple"]
    assert [x.group_id for x in groups.list(states=["stable", "nonsense"])] == ["stable"]
    assert groups.list(kinds=["consumer"]) == []
    assert len(groups.list(kinds=["classic"])) == 2


# The bytes.


@pytest.mark.parametrize(
    "committed",
    [
        CommittedOffset(5, -1, "", START, -1, ORDERS_ID),
        CommittedOffset(2**62, 7, "ünicode", START, -1, ORDERS_ID),
        CommittedOffset(5, 3, "", START, -1, bytes(16)),
        CommittedOffset(5, -1, "old", START, START + 5, bytes(16)),
    ],
)
def test_a_value_is_read_as_it_was_written(committed):
    assert decode_value(encode_value(committed)) == committed


def test_a_plain_commit_is_written_as_the_general_codec_writes_it():
    groups = Groups()
    groups.commit({3: 42})
    ((record_key, value, _),) = groups.log
    assert value == encode_versioned(
        m.OffsetCommitValue(
            offset=42, leader_epoch=-1, metadata="", commit_timestamp=START, topic_id=ORDERS_ID
        ),
        4,
    )
    key = m.OffsetCommitKey(group="g", topic="orders", partition=3)
    assert record_key == encode_record_key(key)
    assert decode_record_key((m.OffsetCommitKey,), record_key) == key
    assert key_prefix("g", "orders") == record_key[:-4]


@pytest.mark.parametrize("version", [0, 1, 2, 3, 4])
def test_values_of_all_versions_are_loaded(version):
    groups = Groups()
    value = encode_versioned(
        m.OffsetCommitValue(offset=9, metadata="old", commit_timestamp=START), version
    )
    key = encode_record_key(m.OffsetCommitKey(group="g", topic="orders", partition=0))
    groups.log.append((key, value, -1))
    groups.reload()
    assert groups.offsets() == {0: 9}
    assert groups.fetch([0]).topics[0].partitions[0].metadata == "old"


def test_a_value_of_an_unknown_version_is_not_taken_for_something_else():
    groups = Groups()
    key = encode_record_key(m.OffsetCommitKey(group="g", topic="orders", partition=0))
    groups.log.append((key, b"\0\x05rest", -1))
    with pytest.raises(ValueError, match="version 5"):
        groups.reload()


def test_keys_of_an_unknown_kind_are_passed_over():
    groups = Groups()
    groups.commit({0: 1})
    groups.log.append((b"\x03\xe7whatever", b"\0\0", -1))
    groups.log.append((b"\x03\xe7whatever", None, -1))
    groups.reload()
    assert groups.offsets() == {0: 1}


def test_a_group_record_that_is_cut_is_refused():
    groups = Groups()
    groups.stable(protocols=(("range", subscription("orders")),))
    key, value, _ = groups.log[-1]
    groups.log.append((key, value[:-3], -1))
    with pytest.raises(PeerBroken):
        groups.reload()
