"""Members of both protocols in one consumer group."""

from headrace.model.errors import ErrorCode
from tests.fakes.classic_consumers import (
    ALL,
    COOPERATIVE,
    EAGER,
    ClassicClient,
    a_classic_group,
    a_mixed_group,
    cooperative,
    embedded,
    opened,
)
from tests.fakes.consumers import Client, Consumers
from tests.fakes.groups import REBALANCE_MS, SESSION_MS


def test_a_classic_member_gives_partitions_back_in_one_join_and_settles_in_the_next():
    groups = Consumers()
    (old_id,) = a_classic_group(groups)
    Client(groups, "a").join()
    old = ClassicClient(groups, old_id, 1, ALL)
    assert old.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS
    old.join()
    assert old.generation == 1  # it must give partitions back first
    assert old.sync().error_code == ErrorCode.NONE
    assert len(old.owned["orders"]) == 2
    assert old.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS  # so that it reports it
    old.join()
    assert old.generation == 2
    assert old.sync().error_code == ErrorCode.NONE
    assert old.heartbeat() == ErrorCode.NONE


def test_an_eager_classic_member_has_nothing_when_it_joins():
    groups = Consumers()
    (old_id,) = a_classic_group(groups, protocols=EAGER)
    Client(groups, "a").join()
    answer = groups.join(
        old_id, protocols=EAGER
    )  # version 0 of the subscription reports no partitions
    assert answer.generation_id == 2
    assert (answer.protocol_type, answer.protocol_name) == ("consumer", "range")
    assert answer.leader == "" and answer.members == []
    assert len(opened(groups.sync(old_id, 2).assignment)["orders"]) == 2


def test_a_classic_member_may_join_a_consumer_group():
    groups = Consumers()
    new = Client(groups, "a").join()
    answer = groups.join(requires_known_member=True)
    assert answer.error_code == ErrorCode.MEMBER_ID_REQUIRED
    old = ClassicClient(groups, answer.member_id).join()
    assert old.generation == 3
    assert old.sync().error_code == ErrorCode.NONE and old.owned == {}
    groups.settle_all(old, new)
    assert len(old.owned["orders"]) == 2


def test_a_classic_member_must_be_a_consumer_and_share_a_protocol_with_the_others():
    groups, old, _ = a_mixed_group()
    assert groups.join(protocol_type="connect").error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert groups.join(protocols=EAGER).error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    garbage = (("cooperative-sticky", b"\0"),)
    assert groups.join(protocols=garbage).error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    both = (("range", cooperative("orders")), ("cooperative-sticky", cooperative("orders")))
    assert groups.join(protocols=both).error_code == ErrorCode.NONE


def test_texts_too_long_for_a_classic_group_are_rejected():
    groups, _, _ = a_mixed_group()
    long = "x" * 32_768
    for how in ({"member_id": long}, {"instance": long}, {"client_id": long}):
        answer = groups.join(protocols=COOPERATIVE, **how)
        assert answer.error_code == ErrorCode.INVALID_REQUEST, how.keys()


def test_a_full_group_rejects_new_classic_members():
    groups, _, _ = a_mixed_group(group_consumer_max_size=2)
    assert groups.join().error_code == ErrorCode.GROUP_MAX_SIZE_REACHED


def test_requests_of_a_classic_member_with_a_wrong_identity_are_rejected():
    groups, old, new = a_mixed_group()
    assert groups.heartbeat("stranger", 2).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert groups.heartbeat(old.member_id, 9).error_code == ErrorCode.ILLEGAL_GENERATION
    assert (
        groups.heartbeat("a", 2).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    )  # not a classic member
    assert groups.sync(old.member_id, 9).error_code == ErrorCode.ILLEGAL_GENERATION
    wrong = groups.sync(old.member_id, old.generation, protocol_name="range")
    assert wrong.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    wrong = groups.sync(old.member_id, old.generation, protocol_type="connect")
    assert wrong.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert groups.commit({0: 1}, old.member_id, 9) == {0: ErrorCode.ILLEGAL_GENERATION}
    assert groups.commit({0: 1}, old.member_id, old.generation) == {0: ErrorCode.NONE}


def test_a_sync_for_an_older_target_is_told_to_join_again():
    groups, old, new = a_mixed_group()
    new.beat(topics=("orders", "other"))
    assert old.sync().error_code == ErrorCode.REBALANCE_IN_PROGRESS


def test_a_classic_member_that_does_not_rejoin_in_time_is_removed():
    groups, old, new = a_mixed_group()
    new.beat(topics=("orders", "other"))
    assert old.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS
    for _ in range(REBALANCE_MS // SESSION_MS):
        assert old.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS
        groups.pass_time(SESSION_MS - 1)
        new.beat_and_obey()
    assert old.member_id in groups.group.members
    old.heartbeat()
    groups.pass_time(SESSION_MS - 1)
    assert set(groups.group.members) == {"a"}


def test_a_classic_member_that_does_not_sync_in_time_is_removed():
    groups, old, new = a_mixed_group()
    old.join()
    for _ in range(REBALANCE_MS // SESSION_MS + 1):
        old.heartbeat()
        new.beat()
        groups.pass_time(SESSION_MS - 1)
    assert set(groups.group.members) == {"a"}


def test_a_classic_member_has_the_session_it_asked_for():
    groups, old, new = a_mixed_group()
    groups.pass_time(SESSION_MS - 1)
    assert old.member_id in groups.group.members
    groups.pass_time(1)
    assert set(groups.group.members) == {"a"}  # whose session is longer


def test_a_classic_member_may_leave_and_an_administrator_may_remove_any_member():
    groups, old, new = a_mixed_group()
    third = Client(groups, "c", instance="one").join()
    (answer,) = groups.leave(old.member_id).members
    assert answer.error_code == ErrorCode.NONE
    assert groups.group.kind.value == "consumer"
    answers = groups.leave(("", "one"), ("x", "two"), "stranger").members
    assert [answer.error_code for answer in answers] == [
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.UNKNOWN_MEMBER_ID,
    ]
    assert set(groups.group.members) == {"a"}
    assert third.beat().error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_static_member_may_upgrade_its_protocol():
    groups = Consumers()
    tickets = [groups.join(instance="one")]
    groups.pass_time(0)
    old_id = groups.answer(tickets[0]).member_id
    groups.sync(old_id, 1, {old_id: embedded(ALL)}, instance="one")
    back = Client(groups, "a", instance="one").join()
    assert set(groups.group.members) == {"a"}
    assert back.owned == ALL  # it owned them all the time
    assert groups.heartbeat(old_id, 1, instance="one").error_code == ErrorCode.FENCED_INSTANCE_ID
