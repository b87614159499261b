"""Watches fire once, in the order in which they were set, for the writes that touch their node."""

from headrace.coordination import watches
from headrace.coordination.watches import Aspect, Watches


def first(path: str) -> None: ...
def second(path: str) -> None: ...


def test_a_watch_fires_for_its_own_aspect_of_its_own_node():
    table = Watches()
    table.add(Aspect.NODE, "/a", first)
    table.add(Aspect.CHILDREN, "/a", second)
    assert table.fire(watches.created("/b")) == []
    assert table.fire(watches.created("/a/child")) == [(second, "/a")]
    assert table.fire(watches.changed("/a")) == [(first, "/a")]
    assert table.fire(watches.changed("/a")) == []


def test_watches_fire_in_the_order_in_which_they_were_set_and_once_each():
    table = Watches()
    for watch in (second, first, second):
        table.add(Aspect.NODE, "/a", watch)
    assert table.fire(watches.created("/a")) == [(second, "/a"), (first, "/a")]


def test_a_deletion_calls_a_watch_of_both_aspects_once():
    table = Watches()
    table.add(Aspect.NODE, "/a", first)
    table.add(Aspect.CHILDREN, "/a", first)
    table.add(Aspect.CHILDREN, "/", second)
    assert table.fire(watches.deleted("/a")) == [(first, "/a"), (second, "/")]
