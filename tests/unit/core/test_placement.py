"""Placement of replicas: round robin, a growing shift, across racks."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.placement import alternate_racks, place
from headrace.model.cluster_metadata import BrokerEntry
from headrace.model.errors import ErrorCode, Rejected
from headrace.model.ids import BrokerId


def brokers(count: int, racks: str | None = None) -> list[BrokerEntry]:
    return [
        BrokerEntry(BrokerId(number), {}, racks[number] if racks else None, number)
        for number in range(count)
    ]


def test_the_first_replica_rotates_and_the_distance_grows_with_every_turn():
    assert place(brokers(3), 7, 2, start=0, shift=0) == [
        (0, 1),
        (1, 2),
        (2, 0),
        (0, 2),
        (1, 0),
        (2, 1),
        (0, 1),
    ]


def test_the_random_numbers_choose_the_start_and_the_distance():
    assert place(brokers(3), 3, 2, start=2, shift=1) == [(2, 1), (0, 2), (1, 0)]


def test_brokers_are_ordered_by_id():
    assert place(brokers(3)[::-1], 3, 1, start=0, shift=0) == [(0,), (1,), (2,)]


def test_a_growing_topic_continues_its_placement_pattern():
    whole = place(brokers(5), 12, 3, start=3, shift=3)
    grown = place(brokers(5), 8, 3, start=3, shift=3, first_partition=4)
    assert grown == whole[4:]


def test_one_broker_holds_everything():
    assert place(brokers(1), 3, 1, start=41, shift=17) == [(0,), (0,), (0,)]


@pytest.mark.parametrize(("factor", "count"), [(0, 3), (-1, 3), (4, 3), (2, 1), (1, 0)])
def test_an_impossible_replication_factor_is_rejected(factor, count):
    with pytest.raises(Rejected) as refused:
        place(brokers(count), 1, factor, start=0, shift=0)
    assert refused.value.code == ErrorCode.INVALID_REPLICATION_FACTOR


@pytest.mark.parametrize("count", [0, -5])
def test_zero_partitions_are_rejected(count):
    with pytest.raises(Rejected) as refused:
        place(brokers(3), count, 1, start=0, shift=0)
    assert refused.value.code == ErrorCode.INVALID_PARTITIONS


def test_neighbors_in_the_order_are_in_different_racks():
    order = alternate_racks([(BrokerId(n), rack) for n, rack in enumerate("AAABBC")])
    assert order == [0, 3, 5, 1, 4, 2]


def test_every_rack_gets_one_before_any_gets_two():
    for replicas in place(brokers(6, "AABBCC"), 24, 3, start=1, shift=2):
        assert len({"AABBCC"[broker] for broker in replicas}) == 3


def test_more_replicas_than_racks_are_still_on_different_brokers():
    for replicas in place(brokers(5, "AAABB"), 20, 4, start=0, shift=0):
        assert len(set(replicas)) == 4
        assert {"AAABB"[broker] for broker in replicas} == {"A", "B"}


def test_one_broker_without_a_rack_turns_racks_off():
    mixed = [*brokers(2, "AA"), BrokerEntry(BrokerId(2), {}, None, 2)]
    assert place(mixed, 3, 2, start=0, shift=0) == place(brokers(3), 3, 2, start=0, shift=0)


@given(
    st.integers(1, 9),
    st.integers(1, 60),
    st.data(),
    st.integers(0, 2**32),
    st.integers(0, 2**32),
)
def test_leaders_are_even_and_replicas_are_on_different_brokers(
    broker_count, partition_count, data, start, shift
):
    factor = data.draw(st.integers(1, broker_count))
    racks = data.draw(st.none() | st.text("ABC", min_size=broker_count, max_size=broker_count))
    placed = place(brokers(broker_count, racks), partition_count, factor, start=start, shift=shift)
    assert len(placed) == partition_count
    for replicas in placed:
        assert len(replicas) == factor == len(set(replicas))
    leaders = Counter(replicas[0] for replicas in placed)
    counts = [leaders[BrokerId(number)] for number in range(broker_count)]
    assert max(counts) - min(counts) <= 1


@given(st.integers(3, 7), st.integers(0, 100), st.integers(0, 100))
def test_partitions_led_by_a_dead_broker_spread_over_all_others(count, start, shift):
    # One turn per distance: every other broker is once second after the dead one.
    placed = place(brokers(count), count * (count - 1), 2, start=start, shift=shift)
    for dead in range(count):
        heirs = Counter(second for first, second in placed if first == dead)
        assert set(heirs) == set(range(count)) - {dead}
        assert set(heirs.values()) == {1}


def test_replicas_are_placed_across_racks_as_kafka_places_them():
    """The example in Kafka's own description of its placement."""
    racks = {0: "rack1", 1: "rack3", 2: "rack3", 3: "rack2", 4: "rack2", 5: "rack1"}
    assert alternate_racks([(BrokerId(b), rack) for b, rack in racks.items()]) == [0, 3, 1, 5, 4, 2]
    entries = [BrokerEntry(BrokerId(b), {}, rack, b) for b, rack in racks.items()]
    assert place(entries, 9, 3, start=0, shift=0) == [
        (0, 3, 1),
        (3, 1, 5),
        (1, 5, 4),
        (5, 4, 2),
        (4, 2, 0),
        (2, 0, 3),
        (0, 4, 2),
        (3, 2, 0),
        (1, 0, 3),
    ]


def test_the_shift_of_added_partitions_counts_from_the_first_of_them_as_in_kafka():
    assert place(brokers(3), 3, 2, start=0, shift=0, first_partition=4) == [(1, 2), (2, 0), (0, 2)]
    assert place(brokers(3), 2, 2, start=0, shift=0, first_partition=3) == [(0, 2), (1, 0)]
