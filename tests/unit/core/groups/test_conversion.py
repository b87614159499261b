"""Groups that change their protocol while they have members."""

import pytest

from headrace.core.groups.conversion import assignment_bytes, subscription_of
from headrace.model.errors import ErrorCode
from headrace.wire import messages as m
from headrace.wire.framing import encode_versioned
from tests.fakes.classic_consumers import (
    ALL,
    COOPERATIVE,
    EAGER,
    ClassicClient,
    a_classic_group,
    a_mixed_group,
    embedded,
    opened,
)
from tests.fakes.consumers import CONSUMER_SESSION_MS, Client, Consumers
from tests.fakes.groups import REBALANCE_MS, SESSION_MS, subscription


def test_an_empty_classic_group_becomes_a_consumer_group():
    groups = Consumers()
    (member_id,) = a_classic_group(groups)
    groups.leave(member_id)
    groups.pass_time(0)
    assert groups.group.state_name == "Empty" and groups.group.kind.value == "classic"
    assert groups.assignment_in(groups.enter("a")) == ALL
    assert groups.group.kind.value == "consumer" and groups.group.group_epoch == 2
    groups.reload()
    assert groups.group.kind.value == "consumer"


def test_an_empty_consumer_group_becomes_a_classic_group():
    groups = Consumers()
    Client(groups, "a").join().leave()
    assert groups.group.kind.value == "consumer"
    a_classic_group(groups)
    assert groups.group.kind.value == "classic"
    groups.reload()
    assert groups.group.kind.value == "classic" and groups.group.state_name == "Stable"


def test_an_id_handed_out_by_an_empty_classic_group_works_after_the_change():
    groups = Consumers()
    given = groups.join(requires_known_member=True).member_id
    Client(groups, "a").join()
    answer = groups.join(given, requires_known_member=True)
    assert (answer.error_code, answer.member_id) == (ErrorCode.NONE, given)


def test_an_unknown_member_does_not_change_the_kind_of_an_empty_group():
    groups = Consumers()
    Client(groups, "a").join().leave()
    written = len(groups.log)
    assert groups.join("stranger").error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert groups.group.kind.value == "consumer" and len(groups.log) == written


def test_the_first_new_member_upgrades_a_classic_group():
    groups = Consumers()
    old_id, other_id = a_classic_group(
        groups, ({"orders": {0, 1}}, {"orders": {2, 3}}), session_ms=20_000
    )
    new = Client(groups, "a").join()
    assert groups.group.kind.value == "consumer"
    members = groups.group.members
    assert set(members) == {old_id, other_id, "a"}
    assert members[old_id].classic.session_timeout_ms == 20_000
    assert groups.has(old_id) == {"orders": {0, 1}} and members[old_id].member_epoch == 1
    assert groups.group.group_epoch == groups.group.assignment_epoch == 2
    assert new.member_epoch == 2 and new.owned == {}

    olds = [ClassicClient(groups, old_id, 1, groups.has(old_id))]
    olds.append(ClassicClient(groups, other_id, 1, groups.has(other_id)))
    assert olds[0].heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS
    groups.settle_all(*olds, new)
    assert sorted(len(c.owned["orders"]) for c in (*olds, new)) == [1, 1, 2]
    assert groups.group.state_name == "Stable"
    assert [member.member_type for member in groups.look().members] == [0, 0, 1]


def test_the_upgraded_group_survives_a_reload():
    groups = Consumers()
    a_classic_group(groups)
    Client(groups, "a").join()
    before = groups.group
    groups.reload()
    assert groups.group is not before
    for name in ("members", "targets", "group_epoch", "assignment_epoch", "owners", "static"):
        assert getattr(groups.group, name) == getattr(before, name), name


def test_parked_joins_are_told_to_join_again():
    groups = Consumers()
    (member_id,) = a_classic_group(groups)
    newcomer = groups.join(protocols=COOPERATIVE)  # waits for the other
    assert groups.waits(newcomer)
    Client(groups, "a").join()
    assert groups.answer(newcomer).error_code == ErrorCode.REBALANCE_IN_PROGRESS
    assert len(groups.group.members) == 3
    # The timers of the classic rebalance have no effect any more.
    groups.pass_time(SESSION_MS - 1)
    assert len(groups.group.members) == 3
    groups.pass_time(1)
    assert set(groups.group.members) == {"a"}


