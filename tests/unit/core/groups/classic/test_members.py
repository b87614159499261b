"""The topics of a subscription."""

import pytest

from headrace.core.groups.classic.members import subscribed_topics
from tests.fakes.groups import subscription


@pytest.mark.parametrize(
    "garbage",
    [
        b"",
        b"\0",
        b"\0\0\0\0\0\1",
        b"\0\0\x7f\xff\xff\xff",
        b"\0\0\0\0\0\1\xff\xff",
        b"\0\0\0\0\0\1\0\2\xff\xff",
    ],
)
def test_garbage_is_not_read_as_a_subscription(garbage):
    with pytest.raises(ValueError):
        subscribed_topics(garbage)


def test_topics_of_a_subscription_are_read_whatever_follows_them():
    assert subscribed_topics(subscription("a", "bc") + b"later fields") == ["a", "bc"]
    assert subscribed_topics(subscription()) == []
