"""An error that occurs again and again gets one log line per ten seconds."""

from headrace.broker.repeat_limit import RepeatLimit


def test_an_error_is_logged_at_once_and_again_after_ten_seconds_with_its_count():
    limit = RepeatLimit()
    assert [limit.occurred("full", now) for now in (0, 0.1, 9.9, 10, 30)] == [
        "",
        None,
        None,
        " (repeated 2 times since the last report)",
        "",
    ]


def test_different_errors_have_their_own_limits():
    limit = RepeatLimit()
    assert limit.occurred("full", 0) == limit.occurred("broken", 0) == ""


def test_after_a_thousand_different_errors_all_are_forgotten():
    limit = RepeatLimit()
    assert all(limit.occurred(number, 0) == "" for number in range(1000))
    assert limit.occurred(0, 0) is None
    assert limit.occurred(1000, 0) == limit.occurred(0, 0) == ""
