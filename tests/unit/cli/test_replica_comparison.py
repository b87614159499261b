"""Which replica differs, and from which offset on."""

import pytest

from headrace.cli.replica_comparison import (
    Difference,
    Last,
    LastRecords,
    compare_batches,
    differing_keys,
    judge_keys,
)
from headrace.records.batch import BadBatch
from headrace.records.record import Record, build_batch, build_marker

A, B, C = 1, 2, 3


def batch(offset, *values, **fields):
    records = [Record(offset + at, 0, b"k", value) for at, value in enumerate(values)]
    return build_batch(records, base_offset=offset, **fields)


def damaged(data):
    return data[:-1] + bytes([data[-1] ^ 1])


def compare(*, leader=A, offset=0, end=100, **fetched):
    views = {{"a": A, "b": B, "c": C}[name]: memoryview(data) for name, data in fetched.items()}
    return compare_batches(views, leader, offset, end)


FIRST, SECOND = batch(0, b"x", b"y"), batch(2, b"z")


def test_equal_batches_advance_to_their_end():
    assert compare(a=FIRST + SECOND, b=FIRST + SECOND) == (3, [])


def test_only_complete_batches_that_all_returned_count():
    assert compare(a=FIRST + SECOND, b=FIRST + SECOND[:20]) == (2, [])
    assert compare(a=FIRST + SECOND, b=FIRST) == (2, [])


def test_batches_at_and_after_the_end_are_not_compared():
    assert compare(a=FIRST + SECOND, b=FIRST + damaged(SECOND), end=2) == (2, [])


def test_a_wrong_crc_names_the_replica_even_against_the_majority():
    found = compare(a=FIRST + SECOND, b=FIRST + damaged(SECOND), c=FIRST + damaged(SECOND))
    assert found.next_offset == 2
    assert [(one.broker, one.offset) for one in found.differences] == [(B, 2), (C, 2)]
    assert "CRC" in found.differences[0].problem


def test_the_majority_is_right_between_intact_batches():
    other = batch(2, b"w")
    found = compare(a=FIRST + other, b=FIRST + SECOND, c=FIRST + SECOND)
    assert found == (2, [Difference(A, 2, "the batch differs from brokers 2, 3")])


def test_between_two_intact_batches_there_is_no_majority():
    found = compare(a=FIRST, b=batch(0, b"x", b"w"), leader=B)
    problem = "the batch differs from broker 2, which leads; there is no majority"
    assert found.differences == [Difference(A, 0, problem, is_tie=True)]


def test_three_different_batches_have_no_majority():
    found = compare(a=FIRST, b=batch(0, b"x", b"w"), c=batch(0, b"x", b"v"), leader=B)
    assert [(one.broker, one.is_tie) for one in found.differences] == [(A, True), (C, True)]


def test_a_damaged_batch_has_no_vote():
    found = compare(a=damaged(FIRST), b=batch(0, b"x", b"w"), c=FIRST, leader=A)
    assert [(one.broker, one.is_tie) for one in found.differences] == [(A, False), (C, True)]


def test_a_damaged_header_is_a_difference():
    broken = FIRST[:8] + b"\x7f" + FIRST[9:]  # a length far beyond the response
    found = compare(a=FIRST, b=broken)
    assert [(one.broker, one.offset) for one in found.differences] == [(B, 0)]


def test_the_same_damage_everywhere_is_reported_for_each():
    found = compare(a=damaged(FIRST), b=damaged(FIRST))
    assert [one.broker for one in found.differences] == [A, B]


def test_another_leader_epoch_is_a_difference():
    """The CRC does not cover it."""
    found = compare(a=batch(0, b"x", leader_epoch=1), b=batch(0, b"x", leader_epoch=2))
    assert [one.broker for one in found.differences] == [B]


# --- compacted topics ---------------------------------------------------------------------


def keyed(*records, **fields):
    made = [Record(offset, 0, key, value) for offset, key, value in records]
    return build_batch(made, base_offset=made[0].offset, **fields)


def last(data, aborted=(), offset=0, end=100):
    found = LastRecords()
    found.add(memoryview(data), aborted, offset, end)
    return found


def test_a_cleaned_replica_has_the_same_last_values():
    full = keyed((0, b"k", b"1"), (1, b"l", b"2"), (2, b"k", b"3"))
    cleaned = keyed((1, b"l", b"2"), (2, b"k", b"3"))
    assert differing_keys(last(full), last(cleaned)) == {}


@pytest.mark.parametrize(
    "other", [keyed((0, b"l", b"2")), keyed((0, b"k", b"other")), keyed((3, b"k", b"1"))]
)
def test_another_last_value_is_found(other):
    assert 0 in differing_keys(last(keyed((0, b"k", b"1"))), last(other)).values()


def test_a_tombstone_is_the_same_as_no_record():
    kept = keyed((0, b"k", b"1"), (1, b"k", None), (2, b"l", b"1"))
    assert differing_keys(last(kept), last(keyed((2, b"l", b"1")))) == {}


OLD, NEW, OTHER = Last(1, b"old"), Last(5, b"new"), Last(5, b"other")


def test_the_majority_is_right_about_a_key_even_against_the_leader():
    lasts = {b"k": {A: OLD, B: NEW, C: NEW}, b"l": {A: None, B: NEW, C: NEW}}
    problem = "2 keys with another last value than on brokers 2, 3"
    assert judge_keys(lasts, A) == [Difference(A, 1, problem)]


def test_a_key_without_a_majority_is_named_as_such():
    problem = "1 key with another last value than on broker 2, which leads; there is no majority"
    assert judge_keys({b"k": {A: OLD, B: NEW}}, B) == [Difference(A, 1, problem, is_tie=True)]
    found = judge_keys({b"k": {A: OLD, B: NEW, C: OTHER}}, B)
    assert [(one.broker, one.is_tie) for one in found] == [(A, True), (C, True)]


def test_a_majority_for_one_key_tells_more_than_a_tie_for_another():
    lasts = {b"k": {A: OLD, B: NEW, C: OTHER}, b"l": {A: None, B: NEW, C: NEW}}
    found = judge_keys(lasts, B)
    assert [(one.broker, one.offset, one.is_tie) for one in found] == [(A, 5, False), (C, 1, True)]


def test_a_tombstone_and_no_record_vote_together():
    lasts = {b"k": {A: Last(7, None), B: None, C: NEW}}
    assert [one.broker for one in judge_keys(lasts, C)] == [C]


def test_aborted_records_do_not_count():
    mine = {"transactional": True, "producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
    aborted = keyed((1, b"k", b"aborted"), **mine) + build_marker(
        commit=False,
        producer_id=7,
        producer_epoch=0,
        coordinator_epoch=0,
        base_offset=2,
        timestamp=0,
    )
    committed = keyed((3, b"l", b"2"), **{**mine, "base_sequence": 1})
    found = last(keyed((0, b"k", b"1")) + aborted + committed, aborted=[(7, 1)])
    cleaned = last(keyed((0, b"k", b"1")) + committed)
    assert differing_keys(found, cleaned) == {}
    assert len(found.by_key) == 2


def test_records_outside_of_the_range_are_skipped():
    data = keyed((0, b"k", b"1"), (1, b"l", b"2")) + keyed((2, b"m", b"3"))
    assert [one.offset for one in last(data, offset=1, end=2).by_key.values()] == [1]


def test_a_damaged_batch_is_refused():
    with pytest.raises(BadBatch):
        last(damaged(keyed((0, b"k", b"1"))))
