"""Numbers as people read them."""

import pytest

from headrace.model.units import duration


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "0 ms"),
        (999, "999 ms"),
        (1_000, "1 s"),
        (1_500, "1 s 500 ms"),
        (3_600_000, "1 h"),
        (12_934_678, "3 h 35 min"),
        (90_000_000, "1 d 1 h"),
        (2**63 - 1, "106,751,991,167 d 7 h"),
    ],
)
def test_a_duration_has_its_two_largest_units(ms, text):
    assert duration(ms) == text
