"""Draws plots: as SVG at two widths, and as the specification that Vega draws again.

The SVG is drawn once, in the light colors; see ``colors.py``.
"""

import json
import re
from typing import Any, Final, NamedTuple

import altair as alt
import vl_convert

from headrace.report.colors import ACCENT, GRID, MUTED, SERIES, TEXT
from headrace.report.definition import Plot

WIDE_PX: Final = 640
NARROW_PX: Final = 360
_TEXT_PX = {WIDE_PX: 13, NARROW_PX: 12}
# Of Vega-Lite, as Altair writes it and vl-convert reads it: 6.4.
_VERSION = ".".join(alt.SCHEMA_VERSION.lstrip("v").split(".")[:2])
# What a browser does not need in a still image: names and roles of groups, and parts without ink.
_NO_INK = re.compile(r'<path class="(?:background|foreground)"[^>]*/>')
_NO_USE = re.compile(
    r" (?:class|aria-[a-z]+|role|pointer-events|font-family|stroke-miterlimit|version|xmlns:xlink)"
    r'="[^"]*"| opacity="1"'
)
_TAG = re.compile(r"<[^>]*>")
_LONG_NUMBER = re.compile(r"-?\d+\.\d{3,}(?![\de])")
_ID = re.compile(r' id="([^"]+)"')
_EMPTY_GROUP = re.compile(r"<g(?: [^>]*)?></g>")


class Drawn(NamedTuple):
    """A plot at both widths."""

    wide: str
    narrow: str
    specification: str  # JSON: the data, and a chart for each width


def config(width: int) -> dict[str, Any]:
    """The look of all plots of a width."""
    size = _TEXT_PX[width]
    texts = {"labelFontSize": size, "titleFontSize": size, "labelColor": TEXT, "titleColor": TEXT}
    return {
        "font": "sans-serif",  # measured; the page has its own fonts
        "background": None,
        "aria": False,  # the page has a text alternative
        "padding": 4,
        "view": {"stroke": None},
        "range": {"category": SERIES},
        "mark": {"color": ACCENT},
        "text": {"fontSize": size, "color": TEXT},
        "axis": texts
        | {"gridColor": GRID, "domainColor": GRID, "tickColor": GRID, "labelPadding": 6},
        "axisY": {"domain": False, "ticks": False},
        "legend": texts
        | {"symbolStrokeWidth": 3, "symbolSize": 90, "offset": 10, "columnPadding": 28},
        "rule": {"color": MUTED},
    }


def draw(plot: Plot, name: str) -> Drawn:
    """Draw a plot; ``name`` distinguishes its elements from those of other plots of the page."""
    wide, narrow = (_specification(plot, width) for width in (WIDE_PX, NARROW_PX))
    stills = _static_svg(wide, WIDE_PX, f"{name}-w"), _static_svg(narrow, NARROW_PX, f"{name}-n")
    datasets = wide.pop("datasets", {})
    narrow.pop("datasets", None)
    both = {"datasets": datasets, "wide": wide, "narrow": narrow}
    return Drawn(*stills, json.dumps(both, separators=(",", ":"), sort_keys=True))


def javascript(snippet: str) -> str:
    """A script with Vega and all that belongs to it, which ``snippet`` may use."""
    bundle: str = vl_convert.javascript_bundle(snippet, vl_version=_VERSION)
    return bundle


def _specification(plot: Plot, width: int) -> dict[str, Any]:
    chart = plot.draw(plot.rows, width)
    # The width of the whole plot, with its labels.
    sized = chart.properties(
        width=width, autosize=alt.AutoSizeParams(type="fit-x", contains="padding")
    )
    # Checking takes as long as drawing, and both widths have the same mistakes.
    found: dict[str, Any] = sized.to_dict(validate=width == WIDE_PX)
    found.pop("config", None)  # Altair's default; the look is the page's
    found.pop("$schema", None)
    return found


def _static_svg(chart: dict[str, Any], width: int, name: str) -> str:
    svg: str = vl_convert.vegalite_to_svg(chart, vl_version=_VERSION, config=config(width))
    svg = _NO_USE.sub("", _NO_INK.sub("", svg))
    svg = _TAG.sub(lambda tag: _LONG_NUMBER.sub(_rounded, tag[0]), svg)
    while (smaller := _EMPTY_GROUP.sub("", svg)) != svg:
        svg = smaller
    # Vega numbers its elements through all plots that the process drew.
    for number, id_ in enumerate(_ID.findall(svg)):
        svg = svg.replace(f'id="{id_}"', f'id="{name}{number}"')
        svg = svg.replace(f"url(#{id_})", f"url(#{name}{number})")
    return svg


def _rounded(number: re.Match[str]) -> str:
    return f"{float(number[0]):.2f}".rstrip("0").rstrip(".")
