"""Streams: what each batch holds, where a query goes on, and what it does when data is gone."""

import pytest

from tests.spark.kit import wait_for

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def test_available_now_reads_all_there_is_and_ends(topics, read_stream, collected):
    topic = topics.create(partitions=3)
    for partition in range(3):
        topics.send(topic, [f"{partition}-{n}" for n in range(20)], partition)

    collected.start(
        read_stream(subscribe=topic, startingOffsets="earliest"), availableNow=True
    ).finish()

    assert sorted(collected.values()) == sorted(f"{p}-{n}" for p in range(3) for n in range(20))


def test_a_restarted_query_goes_on_where_it_left_off(topics, read_stream, collected):
    topic = topics.create()
    topics.send(topic, range(5))
    frame = read_stream(subscribe=topic, startingOffsets="earliest")
    collected.start(frame, availableNow=True).finish()
    topics.send(topic, range(5, 8))

    collected.start(frame, availableNow=True).finish()

    assert collected.values() == [str(n) for n in range(8)]


def test_progress_is_committed_to_the_group_the_last_batch_included(topics, read_stream, collected):
    topic = topics.create(partitions=2)
    topics.send(topic, range(7), 0)
    topics.send(topic, range(4), 1)
    group = topics.name("group")

    collected.start(
        read_stream(subscribe=topic, startingOffsets="earliest", kafka__group__id=group),
        availableNow=True,
    ).finish()

    assert topics.committed(group, topic) == {0: 7, 1: 4}


def test_an_idle_query_has_committed_its_last_batch(topics, read_stream, collected):
    topic = topics.create()
    group = topics.name("group")
    collected.start(
        read_stream(subscribe=topic, startingOffsets="earliest", kafka__group__id=group)
    )
    topics.send(topic, range(3))
    collected.wait_for_values(3)

    wait_for(lambda: topics.committed(group, topic) == {0: 3}, "the commit")


def test_new_partitions_are_picked_up_from_their_beginning(topics, read_stream, collected):
    topic = topics.create()
    topics.send(topic, ["a"])
    collected.start(read_stream(subscribe=topic, startingOffsets="earliest"))
    collected.wait_for_values(1)

    topics.add_partitions(topic, 2)
    topics.send(topic, ["b", "c"], 1)

    collected.wait_for_values(3)
    assert sorted(collected.values()) == ["a", "b", "c"]
