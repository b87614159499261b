"""The plots that reports draw again and again."""

import pyarrow as pa
import pytest

from headrace.report.colors import ACCENT, MUTED, SERIES, SHADE
from headrace.report.definition import Plot
from headrace.report.plots import draw
from headrace.report.shapes import bars, groups_by_hour, lines_by_hour, percentiles


def svg(rows, shape):
    return draw(Plot("", rows, "", shape), "p").wide


def test_the_day_before_is_gray():
    rows = pa.table({"hour": [0, 1], "views": [1, 2], "views_before": [2, 1]})
    drawn = svg(rows, lines_by_hour({"views": "now", "views_before": "before"}))
    assert f'stroke="{ACCENT}"' in drawn and f'stroke="{MUTED}"' in drawn
    assert SHADE not in drawn


def test_provisional_hours_are_shaded():
    rows = pa.table({"hour": [0, 1], "views": [1, 2]})
    assert SHADE in svg(rows, lines_by_hour({"views": "now"}, range(1, 2)))


@pytest.mark.parametrize("stacked", [True, False])
def test_each_group_has_its_color(stacked):
    rows = pa.table({"hour": [0, 0, 1, 1], "kind": ["a", "b", "a", "b"], "n": [1, 2, 3, 4]})
    drawn = svg(rows, groups_by_hour("n", "kind", ["a", "b"], stacked=stacked))
    assert SERIES[0] in drawn and SERIES[1] in drawn and SERIES[2] not in drawn


def test_bars_have_their_values_and_keep_their_order():
    rows = pa.table({"page": ["/z", "/a", "/m"], "views": [1200, 30, 4]})
    drawn = svg(rows, bars("page", "views"))
    assert "1,200" in drawn
    assert drawn.index("/z") < drawn.index("/a") < drawn.index("/m")


def test_bars_of_nothing():
    assert svg(pa.table({"page": ["/"], "views": [0]}), bars("page", "views")).startswith("<svg")


@pytest.mark.parametrize("p50", [0.0, 20.0])
def test_percentiles_have_three_dots_for_each_row(p50):
    """Also where a duration is zero, which has no logarithm."""
    rows = pa.table({"service": ["a", "b"], "p50_ms": [p50, 30.0], "p95_ms": [90.0, 95.0],
                     "p99_ms": [700.0, 1500.0]})  # fmt: skip
    drawn = svg(rows, percentiles("service"))
    assert drawn.count(f'fill="{ACCENT}"') == 2 and drawn.count(f'fill="{MUTED}"') == 4
    assert "100 ms" in drawn and "1 s" in drawn and "NaN" not in drawn
