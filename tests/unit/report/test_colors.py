"""Every color of a plot has a twin that is readable on a dark page."""

import re
from importlib import resources

import pytest

from headrace.report.colors import ACCENT, DARK, GRID, MUTED, SERIES, SHADE, TEXT, dark_rules


def luminance(color):
    parts = [int(color[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one, other):
    lighter, darker = sorted((luminance(one), luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def page_colors():
    """The colors of the page by name: in the light scheme, and in the dark one."""
    style = resources.files("headrace.report").joinpath("style.css").read_text()
    light, dark = re.findall(r":root \{(.*?)\}", style, re.S)[:2]
    return [dict(re.findall(r"--([a-z-]+): (#\w{6})", part)) for part in (light, dark)]


@pytest.mark.parametrize("color", [*SERIES, MUTED, TEXT])
def test_marks_are_visible_in_both_schemes(color):
    light, dark = page_colors()
    least = 4.5 if color == TEXT else 3.0  # of the web's guidelines, for text and for graphics
    assert contrast(color, light["card"]) >= least
    assert contrast(DARK[color], dark["card"]) >= least


def test_texts_of_the_page_are_readable_in_both_schemes():
    for scheme in page_colors():
        for name in ("text", "soft", "accent", "good", "bad"):
            assert contrast(scheme[name], scheme["card"]) >= 4.5, name
            assert contrast(scheme[name], scheme["page"]) >= 4.5, name
        assert contrast(scheme["mark-text"], scheme["mark"]) >= 4.5
        assert contrast(scheme["good"], scheme["done"]) >= 4.5


def test_dark_rules_cover_every_color():
    assert {*SERIES, ACCENT, MUTED, GRID, SHADE, TEXT} == DARK.keys()
    for light, dark in DARK.items():
        assert f'.plot [fill="{light}"]{{fill:{dark}}}' in dark_rules()
        assert f'.plot [stroke="{light}"]{{stroke:{dark}}}' in dark_rules()
