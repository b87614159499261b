"""Rules for topics: names, counts and assignments."""

import pytest

from headrace.core import topics
from headrace.core.topics import NewTopic
from headrace.model.errors import ErrorCode, Rejected


@pytest.mark.parametrize("name", ["a", "A-z_0.9", "a" * 249, "...", "-", "__consumer_offsets"])
def test_a_legal_name_is_accepted(name):
    assert topics.is_legal_name(name)
    topics.check_name(name)


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "a" * 250, "a/b", "../x", "a b", "ä", "a\n", "a\0", "b:c", "x" * 100_000],
)
def test_an_illegal_name_is_refused_and_the_reason_is_short(name):
    assert not topics.is_legal_name(name)
    with pytest.raises(Rejected) as refused:
        topics.check_name(name)
    assert refused.value.code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert len(str(refused.value)) < 400


def test_a_dot_and_an_underscore_collide():
    assert topics.collision_key("a.b_c") == topics.collision_key("a_b.c")
    assert topics.collision_key("a-b") != topics.collision_key("a_b")


@pytest.mark.parametrize(
    ("wanted", "code"),
    [
        (NewTopic("x", 0), ErrorCode.INVALID_PARTITIONS),
        (NewTopic("x", -2), ErrorCode.INVALID_PARTITIONS),
        (NewTopic("x", 1, 0), ErrorCode.INVALID_REPLICATION_FACTOR),
        (NewTopic("x", 1, -2), ErrorCode.INVALID_REPLICATION_FACTOR),
        (NewTopic("x", 1, -1, [(0, [1])]), ErrorCode.INVALID_REQUEST),
        (NewTopic("x", -1, 1, [(0, [1])]), ErrorCode.INVALID_REQUEST),
        (NewTopic("x"), ErrorCode.NONE),
        (NewTopic("x", 3, 2), ErrorCode.NONE),
        (NewTopic("x", assignments=[(0, [1])]), ErrorCode.NONE),
    ],
)
def test_counts_are_at_least_one_or_the_default(wanted, code):
    try:
        topics.check_counts(wanted)
        found = ErrorCode.NONE
    except Rejected as refused:
        found = refused.code
    assert found == code


def test_assignments_may_come_in_any_order():
    assert topics.check_assignments([(1, [2, 1]), (0, [1, 2])], {1, 2}) == [(1, 2), (2, 1)]


@pytest.mark.parametrize(
    "assignments",
    [
        [(1, [1])],
        [(0, [1]), (2, [1])],
        [(0, [1]), (0, [1])],
        [(0, [])],
        [(0, [1, 1])],
        [(0, [5])],
        [(0, [-1])],
        [(-1, [1]), (0, [1])],
    ],
)
def test_an_impossible_assignment_is_refused(assignments):
    with pytest.raises(Rejected) as refused:
        topics.check_assignments(assignments, {1, 2})
    assert refused.value.code == ErrorCode.INVALID_REPLICA_ASSIGNMENT


def test_the_partition_count_is_known_before_any_work():
    assert topics.partition_count_of(NewTopic("x"), default=4) == 4
    assert topics.partition_count_of(NewTopic("x", 7), default=4) == 7
    assert topics.partition_count_of(NewTopic("x", -5), default=4) == 0
    assert topics.partition_count_of(NewTopic("x", assignments=[(0, [1])] * 3), default=4) == 3


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", 0),
        ("a", 97),
        ("my-group", 1_906_497_762),
        ("consumer group ü", 1_034_215_055),
        ("polygenelubricants", 0),  # its hash is the one number without a positive counterpart
        ("\U0001f600", 1_772_899),
    ],
)
def test_the_hash_is_javas(text, value):
    assert topics.java_hash(text) == value
