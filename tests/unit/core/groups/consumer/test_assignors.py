"""Assignors: examples first, then what must hold for any group."""

from hypothesis import given
from hypothesis import strategies as st

from headrace.core.groups.consumer.assignors import Subscriber, range_, uniform

T1, T2, T3 = (bytes([number]) * 16 for number in (1, 2, 3))


def member(name, *topics, had=None, instance=None):
    return Subscriber(
        name, instance, frozenset(topics), {t: frozenset(p) for t, p in (had or {}).items()}
    )


def as_members(assignment, members):
    """The same members with their last target."""
    return [m._replace(had=assignment[m.member_id]) for m in members]


def count(partitions):
    return sum(map(len, partitions.values()))


# Uniform.


def test_uniform_gives_every_member_the_same_number_plus_or_minus_one():
    members = [member(name, T1, T2) for name in "abc"]
    got = uniform(members, {T1: 3, T2: 4})
    assert sorted(map(count, got.values())) == [2, 2, 3]
    assert got["a"] == {T1: {0}, T2: {0, 3}}  # round robin over the members


def test_uniform_moves_as_few_partitions_as_possible():
    members = [member("a", T1), member("b", T1)]
    got = uniform(members, {T1: 6})
    assert got == {"a": {T1: {0, 2, 4}}, "b": {T1: {1, 3, 5}}}
    after = uniform([*as_members(got, members), member("c", T1)], {T1: 6})
    for name in "ab":
        assert after[name][T1] < got[name][T1] and count(after[name]) == 2
    left = uniform(as_members(after, members), {T1: 6})
    for name in "ab":
        assert after[name][T1] < left[name][T1]


def test_uniform_ignores_deleted_topics_and_partitions():
    got = uniform([member("a", T1, had={T1: {0, 1, 9}, T2: {0}})], {T1: 2})
    assert got == {"a": {T1: {0, 1}}}


def test_uniform_assigns_a_partition_once_even_if_two_members_had_it():
    had = {T1: {0, 1}}
    got = uniform([member("a", T1, had=had), member("b", T1, had=had)], {T1: 2})
    assert sorted((count(got["a"]), count(got["b"]))) == [1, 1]
    assert got["a"][T1] != got["b"][T1]


def test_uniform_with_more_members_than_partitions():
    got = uniform([member(name, T1) for name in "abc"], {T1: 2})
    assert sorted(map(count, got.values())) == [0, 1, 1]


def test_uniform_with_different_subscriptions():
    got = uniform([member("a", T1), member("b", T1, T2)], {T1: 4, T2: 4})
    assert got == {"a": {T1: {0, 1, 2, 3}}, "b": {T2: {0, 1, 2, 3}}}


def test_uniform_moves_partitions_that_others_can_take():
    # b has most of T1, which a can read too.
    got = uniform([member("a", T1), member("b", T1, T2, had={T1: {0, 1, 2, 3}})], {T1: 4, T2: 2})
    assert count(got["a"]) == 3 and count(got["b"]) == 3
    assert len(got["b"].get(T1, ())) == 1


def test_no_members_or_no_partitions():
    for assign in (uniform, range_):
        assert assign([], {}) == {}
        assert assign([member("a")], {}) == {"a": {}}


# Range.


def test_range_cuts_topics_of_the_same_size_alike():
    got = range_([member("b", T1, T2), member("a", T1, T2)], {T1: 3, T2: 3})
    assert got == {"a": {T1: {0, 1}, T2: {0, 1}}, "b": {T1: {2}, T2: {2}}}


def test_range_puts_static_members_first_by_their_instance():
    got = range_(
        [member("a", T1), member("z", T1, instance="1"), member("y", T1, instance="2")], {T1: 3}
    )
    assert got == {"z": {T1: {0}}, "y": {T1: {1}}, "a": {T1: {2}}}


def test_range_counts_only_subscribers_of_the_topic():
    got = range_([member("a", T1), member("b", T1, T2), member("c", T2)], {T1: 2, T2: 2})
    assert got == {"a": {T1: {0}}, "b": {T1: {1}, T2: {0}}, "c": {T2: {1}}}


# Anything.

TOPICS = [bytes([number]) * 16 for number in range(5)]


@st.composite
def groups(draw):
    counts = {t: draw(st.integers(1, 8)) for t in TOPICS}
    is_alike = draw(st.booleans())
    alike = draw(st.frozensets(st.sampled_from(TOPICS)))
    members = []
    for number in range(draw(st.integers(1, 7))):
        topics = alike if is_alike else draw(st.frozensets(st.sampled_from(TOPICS)))
        had = draw(
            st.dictionaries(
                st.sampled_from(TOPICS), st.frozensets(st.integers(0, 9), min_size=1), max_size=3
            )
        )
        instance = draw(st.none() | st.just(f"i{number}"))
        members.append(Subscriber(f"m{number}", instance, topics, had))
    return draw(st.permutations(members)), counts


def check_whole(got, members, counts):
    """Every subscribed partition has exactly one owner, which subscribes to it."""
    owners = {}
    for name, topics in got.items():
        for topic, partitions in topics.items():
            assert partitions, "topics without partitions are omitted"
            for partition in partitions:
                assert (topic, partition) not in owners
                owners[topic, partition] = name
    by_name = {m.member_id: m for m in members}
    assert got.keys() == by_name.keys()
    assert all(topic in by_name[name].topics for (topic, _), name in owners.items())
    read = {topic for m in members for topic in m.topics}
    assert owners.keys() == {(t, p) for t in read for p in range(counts[t])}


@given(groups())
def test_uniform_is_complete_even_and_stable(group):
    members, counts = group
    got = uniform(members, counts)
    check_whole(got, members, counts)
    by_name = {m.member_id: m for m in members}
    for giver in members:
        for topic in got[giver.member_id]:
            for taker in members:
                if topic in by_name[taker.member_id].topics:
                    difference = count(got[giver.member_id]) - count(got[taker.member_id])
                    assert difference <= 1, "a move would make it more even"
    assert uniform(as_members(got, members), counts) == got
    assert uniform(reversed(members), counts) == got


@given(groups())
def test_range_is_complete_and_ignores_earlier_targets(group):
    members, counts = group
    got = range_(members, counts)
    check_whole(got, members, counts)
    assert range_(as_members(got, members), counts) == got
    for topics in got.values():
        for partitions in topics.values():
            assert max(partitions) - min(partitions) + 1 == len(partitions)


@given(groups(), st.data())
def test_uniform_moves_only_what_a_change_of_members_requires(group, data):
    members, counts = group
    same = [m._replace(topics=frozenset(TOPICS)) for m in members]
    before = as_members(uniform(same, counts), same)
    gone = data.draw(st.integers(0, len(before) - 1))
    stay = before[:gone] + before[gone + 1 :]
    for m in stay:
        # A remaining member gives nothing up when another one leaves.
        after = uniform(stay, counts)
        assert all(m.had[topic] <= after[m.member_id][topic] for topic in m.had)