def test_a_classic_group_before_its_first_generation_is_upgraded_too():
    groups = Consumers(group_initial_rebalance_delay_ms=3_000)
    first = groups.join(protocols=EAGER)
    assert groups.waits(first)
    new = Client(groups, "a").join()
    old_id = groups.answer(first).member_id
    assert groups.answer(first).error_code == ErrorCode.REBALANCE_IN_PROGRESS
    assert set(groups.group.members) == {old_id, "a"}
    assert groups.join(old_id, protocols=EAGER).generation_id == 1
    groups.settle_all(new)
    assert len(new.owned["orders"]) == 2
    assert len(opened(groups.sync(old_id, 1).assignment)["orders"]) == 2


def test_parked_syncs_are_told_to_join_again():
    groups = Consumers()
    tickets = [groups.join(), groups.join()]
    groups.pass_time(0)
    follower = groups.answer(tickets[1])
    sync = groups.sync(follower.member_id, follower.generation_id)
    assert groups.waits(sync)
    Client(groups, "a").join()
    assert groups.answer(sync).error_code == ErrorCode.REBALANCE_IN_PROGRESS


@pytest.mark.parametrize("policy", ["disabled", "downgrade", "DISABLED"])
def test_the_policy_may_forbid_upgrades(policy):
    groups = Consumers(group_consumer_migration_policy=policy)
    a_classic_group(groups)
    answer = groups.enter("a")
    assert answer.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert "online upgrade is disabled" in answer.error_message
    assert groups.group.kind.value == "classic" and groups.group.state_name == "Stable"


def test_a_group_that_is_too_large_stays_classic():
    groups = Consumers(group_consumer_max_size=1)
    a_classic_group(groups, ({"orders": {0, 1}}, {"orders": {2, 3}}))
    answer = groups.enter("a")
    assert answer.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert "exceeds the consumer group maximum size" in answer.error_message


def test_a_group_of_another_protocol_type_stays_classic():
    groups = Consumers()
    groups.stable(protocol_type="connect", protocols=(("default", b"\0\0"),))
    answer = groups.enter("a")
    assert answer.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert "does not use the consumer embedded protocol" in answer.error_message


@pytest.mark.parametrize(
    ("assignment", "reason"),
    [
        (b"\0", "malformed"),
        (b"\0\0\0\0\0\x05", "malformed"),
        (b"\xff\xff\0\0\0\0", "malformed"),
        (embedded(ALL, user_data=b"mine"), "unsupported custom assignor"),
    ],
)
def test_assignments_that_cannot_be_converted_keep_the_group_classic(assignment, reason):
    groups = Consumers()
    ticket = groups.join()
    groups.pass_time(0)
    leader = groups.answer(ticket).member_id
    groups.sync(leader, 1, {leader: assignment})
    answer = groups.enter("a")
    assert answer.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert reason in answer.error_message
    assert groups.heartbeat(leader, 1).error_code == ErrorCode.NONE


def test_a_heartbeat_or_a_leave_for_a_classic_group_finds_no_consumer_group():
    groups = Consumers()
    a_classic_group(groups)
    for member_epoch in (3, -1):
        answer = groups.beat("a", member_epoch)
        assert answer.error_code == ErrorCode.GROUP_ID_NOT_FOUND
        assert answer.error_message == "Group g is not a consumer group."


def test_the_group_becomes_classic_when_its_last_new_member_leaves():
    groups, old, new = a_mixed_group()
    generation = groups.group.group_epoch
    had = old.owned
    assert new.leave().error_code == ErrorCode.NONE
    assert groups.group.kind.value == "classic"
    assert groups.group.generation == generation and set(groups.group.members) == {old.member_id}
    # It keeps its partitions until it joins again; then it gets the others.
    assert groups.group.state_name == "PreparingRebalance"
    assert opened(groups.group.members[old.member_id].assignment) == had
    assert old.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS
    old.join()
    assert old.generation == generation + 1
    answer = groups.sync(old.member_id, old.generation, {old.member_id: embedded(ALL)})
    assert opened(answer.assignment) == ALL


def test_the_downgraded_group_survives_a_reload():
    groups, old, new = a_mixed_group()
    new.leave()
    groups.reload()
    assert groups.group.kind.value == "classic"
    # The rebalance had not happened yet and still has to.
    assert groups.group.state_name == "PreparingRebalance"
    assert old.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS
    ticket = groups.join(old.member_id, protocols=COOPERATIVE)
    assert groups.answer(ticket).leader == old.member_id
    groups.sync(old.member_id, groups.answer(ticket).generation_id)
    groups.reload()
    assert groups.group.state_name == "Stable"
    groups.pass_time(SESSION_MS)
    assert groups.group.state_name == "Empty"


