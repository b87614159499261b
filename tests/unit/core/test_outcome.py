"""Outcomes of two events are joined; packed and single records are counted alike."""

import pytest

from headrace.core.outcome import NOTHING, NewRecord, Outcome, ProducerStamp, Reply, Ticket

A, B = NewRecord(b"a", b"1"), NewRecord(b"b", None)
REPLY = Reply(Ticket(1), None)
STAMP = ProducerStamp(7, 0)


def test_nothing_changes_nothing():
    one = Outcome((A,), (REPLY,), producer=STAMP)
    assert NOTHING + one is one
    assert one + NOTHING is one


def test_records_replies_and_effects_keep_their_order():
    both = Outcome((A,), (REPLY,), ("first",)) + Outcome((B,), (), ("second",))
    assert both == Outcome((A, B), (REPLY,), ("first", "second"))


@pytest.mark.parametrize(
    ("first", "second", "splittable"),
    [
        (Outcome((A,), splittable=True), Outcome((B,), splittable=True), True),
        (Outcome((A,), splittable=True), Outcome((B,)), False),
        (Outcome((A,), splittable=True), Outcome((), (REPLY,)), True),
    ],
)
def test_a_batch_may_be_split_if_all_its_records_may(first, second, splittable):
    assert (first + second).splittable is splittable


def test_records_of_two_producers_are_not_joined():
    with pytest.raises(AssertionError):
        Outcome((A,), producer=STAMP) + Outcome((B,))
    joined = Outcome((A,), producer=STAMP) + Outcome((), (REPLY,))
    assert joined.producer == STAMP
