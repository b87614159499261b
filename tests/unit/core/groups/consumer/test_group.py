"""Offsets of consumer groups: who may commit and read them, and when they expire."""

from headrace.core.groups.offset_fetch import fetch
from headrace.model.errors import ErrorCode
from headrace.wire import messages as m
from tests.fakes.consumers import Client, Consumers

MINUTE_MS = 60_000


def a_group_of_two():
    """``a`` at epoch 3 owns two partitions since epoch 2; ``b`` owns the others."""
    groups = Consumers()
    first, second = Client(groups, "a").join(), Client(groups, "b").join()
    groups.settle_all(first, second)
    return groups, first, second


def test_a_member_commits_with_its_epoch():
    groups, first, second = a_group_of_two()
    assert first.member_epoch == second.member_epoch == 3
    assert groups.commit({0: 5}, "a", 3) == {0: ErrorCode.NONE}
    assert groups.offsets() == {0: 5}


def test_an_older_epoch_is_accepted_for_partitions_owned_since():
    groups, first, second = a_group_of_two()
    (kept, *_), (new, *_) = first.owned["orders"], second.owned["orders"]
    assert groups.commit({kept: 5}, "a", 2) == {kept: ErrorCode.NONE}
    # b never owned this partition at epoch 2.
    assert groups.commit({new: 5}, "b", 2) == {new: ErrorCode.STALE_MEMBER_EPOCH}
    # One partition of another member rejects the whole request.
    assert groups.commit({kept: 6, new: 6}, "a", 2) == {
        kept: ErrorCode.STALE_MEMBER_EPOCH,
        new: ErrorCode.STALE_MEMBER_EPOCH,
    }
    assert groups.offsets() == {kept: 5}


def test_offsets_of_partitions_being_given_back_may_be_committed():
    groups = Consumers()
    first = Client(groups, "a").join()
    Client(groups, "b").join()
    first.beat()
    assert groups.commit(dict.fromkeys(range(4), 1), "a", 2) == dict.fromkeys(
        range(4), ErrorCode.NONE
    )


def test_an_epoch_from_the_future_is_stale_too():
    groups, first, _ = a_group_of_two()
    assert groups.commit({0: 5}, "a", 4) == {0: ErrorCode.STALE_MEMBER_EPOCH}


def test_only_members_commit_while_there_are_members():
    groups, first, second = a_group_of_two()
    assert groups.commit({0: 5}, "c", 3) == {0: ErrorCode.UNKNOWN_MEMBER_ID}
    assert groups.commit({0: 5}) == {0: ErrorCode.UNKNOWN_MEMBER_ID}
    first.leave(), second.leave()
    assert groups.commit({0: 5}) == {0: ErrorCode.NONE}
    assert groups.group.state_name == "Empty"


def test_clients_without_member_epochs_are_rejected():
    groups, first, _ = a_group_of_two()
    assert groups.commit({0: 5}, "a", 3, supports_member_epoch=False) == {
        0: ErrorCode.UNSUPPORTED_VERSION
    }


def test_in_a_transaction_a_wrong_epoch_is_an_illegal_generation():
    groups, first, second = a_group_of_two()
    (new, *_) = second.owned["orders"]
    assert groups.txn_commit({0: 5}, member_id="a", generation=3) == {0: ErrorCode.NONE}
    assert groups.txn_commit({new: 5}, member_id="b", generation=2) == {
        new: ErrorCode.ILLEGAL_GENERATION
    }
    assert groups.txn_commit({0: 5}, member_id="c", generation=3) == {
        0: ErrorCode.UNKNOWN_MEMBER_ID
    }
    # A producer that could not name the member.
    assert groups.txn_commit({0: 6}) == {0: ErrorCode.NONE}


def fetch_code(groups, member_id, member_epoch):
    request = m.OffsetFetchRequest.OffsetFetchRequestGroup(
        group_id="g", member_id=member_id, member_epoch=member_epoch, topics=None
    )
    return groups.ask(
        lambda ticket: fetch(groups.shard, ticket, request, require_stable=False, by_topic_id=False)
    ).error_code


def test_offsets_are_read_with_the_current_epoch_or_without_a_membership_claim():
    groups, first, _ = a_group_of_two()
    assert fetch_code(groups, None, -1) == ErrorCode.NONE
    assert fetch_code(groups, "a", 3) == ErrorCode.NONE
    assert fetch_code(groups, "a", 2) == ErrorCode.STALE_MEMBER_EPOCH
    assert fetch_code(groups, "c", 3) == ErrorCode.UNKNOWN_MEMBER_ID
    assert fetch_code(groups, "", 0) == ErrorCode.UNKNOWN_MEMBER_ID


def test_offsets_of_unsubscribed_topics_expire_by_their_own_age():
    groups = Consumers(offsets_retention_minutes=1)
    client = Client(groups, "a").join()
    groups.commit({0: 5}, "a", 2)
    groups.commit({0: 7}, "a", 2, topic="other")
    for _ in range(20):
        groups.pass_time(30_000)
        client.beat()
    assert groups.offsets() == {0: 5} and groups.offsets(topic="other") == {}
    client.leave()
    groups.pass_time(20 * MINUTE_MS)
    assert groups.offsets() == {}
    assert groups.shard.groups == {}  # a group without members and offsets is removed
    groups.reload()
    assert groups.shard.groups == {}


def test_offsets_of_subscribed_topics_are_not_deleted():
    groups = Consumers()
    Client(groups, "a", None, pattern="ord.*").join()
    groups.commit({0: 5}, "a", 2)
    groups.commit({0: 7}, "a", 2, topic="other")
    (topic,) = groups.delete_offsets(0).topics
    assert topic.partitions[0].error_code == ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
    (topic,) = groups.delete_offsets(0, topic="other").topics
    assert topic.partitions[0].error_code == ErrorCode.NONE
    assert groups.offsets(topic="other") == {} and groups.offsets() == {0: 5}


def test_offsets_stay_with_a_group_that_changes_its_kind():
    groups = Consumers()
    groups.commit({0: 5})
    assert groups.group.kind.value == "classic"
    Client(groups, "a").join()
    assert groups.group.kind.value == "consumer" and groups.offsets() == {0: 5}
    groups.reload()
    assert groups.group.kind.value == "consumer" and groups.offsets() == {0: 5}