def test_the_group_becomes_classic_when_its_last_new_member_times_out():
    groups, old, new = a_mixed_group()
    for _ in range(5):
        groups.pass_time(CONSUMER_SESSION_MS // 5)
        old.heartbeat()
    groups.pass_time(0)
    assert groups.group.kind.value == "classic"
    # The sessions of classic members continue.
    groups.pass_time(SESSION_MS + REBALANCE_MS)
    assert groups.group.state_name == "Empty"


@pytest.mark.parametrize("policy", ["disabled", "upgrade"])
def test_the_policy_may_forbid_downgrades(policy):
    groups, old, new = a_mixed_group()
    groups.cluster.config = type(groups.cluster.config).parse(
        {
            "group.consumer.migration.policy": policy,
            "group.consumer.assignment.interval.ms": "0",
        }
    )
    new.leave()
    assert groups.group.kind.value == "consumer"
    groups.settle_all(old)
    assert old.owned == ALL


def test_a_group_that_is_too_large_for_the_classic_protocol_stays():
    groups, old, new = a_mixed_group()
    third = ClassicClient(groups, "").join()
    groups.settle_all(old, third, new)
    groups.cluster.config = type(groups.cluster.config).parse({"group.max.size": "1"})
    new.leave()
    assert groups.group.kind.value == "consumer"


def test_an_instance_that_returns_as_a_classic_member_downgrades_the_group():
    groups = Consumers()
    new = Client(groups, "a", instance="one").join()
    assert new.owned == ALL
    protocols = EAGER
    answer = groups.join(instance="one", protocols=protocols)
    assert answer.error_code == ErrorCode.NONE
    assert groups.group.kind.value == "classic" and groups.group.state_name == "Stable"
    assert set(groups.group.members) == {answer.member_id}
    sync = groups.sync(answer.member_id, answer.generation_id, instance="one")
    assert opened(sync.assignment) == ALL
    groups.pass_time(0)
    assert groups.group.state_name == "Stable"  # no rebalance is needed
    assert new.beat().error_code == ErrorCode.GROUP_ID_NOT_FOUND
    groups.reload()
    assert groups.group.kind.value == "classic" and set(groups.group.members) == {answer.member_id}


def test_an_instance_that_returns_with_other_topics_makes_the_classic_group_rebalance():
    groups = Consumers()
    Client(groups, "a", instance="one").join()
    protocols = (("range", subscription("other")),)
    answer = groups.join(instance="one", protocols=protocols)
    groups.pass_time(0)
    assert groups.group.kind.value == "classic"
    assert groups.group.state_name == "PreparingRebalance"
    code = groups.heartbeat(answer.member_id, answer.generation_id, instance="one").error_code
    assert code in (ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION)


def test_an_instance_that_returns_as_classic_does_not_downgrade_a_group_with_new_members():
    groups = Consumers()
    Client(groups, "a", instance="one").join()
    new = Client(groups, "b").join()
    answer = groups.join(instance="one", protocols=EAGER)
    assert groups.group.kind.value == "consumer"
    assert groups.group.members[answer.member_id].classic is not None
    old = groups.join(
        answer.member_id,
        instance="one",
        protocols=EAGER,
    )
    assert old.error_code == ErrorCode.NONE
    new.beat_and_obey()
    assert new.owned


def test_assignments_are_written_in_the_version_of_the_members_own_metadata():
    groups = Consumers()
    target = {groups.topic_id("orders"): frozenset({2, 1}), b"gone".ljust(16): frozenset({0})}
    for embedded_version, expected in ((0, 0), (1, 1), (3, 3), (9, 3)):
        metadata = embedded_version.to_bytes(2) + b"anything"
        raw = assignment_bytes(target, groups.cluster.metadata, metadata)
        assert int.from_bytes(raw[:2]) == expected
        assert opened(raw) == {"orders": {1, 2}}


def test_subscriptions_of_newer_versions_are_read_as_the_newest_known():
    known = m.ConsumerProtocolSubscription(topics=["orders"], rack_id="r1", generation_id=4)
    raw = encode_versioned(known, 3)
    assert subscription_of((7).to_bytes(2) + raw[2:] + b"more") == known
