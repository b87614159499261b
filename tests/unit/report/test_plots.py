"""Plots as still images at two widths, and as specifications for Vega."""

import json
import re

import altair as alt
import pyarrow as pa

from headrace.report.colors import DARK
from headrace.report.definition import Plot
from headrace.report.plots import NARROW_PX, WIDE_PX, draw
from headrace.report.shapes import lines_by_hour

ROWS = pa.table(
    {
        "hour": list(range(24)),
        "views": [hour * 37 % 19 if hour < 15 else None for hour in range(24)],
        "views_before": [hour * 41 % 17 for hour in range(24)],
    }
)
PLOT = Plot(
    "Views", ROWS, "Views.", lines_by_hour({"views": "this day", "views_before": "before"}, [14])
)


def width_of(svg):
    return int(re.match(r'<svg [^>]*width="(\d+)"', svg)[1])


def test_a_plot_is_drawn_at_two_widths():
    drawn = draw(PLOT, "p")
    assert (width_of(drawn.wide), width_of(drawn.narrow)) == (WIDE_PX, NARROW_PX)
    assert "this day" in drawn.wide and "this day" in drawn.narrow
    assert len(drawn.wide) < 12_000


def test_an_image_has_colors_with_twins_and_nothing_to_load():
    drawn = draw(PLOT, "p")
    colors = set(re.findall(r'(?:fill|stroke)="(#\w+)"', drawn.wide + drawn.narrow))
    assert colors <= DARK.keys()
    assert not re.search(r"(?:href|src|url|class|aria-\w+)=", drawn.wide)


def test_a_specification_holds_the_data_once():
    both = json.loads(draw(PLOT, "p").specification)
    (rows, shaded) = sorted(both["datasets"].values(), key=len, reverse=True)
    assert len(rows) == 24 and len(shaded) == 1
    assert "datasets" not in both["wide"] and "datasets" not in both["narrow"]
    assert (both["wide"]["width"], both["narrow"]["width"]) == (WIDE_PX, NARROW_PX)


def test_the_same_rows_give_the_same_bytes():
    assert draw(PLOT, "p") == draw(PLOT, "p")


def test_a_plain_chart_of_altair():
    chart = Plot(
        "Bars", ROWS, "", lambda rows, _: alt.Chart(rows).mark_bar().encode(x="hour:O", y="views:Q")
    )
    assert width_of(draw(chart, "p").narrow) == NARROW_PX


def test_elements_are_numbered_within_their_plot():
    """Two plots of a page, and the same plot of two pages, do not depend on each other."""
    clipped = Plot(
        "Bars",
        ROWS,
        "",
        lambda rows, _: alt.Chart(rows).mark_bar(cornerRadiusEnd=3).encode(x="views:Q", y="hour:O"),
    )
    first, second, other = draw(clipped, "a"), draw(clipped, "a"), draw(clipped, "b")
    assert first == second
    ids = set(re.findall(r' id="([^"]+)"', first.wide))
    assert ids and ids == set(re.findall(r"url\(#([^)]+)\)", first.wide))
    assert not ids & set(re.findall(r' id="([^"]+)"', first.narrow + other.wide))
