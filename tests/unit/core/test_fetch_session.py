"""Fetch sessions: opened, changed, closed, replaced, and rejected."""

import itertools

import pytest

from headrace.core.fetch_session import CachedPartition, FetchSessions
from headrace.model.errors import ErrorCode, Rejected


def asked(partition=0, fetch_offset=0, topic="t"):
    return CachedPartition(topic, partition, -1, fetch_offset, -1, 1000)


def sessions(count_max=2):
    numbers = itertools.count(1)
    return FetchSessions(count_max, lambda: next(numbers), idle_ms_min=100)


def test_without_a_session_every_request_names_all_partitions():
    fetch = sessions().resolve(0, -1, [asked()], [], False, now=0)
    assert fetch.session_id == 0 and not fetch.incremental
    assert [w.partition for w in fetch.partitions] == [0]


def test_a_session_remembers_its_partitions_and_applies_changes():
    cache = sessions()
    first = cache.resolve(0, 0, [asked(0), asked(1)], [], False, now=0)
    assert first.session_id == 1 and not first.incremental
    second = cache.resolve(1, 1, [asked(1, fetch_offset=9), asked(2)], [("t", 0)], False, now=1)
    assert second.incremental
    assert [(w.partition, w.fetch_offset) for w in second.partitions] == [(1, 9), (2, 0)]


def test_a_response_has_changes_only_and_returned_partitions_move_to_the_end():
    cache = sessions()
    fetch = cache.resolve(0, 0, [asked(0), asked(1)], [], False, now=0)
    session = fetch.session
    first, second = fetch.partitions
    assert session.answered(first, 5, 0, has_records=False, failed=False)
    assert not session.answered(first, 5, 0, has_records=False, failed=False)
    assert session.answered(first, 5, 0, has_records=True, failed=False)
    assert list(session.partitions.values()) == [second, first]
    assert session.answered(second, -1, -1, has_records=False, failed=True)
    assert session.answered(second, -1, -1, has_records=False, failed=True), "an error is repeated"


@pytest.mark.parametrize(
    ("session_id", "session_epoch", "by_topic_id", "code"),
    [
        (77, 1, False, ErrorCode.FETCH_SESSION_ID_NOT_FOUND),
        (1, 2, False, ErrorCode.INVALID_FETCH_SESSION_EPOCH),
        (1, 1, True, ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR),
    ],
)
def test_a_wrong_session_id_epoch_or_topic_reference_is_rejected(
    session_id, session_epoch, by_topic_id, code
):
    cache = sessions()
    cache.resolve(0, 0, [asked()], [], False, now=0)
    with pytest.raises(Rejected) as refusal:
        cache.resolve(session_id, session_epoch, [], [], by_topic_id, now=1)
    assert refusal.value.code is code


def test_a_closed_session_is_gone():
    cache = sessions()
    cache.resolve(0, 0, [asked()], [], False, now=0)
    assert cache.resolve(1, -1, [asked()], [], False, now=0).session_id == 0
    assert len(cache) == 0


def test_a_session_without_partitions_is_closed():
    cache = sessions()
    cache.resolve(0, 0, [asked(0), asked(1)], [], False, now=0)
    assert cache.resolve(1, 1, [], [("t", 0)], False, now=0).session_id == 1
    assert cache.resolve(1, 2, [], [("t", 1)], False, now=0) == ([], None, False)
    assert len(cache) == 0


def test_a_full_cache_gives_no_session_until_one_is_idle_long_enough():
    cache = sessions(count_max=1)
    assert cache.resolve(0, 0, [asked()], [], False, now=0).session_id == 1
    assert cache.resolve(0, 0, [asked()], [], False, now=99).session_id == 0
    assert cache.resolve(0, 0, [asked()], [], False, now=100).session_id == 2
    assert len(cache) == 1


def test_epochs_wrap_to_one():
    cache = sessions()
    session = cache.resolve(0, 0, [asked()], [], False, now=0).session
    session.next_epoch = 0x7FFFFFFF
    cache.resolve(1, 0x7FFFFFFF, [], [], False, now=0)
    assert session.next_epoch == 1


def test_a_followers_session_replaces_a_consumers_but_not_another_followers():
    cache = sessions()
    cache.resolve(0, 0, [asked()], [], False, now=0, is_followers=True)
    cache.resolve(0, 0, [asked()], [], False, now=1)
    assert cache.resolve(0, 0, [asked()], [], False, now=2).session_id == 0
    replacing = cache.resolve(0, 0, [asked()], [], False, now=3, is_followers=True)
    assert replacing.session_id == 3
    assert cache.resolve(0, 0, [asked()], [], False, now=4, is_followers=True).session_id == 0
    assert len(cache) == 2


def test_an_idle_session_lets_go_of_what_the_broker_found_for_it():
    cache = sessions(count_max=9)
    idle, busy = (cache.resolve(0, 0, [asked()], [], False, now=0) for _ in range(2))
    cache.resolve(busy.session_id, 1, [], [], False, now=100)
    for fetch in (idle, busy):
        fetch.partitions[0].found, fetch.partitions[0].found_in = "a replica", 7
    cache.resolve(0, 0, [asked()], [], False, now=100)
    assert idle.partitions[0].found is None and idle.partitions[0].found_in == -1
    assert busy.partitions[0].found == "a replica"
