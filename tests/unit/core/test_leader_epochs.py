"""Leader epochs: where each ended, for replicas that truncate and consumers that go back."""

import pytest

from headrace.core.leader_epochs import UNDEFINED, EpochEnd, EpochEntry, LeaderEpochs


def a_history(*entries: tuple[int, int]) -> LeaderEpochs:
    return LeaderEpochs(EpochEntry(*entry) for entry in entries)


def test_the_current_epoch_ends_at_the_log_end():
    assert a_history((0, 0), (2, 10)).end_of(2, 17) == EpochEnd(2, 17)


def test_a_past_epoch_ends_where_the_next_began():
    assert a_history((0, 0), (2, 10), (5, 20)).end_of(2, 30) == EpochEnd(2, 20)


def test_an_epoch_that_never_wrote_is_answered_with_the_one_below_it():
    assert a_history((0, 0), (2, 10), (5, 20)).end_of(3, 30) == EpochEnd(2, 20)


def test_an_epoch_below_all_known_ends_where_the_first_known_begins():
    assert a_history((2, 10), (5, 20)).end_of(1, 30) == EpochEnd(1, 10)


@pytest.mark.parametrize("asked", [-1, 6])
def test_no_epoch_and_one_above_all_known_are_undefined(asked):
    assert a_history((2, 10), (5, 20)).end_of(asked, 30) == UNDEFINED


def test_an_empty_history_answers_undefined():
    history = LeaderEpochs()
    assert history.latest == -1
    assert history.end_of(0, 5) == UNDEFINED
    assert history.epoch_at(3) == -1


def test_an_epoch_is_noted_once():
    history = a_history((1, 10))
    assert not history.assign(1, 12)
    assert history.entries == [(1, 10)]


def test_a_later_assignment_removes_entries_that_contradict_it():
    history = a_history((1, 10), (2, 20), (3, 30))
    assert history.assign(4, 20)
    assert history.entries == [(1, 10), (4, 20)]
    assert history.assign(2, 25)
    assert history.entries == [(1, 10), (2, 25)]
    assert history.latest == 2


def test_an_offset_has_the_epoch_that_contains_it():
    history = a_history((1, 10), (4, 20))
    assert [history.epoch_at(offset) for offset in (9, 10, 19, 20, 99)] == [-1, 1, 1, 4, 4]


def test_an_epoch_without_records_does_not_move_the_start_of_the_epoch_before_it():
    """This replica led epoch 3 and wrote nothing; its new leader still has records of epoch 2.

    If epoch 2 then seemed to begin at 10, epoch 0 would seem to end there, and a follower that
    asks for the end of epoch 0 would keep five records that it must truncate.
    """
    history = a_history((0, 0), (2, 5), (3, 10))
    assert history.assign(2, 10)
    assert history.entries == [(0, 0), (2, 5)]
    assert history.end_of(0, 12) == EpochEnd(0, 5)
    assert history.latest == 2


def test_truncating_the_end_removes_epochs_that_began_there():
    history = a_history((1, 10), (4, 20), (5, 30))
    assert history.truncate_end(20)
    assert history.entries == [(1, 10)]
    assert history.latest == 1
    assert not history.truncate_end(11)


def test_truncating_the_start_keeps_the_epoch_that_contains_it():
    history = a_history((1, 10), (4, 20), (5, 30))
    assert history.truncate_start(25)
    assert history.entries == [(4, 25), (5, 30)]
    assert not history.truncate_start(25)
    assert not history.truncate_start(3)


def test_truncating_everything_keeps_the_last_epoch():
    history = a_history((1, 10), (4, 20))
    assert history.truncate_start(50)
    assert history.entries == [(4, 50)]
    assert history.end_of(4, 50) == EpochEnd(4, 50)


def test_clear_removes_all_entries():
    history = a_history((1, 10))
    history.clear()
    assert (history.entries, history.latest) == ([], -1)
