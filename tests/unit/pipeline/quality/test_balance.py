"""Expected and found, by tier, topic and minute."""

from headrace.pipeline.quality.balance import Tier, balance, totals


def compared(expected, found, doubled=None, **more):
    return list(balance(Tier.TABLE, "raw/views", "views", expected, found, doubled, **more))


def test_equal_counts_are_even():
    (one,) = compared({0: 3}, {0: 3})
    assert one.is_even and (one.missing, one.surplus) == (0, 0)


def test_a_minute_without_its_records_is_missing_them():
    first, second = compared({0: 3, 60_000: 2}, {60_000: 1})
    assert (first.missing, second.missing) == (3, 1)
    assert not first.is_even and not second.is_even


def test_records_that_nothing_accounts_for_are_a_surplus():
    (one,) = compared({}, {0: 2})
    assert one.surplus == 2 and not one.is_even


def test_a_doubled_record_does_not_hide_a_missing_one():
    (one,) = compared({0: 3}, {0: 2}, {0: 1})
    assert (one.missing, one.surplus) == (1, 1)
    assert not one.is_even


def test_minutes_whose_beginning_left_the_log_are_not_compared():
    found = compared({60_000: 1}, {0: 5, 60_000: 1}, whole_since_ms=60_000)
    assert [one.minute_ms for one in found] == [60_000]


def test_totals_do_not_cancel_between_minutes():
    (total,) = totals(compared({0: 3, 60_000: 1}, {0: 1, 60_000: 3}))
    assert (total.expected, total.found, total.missing, total.surplus) == (4, 4, 2, 2)
