"""Topics by regular expression."""

import pytest
import re2

from headrace.core.groups.consumer.patterns import TopicPatterns
from headrace.model.cluster_metadata import ClusterMetadata
from headrace.model.errors import ErrorCode, Rejected
from tests.fakes.groups import a_topic


def a_cluster(*names):
    return ClusterMetadata("cluster").with_topics([a_topic(name, 1) for name in names])


def test_matches_follow_the_metadata():
    patterns = TopicPatterns()
    metadata = a_cluster("a1", "a2", "b1")
    assert patterns.matching("a.*", metadata) == {"a1", "a2"}
    assert patterns.matching("a.*", metadata) == {"a1", "a2"}
    metadata = metadata.with_topics([a_topic("a3", 1), a_topic("b3", 1)], ["a1"])
    assert patterns.matching("a.*", metadata) == {"a2", "a3"}
    # A new pattern sees the same metadata.
    assert patterns.matching("(a|b)3", metadata) == {"a3", "b3"}
    metadata = metadata.with_brokers([], metadata.controller_id)
    assert patterns.matching("a.*", metadata) == {"a2", "a3"}


def test_a_pattern_matches_whole_names():
    patterns = TopicPatterns()
    metadata = a_cluster("a", "ab", "abc")
    assert patterns.matching("a|ab", metadata) == {"a", "ab"}
    assert patterns.matching("^ab$", metadata) == {"ab"}
    assert patterns.matching("b", metadata) == frozenset()


def test_internal_topics_are_topics():
    patterns = TopicPatterns()
    assert patterns.matching("__.*", a_cluster("__consumer_offsets", "x")) == {"__consumer_offsets"}


@pytest.mark.parametrize("pattern", ["[a", r"(.)\1", "a{1001}", "\ud800", "(?!x)"])
def test_an_invalid_pattern_is_rejected_and_matches_nothing(pattern):
    patterns = TopicPatterns()
    with pytest.raises(Rejected) as refusal:
        patterns.check(pattern)
    assert refusal.value.code == ErrorCode.INVALID_REGULAR_EXPRESSION
    # A log may hold a pattern that another version of RE2 accepted.
    assert patterns.matching(pattern, a_cluster("a")) == frozenset()


def test_a_thousand_patterns_are_remembered_and_then_forgotten(monkeypatch):
    compiled, compile_pattern = [], re2.compile

    def note_and_compile(pattern, **more):
        compiled.append(pattern)
        return compile_pattern(pattern, **more)

    monkeypatch.setattr(re2, "compile", note_and_compile)
    patterns = TopicPatterns()
    metadata = a_cluster("a")
    for number in (*range(1_000), 0, 999, 1_000, 0):
        assert patterns.matching(f"a|{number}", metadata) == {"a"}
    assert compiled == [f"a|{number}" for number in (*range(1_000), 1_000, 0)]
