"""Parked requests: which ones an event affects, with a hand-moved clock."""

import weakref

import pytest

from headrace.core.parked import Event, Parked


class Request:
    """Something that can be parked."""


def test_a_request_is_affected_by_any_of_its_replicas_until_it_is_removed():
    parked = Parked()
    parked.add("a", ["p0", "p1"], deadline=100)
    parked.add("b", ["p1"], deadline=100)
    assert parked.affected_by("p0", Event.HIGH_WATERMARK) == ["a"]
    assert parked.affected_by("p1", Event.HIGH_WATERMARK) == ["a", "b"]
    assert parked.remove("a")
    assert not parked.remove("a")
    assert parked.affected_by("p0", Event.HIGH_WATERMARK) == []
    assert parked.affected_by("p1", Event.HIGH_WATERMARK) == ["b"]


def test_high_watermark_and_last_stable_offset_affect_only_requests_that_wait_for_them():
    parked = Parked()
    parked.add("acks", ["p"], deadline=100)
    assert parked.affected_by("p", Event.LAST_STABLE_OFFSET) == []
    parked.add("committed", ["p"], deadline=100, until=Event.LAST_STABLE_OFFSET)
    assert parked.affected_by("p", Event.HIGH_WATERMARK) == ["acks"]
    assert parked.affected_by("p", Event.LAST_STABLE_OFFSET) == ["committed"]
    parked.remove("committed")
    assert parked.affected_by("p", Event.HIGH_WATERMARK) == ["acks"]
    assert parked.affected_by("p", Event.LAST_STABLE_OFFSET) == []


@pytest.mark.parametrize(
    "event",
    [
        Event.LEADERSHIP_GAINED,
        Event.LEADERSHIP_LOST,
        Event.TOPIC_DELETED,
        Event.DISK_OFFLINE,
    ],
)
def test_what_happens_to_a_replica_affects_every_request_that_waits_on_it(event):
    parked = Parked()
    parked.add("acks", ["p"], deadline=100)
    parked.add("other", ["q"], deadline=100)
    parked.add("committed", ["p"], deadline=100, until=Event.LAST_STABLE_OFFSET)
    assert parked.affected_by("p", event) == ["acks", "committed"]


def test_a_request_expires_at_its_deadline_and_not_before():
    parked = Parked()
    parked.add("late", ["p"], deadline=200)
    parked.add("soon", ["p"], deadline=100)
    assert parked.next_deadline() == 100
    assert parked.expired(99.9) == []
    assert parked.expired(100) == ["soon"]
    assert parked.affected_by("p", Event.HIGH_WATERMARK) == ["late"]
    assert parked.next_deadline() == 200


def test_an_answered_request_does_not_expire():
    parked = Parked()
    parked.add("a", ["p"], deadline=100)
    parked.remove("a")
    assert parked.expired(100) == []
    assert "a" not in parked and parked.all() == []


def test_deadlines_of_answered_requests_do_not_pile_up():
    parked = Parked()
    remembered = weakref.WeakSet()
    for number in range(10_000):
        request = Request()
        remembered.add(request)
        parked.add(request, ["p"], deadline=1_000_000 + number)
        parked.remove(request)
    assert len(parked) == 0
    assert len(remembered) <= 101
    assert parked.next_deadline() is None
