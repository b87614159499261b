"""New assignments: even, with few moves, across racks."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.cli.reassignment_plan import (
    Move,
    NotEnoughBrokers,
    moves,
    spread,
    without_broker,
)

NO_RACKS = dict.fromkeys(range(20))


def topic(*assignments, name="t"):
    return {(name, number): list(replicas) for number, replicas in enumerate(assignments)}


def held(assignment):
    return Counter(broker for replicas in assignment.values() for broker in replicas)


def led(assignment):
    return Counter(replicas[0] for replicas in assignment.values())


def test_an_even_assignment_stays():
    current = topic([1, 2], [2, 3], [3, 1])
    assert spread(current, current, [1, 2, 3], NO_RACKS) == current


def test_a_new_broker_gets_its_share_and_little_else_moves():
    current = topic([1, 2], [2, 3], [3, 1], [1, 2], [2, 3], [3, 1])
    found = spread(current, current, [1, 2, 3, 4], NO_RACKS)
    assert held(found)[4] == 3
    todo = moves(current, found, {})
    assert sum(len(move.added) for move in todo) == 3
    assert max(led(found).values()) - min(led(found).values()) <= 1


def test_topics_of_one_partition_spread_over_all_brokers():
    current = {(f"t{number}", 0): [1] for number in range(6)}
    assert held(spread(current, current, [1, 2, 3], NO_RACKS)) == {1: 2, 2: 2, 3: 2}


def test_brokers_that_are_not_given_lose_their_replicas():
    current = topic([1, 2], [2, 1])
    assert held(spread(current, current, [2, 3], NO_RACKS)).keys() == {2, 3}


def test_only_the_chosen_partitions_change_and_the_others_count():
    current = {("a", 0): [1], ("b", 0): [1], ("b", 1): [1], ("c", 0): [3]}
    assert spread(current, [("a", 0)], [1, 2, 3], NO_RACKS) == {("a", 0): [2]}


def test_replicas_are_in_different_racks():
    racks = {1: "a", 2: "a", 3: "b", 4: "b"}
    current = topic([1], [2], [3], [4])
    found = spread(current, current, [1, 2, 3, 4], racks, factor=2)
    assert all(racks[a] != racks[b] for a, b in found.values())
    assert set(held(found).values()) == {2}


def test_a_smaller_factor_drops_the_last_replicas():
    current = topic([1, 2, 3], [2, 3, 1], [3, 1, 2])
    found = spread(current, current, [1, 2, 3], NO_RACKS, factor=1, moves=False)
    assert found == topic([1], [2], [3])


def test_a_larger_factor_keeps_the_present_replicas():
    current = topic([1], [1])
    found = spread(current, current, [1, 2, 3], NO_RACKS, factor=3, moves=False)
    assert all(replicas[0] == 1 and set(replicas) == {1, 2, 3} for replicas in found.values())


def test_too_few_brokers_are_refused_by_partition():
    with pytest.raises(NotEnoughBrokers, match="t-0 needs 3 brokers .* only 2 are available"):
        spread(topic([1]), [("t", 0)], [1, 2], NO_RACKS, factor=3)


def test_a_leaving_broker_is_replaced_and_nothing_else_moves():
    current = topic([1, 2], [2, 3], [3, 1])
    racks = dict.fromkeys([1, 2, 3, 4])
    found = without_broker(current, 3, [1, 2, 4], racks)
    assert found == {("t", 1): [2, 4], ("t", 2): [1, 4]}


def test_replicas_on_brokers_that_are_down_stay():
    assert without_broker(topic([1, 3, 9]), 3, [1, 2], NO_RACKS) == topic([1, 9, 2])


def test_a_leaving_broker_without_a_successor():
    current, racks = topic([1, 2], [2]), dict.fromkeys([1, 2])
    with pytest.raises(NotEnoughBrokers, match="t-0"):
        without_broker(current, 2, [1], racks)
    assert without_broker(current, 2, [1], racks, may_shrink=True) == topic([1], [1])
    with pytest.raises(NotEnoughBrokers, match="t-0"):
        without_broker(topic([2]), 2, [], {2: None}, may_shrink=True)


def test_a_move_knows_what_it_copies():
    (move,) = moves(topic([1, 2], [3]), topic([2, 4, 5], [3]), {("t", 0): 10})
    assert move == Move("t", 0, [1, 2], [2, 4, 5], 10)
    assert (move.name, move.added, move.removed, move.bytes_to_copy) == ("t-0", [4, 5], [1], 20)


brokers = st.integers(1, 6)


@given(
    st.dictionaries(
        st.tuples(st.sampled_from("ab"), st.integers(0, 9)),
        st.lists(brokers, min_size=1, max_size=3, unique=True),
        min_size=1,
    ),
    st.sets(brokers, min_size=3),
)
def test_every_assignment_is_possible_and_even_per_topic(current, allowed):
    found = spread(current, current, sorted(allowed), NO_RACKS)
    for partition, replicas in found.items():
        assert len(replicas) == len(set(replicas)) == len(current[partition])
        assert set(replicas) <= allowed
    for name in {one for one, _ in current}:
        counts = held({one: replicas for one, replicas in found.items() if one[0] == name})
        loads = [counts[broker] for broker in allowed]
        # Partitions of different factors cannot always be exchanged.
        assert max(loads) - min(loads) <= 2
