"""What a follower's requests name: everything once, then what changed."""

from headrace.core.follower_session import FollowerSession


def a_session(*partitions):
    session = FollowerSession()
    for partition in partitions:
        session.fetch(partition)
    return session


def an_established(*partitions):
    session = a_session(*partitions)
    session.next_request()
    session.answered(7)
    return session


def test_the_first_request_names_everything_and_later_ones_what_changed():
    session = a_session("a", "b")
    assert (session.session_id, session.epoch) == (0, 0)
    assert session.next_request() == (["a", "b"], [])
    session.answered(7)
    assert (session.session_id, session.epoch) == (7, 1)
    assert session.next_request() == ([], [])
    session.answered(7)
    session.moved("b")
    assert session.epoch == 2
    assert session.next_request() == (["b"], [])


def test_a_paused_partition_is_forgotten_once_and_named_again_later():
    session = an_established("a", "b")
    session.pause("a")
    session.moved("a")
    assert session.next_request() == ([], ["a"])
    session.answered(7)
    assert session.next_request() == ([], [])
    session.answered(7)
    session.fetch("a")
    assert session.next_request() == (["a"], [])


def test_a_partition_that_resumes_before_the_next_request_is_not_forgotten():
    session = an_established("a")
    session.pause("a")
    assert not session
    session.fetch("a")
    assert session
    assert session.next_request() == (["a"], [])


def test_a_partition_that_the_leader_never_knew_is_not_forgotten():
    session = an_established("a")
    session.fetch("b")
    session.pause("b")
    assert session.next_request() == ([], [])


def test_without_a_session_every_request_names_everything():
    session = a_session("a", "b")
    for _ in range(2):
        assert session.next_request() == (["a", "b"], [])
        session.answered(0)
    assert (session.session_id, session.epoch) == (0, 0)


def test_after_a_lost_connection_the_old_session_is_closed_with_the_next_request():
    session = an_established("a", "b")
    session.pause("a")
    session.restart(closed=False)
    assert (session.session_id, session.epoch) == (7, 0)
    assert session.next_request() == (["b"], [])
    session.restart(closed=True)
    assert (session.session_id, session.epoch) == (0, 0)


def test_the_epoch_starts_over_at_one():
    session = an_established("a")
    session.epoch = 0x7FFFFFFF
    session.next_request()
    session.answered(7)
    assert session.epoch == 1
