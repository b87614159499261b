"""Numbers and times as people read them."""

from datetime import UTC, date, datetime

import pytest

from headrace.report.numbers import (
    counted,
    heading_of,
    long_date,
    relative_change,
    signed_percent,
    signed_points,
    text_of,
    unit_of,
)


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (None, "", "–"),
        (1234567, "", "1,234,567"),
        (-3, "", "-3"),
        (3.14159, "", "3.14"),
        (31.4159, "", "31.4"),
        (3141.59, "", "3,142"),
        (True, "", "yes"),
        ("=1+1", "", "=1+1"),
        (0.0, "share", "0.0 %"),
        (0.0042, "share", "0.42 %"),
        (0.314, "share", "31.4 %"),
        (1.0, "share", "100 %"),
        (0.082, "change", "+8.2 %"),
        (45, "seconds", "45 s"),
        (1.25, "seconds", "1.2 s"),
        (252, "seconds", "4 min 12 s"),
        (600, "seconds", "10 min"),
        (11_100, "seconds", "3 h 5 min"),
        (7_200, "seconds", "2 h"),
        (3.25, "ms", "3.2 ms"),
        (812.4, "ms", "812 ms"),
        (2_345, "ms", "2.35 s"),
        (90_000, "ms", "1 min 30 s"),
        (999, "bytes", "999 B"),
        (1_500_000, "bytes", "1.50 MB"),
        (7, "hour", "07:00"),
        (date(2026, 11, 6), "", "6 Nov 2026"),
        (datetime(2026, 11, 6, 7, 8, tzinfo=UTC), "", "6 Nov, 07:08"),
    ],
)
def test_texts_of_values(value, unit, text):
    assert text_of(value, unit).replace("\u202f", " ") == text


def test_the_end_of_a_name_is_a_unit():
    assert [unit_of(name) for name in ("error_share", "p95_ms", "hour", "share", "views")] == [
        "share", "ms", "hour", "share", "",
    ]  # fmt: skip


def test_headings():
    names = ("views_before", "p95_ms", "late_share", "hour", "seconds", "views_change")
    assert [heading_of(name) for name in names] == [
        "Views before", "p95", "Late share", "Hour", "Seconds", "Views change",
    ]  # fmt: skip


def test_changes():
    assert relative_change(110, 100) == pytest.approx(0.1)
    assert relative_change(110, 0) is None and relative_change(None, 1) is None
    texts = [signed_percent(change) for change in (0.1, -0.052, 0, 0.0001, 11.4)]
    assert [text.replace("\u202f", " ") for text in texts] == [
        "+10.0 %", "−5.2 %", "±0.0 %", "±0.0 %", "×12",
    ]  # fmt: skip
    assert signed_points(0.026).replace("\u202f", " ") == "+2.6 points"


def test_words():
    assert long_date(date(2026, 11, 16)) == "Monday, 16 November 2026"
    assert counted(1, "search", "searches") == "1 search"
    assert counted(1200, "search", "searches") == "1,200 searches"
