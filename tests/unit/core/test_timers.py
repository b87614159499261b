"""Named deadlines that move."""

from headrace.core.timers import Timers


def test_a_deadline_is_due_at_its_time_and_not_before():
    timers = Timers()
    timers.set("a", 10)
    assert timers.next_deadline() == 10
    assert timers.pop_due(9) is None
    assert timers.pop_due(10) == "a"
    assert timers.pop_due(10) is None
    assert timers.next_deadline() is None


def test_deadlines_expire_in_order_of_time():
    timers = Timers()
    for name, at in (("c", 3), ("a", 1), ("b", 2)):
        timers.set(name, at)
    assert [timers.pop_due(9) for _ in range(4)] == ["a", "b", "c", None]


def test_a_postponed_deadline_is_due_at_the_new_time():
    timers = Timers()
    timers.set("a", 10)
    timers.set("a", 20)
    assert timers.pop_due(15) is None
    assert timers.next_deadline() == 20
    assert timers.pop_due(20) == "a"


def test_a_deadline_moved_forward_is_due_once():
    timers = Timers()
    timers.set("a", 20)
    timers.set("a", 10)
    assert timers.pop_due(10) == "a"
    assert timers.pop_due(30) is None


def test_a_deadline_moved_forward_and_back_is_due_once_at_its_last_time():
    timers = Timers()
    timers.set("a", 20)
    timers.set("a", 10)
    timers.set("a", 20)
    assert timers.pop_due(19) is None
    assert timers.pop_due(20) == "a"
    assert timers.pop_due(20) is None


def test_a_canceled_deadline_never_expires():
    timers = Timers()
    timers.set("a", 10)
    timers.set("b", 20)
    timers.cancel("a")
    timers.cancel("never set")
    assert timers.next_deadline() == 20
    assert "a" not in timers
    assert timers.pop_due(99) == "b"
    assert len(timers) == 0


def test_a_deadline_canceled_and_set_again_expires_once():
    timers = Timers()
    timers.set("a", 10)
    timers.cancel("a")
    timers.set("a", 30)
    assert timers.pop_due(29) is None
    assert timers.at("a") == 30
    assert timers.pop_due(30) == "a"
    assert timers.pop_due(99) is None
