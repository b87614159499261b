"""Requests that wait, with a hand-moved clock."""

from headrace.core.parked import Parked


def test_a_request_is_woken_by_any_of_its_keys_until_it_is_removed():
    parked = Parked()
    parked.add("a", ["p0", "p1"], deadline=100)
    parked.add("b", ["p1"], deadline=100)
    assert parked.woken("p0") == ["a"]
    assert parked.woken("p1") == ["a", "b"]
    assert parked.remove("a")
    assert not parked.remove("a")
    assert parked.woken("p0") == []
    assert parked.woken("p1") == ["b"]


def test_a_request_is_over_at_its_deadline_and_not_before():
    parked = Parked()
    parked.add("late", ["p"], deadline=200)
    parked.add("soon", ["p"], deadline=100)
    assert parked.next_deadline() == 100
    assert parked.expired(99.9) == []
    assert parked.expired(100) == ["soon"]
    assert parked.woken("p") == ["late"]
    assert parked.next_deadline() == 200


def test_deadlines_of_answered_requests_do_not_pile_up():
    parked = Parked()
    for number in range(10_000):
        parked.add(number, ["p"], deadline=1_000_000 + number)
        parked.remove(number)
    assert len(parked) == 0
    assert len(parked._deadlines) <= 100
    assert parked.next_deadline() is None
