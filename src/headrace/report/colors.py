"""The colors of plots, each with its twin for a dark page. Pure.

A plot is drawn once, in the light colors. On a dark page CSS replaces each color by its twin, in
the static SVG as in the one that Vega draws.
"""

from typing import Final

ACCENT: Final = "#2f6fde"
MUTED: Final = "#7a8494"
SHADE: Final = "#e3e7ee"
GRID: Final = "#e4e8ee"
TEXT: Final = "#4a5361"
# Told apart by lightness too, for readers who see few hues.
SERIES: Final = [ACCENT, "#c2571a", "#1b8a6b", "#8a4fc4", "#b3357d", "#6b7a10"]
DARK: Final = {
    ACCENT: "#7fb0ff",
    MUTED: "#8f9aab",
    SHADE: "#2b3340",
    GRID: "#2a313c",
    TEXT: "#b4bdca",
    "#c2571a": "#f2a068",
    "#1b8a6b": "#5fd0ae",
    "#8a4fc4": "#c4a0f0",
    "#b3357d": "#f08cc0",
    "#6b7a10": "#c5d35a",
}


def dark_rules() -> str:
    """CSS for a dark page."""
    return "".join(
        f'.plot [{part}="{light}"]{{{part}:{dark}}}'
        for light, dark in DARK.items()
        for part in ("fill", "stroke")
    )
