"""Builds the page of a report: one HTML file that needs nothing else.

The same tables give the same bytes: no clock is read, and times come from the data.
"""

import json
import re
from collections.abc import Iterable
from html import escape
from importlib import resources
from pathlib import Path

import duckdb

from headrace import __version__
from headrace.report.colors import dark_rules
from headrace.report.day import Day
from headrace.report.definition import (
    Block,
    Figure,
    Figures,
    Panel,
    Plot,
    Report,
    Table,
    failed_panel,
)
from headrace.report.numbers import (
    long_date,
    relative_change,
    short_date,
    signed_percent,
    signed_points,
    text_of,
)
from headrace.report.plots import NARROW_PX, WIDE_PX, config, draw, javascript
from headrace.report.tables import csv_link, has_long_texts, html_table

# Nothing may be loaded, whatever a report file puts into its page.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
_SMALL_CHANGE = 0.01  # neither good nor bad
_SCRIPTS_POLICY = _POLICY + "; script-src 'unsafe-inline'"


def build_page(report: Report, path: Path, day: Day, *, static: bool = False) -> str:
    """The page. ``path`` is the report file, for errors. Raises ReportFailed."""
    sections = []
    for which in report.panels:
        try:
            sections.append(_section(which, day, static))
        except (duckdb.Error, ArithmeticError, LookupError, TypeError, ValueError) as failure:
            raise failed_panel(path, which, failure) from failure
    body = f"<main>{_header(report, day)}{''.join(sections)}{_footer()}</main>"
    scripts = "" if static or "<figure" not in body else _scripts()
    policy = _SCRIPTS_POLICY if scripts else _POLICY
    title = f"{report.title}, {long_date(day.date)}"
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_style()}</style></head>\n"
        f"<body>{body}{scripts}</body></html>\n"
    )


def _style() -> str:
    css = _resource("style.css")
    return f"{css}@media screen and (prefers-color-scheme: dark) {{{dark_rules()}}}"


def _scripts() -> str:
    look = {"configs": {"wide": config(WIDE_PX), "narrow": config(NARROW_PX)}}
    return (
        f'<script type="application/json" id="look">{_for_script(json.dumps(look))}</script>'
        f"<script>{_for_script(javascript(_resource('tooltips.js')))}</script>"
    )


def _resource(name: str) -> str:
    return resources.files("headrace.report").joinpath(name).read_text(encoding="utf-8")


def _for_script(text: str) -> str:
    """Text that does not end its script element, whatever visitors wrote."""
    return re.sub(r"<(?=/script|!--|script)", r"\\u003c", text, flags=re.IGNORECASE)


def _header(report: Report, day: Day) -> str:
    before = long_date(day.start.date().fromordinal(day.date.toordinal() - 1))
    facts = [_state(day), f"<span>00:00 to 24:00 UTC, compared with {before}</span>"]
    if day.newest_event is not None:
        newest = min(day.newest_event, day.end)
        shown = "24:00" if newest == day.end else f"{newest:%H:%M}"
        facts.append(f"<span>Events until {shown} on {short_date(day.date)}</span>")
    loaded_at = day.loaded_at()
    if loaded_at is not None:
        facts.append(f"<span>Loaded {text_of(loaded_at)}</span>")
    links = "".join(
        f'<a href="#{_anchor(which.title)}">{escape(which.title)}</a>' for which in report.panels
    )
    return (
        f'<header><p class="eyebrow">{escape(report.title)}</p><h1>{long_date(day.date)}</h1>'
        f'<div class="facts">{"".join(facts)}</div><nav aria-label="Panels">{links}</nav></header>'
    )


def _state(day: Day) -> str:
    if day.is_settled:
        return '<span class="badge">Complete</span>'
    return f'<span class="badge provisional">Provisional after {day.settled_until:%H:%M}</span>'


def _footer() -> str:
    return (
        "<footer>Each event is counted once, however often it was sent. Hours on a shaded "
        "background are provisional: late events may still change them. All times are in UTC. "
        f"Written by Headrace {__version__}.</footer>"
    )


def _section(which: Panel, day: Day, static: bool) -> str:
    anchor = _anchor(which.title)
    lacking = next((view for view in which.needs if not day.has(view)), None)
    if lacking is not None:
        content = f'<p class="empty">{escape(day.missing(lacking))}</p>'
    else:
        blocks = _blocks(which.build(day), anchor, static)
        content = f'<div class="blocks">{blocks}</div>'
    return (
        f'<section id="{anchor}" aria-labelledby="{anchor}-title">'
        f'<h2 id="{anchor}-title">{escape(which.title)}</h2>{content}</section>'
    )


def _blocks(blocks: Iterable[Block], anchor: str, static: bool) -> str:
    """Plots and tables in two columns where there is room, the others over both."""
    parts: list[str] = []
    alone: int | None = None  # the slot of a table without a neighbor
    for number, block in enumerate(blocks, 1):
        is_wide = not isinstance(block, (Plot, Table)) or (
            isinstance(block, Table) and has_long_texts(block.rows)
        )
        if is_wide and alone is not None:
            parts[alone] = _full_width(parts[alone])
        match block:
            case Figures():
                parts.append(_figures(block))
            case Plot():
                parts.append(_plot(block, f"{anchor}-{number}", static))
            case Table():
                parts.append(_table(block))
            case _:
                parts.append(f"<p>{escape(block)}</p>")
        if is_wide:
            parts[-1] = _full_width(parts[-1])
            alone = None
        else:
            alone = len(parts) - 1 if alone is None else None
    if alone is not None:
        parts[alone] = _full_width(parts[alone])
    return "".join(parts)


def _full_width(part: str) -> str:
    return f'<div class="both">{part}</div>'


def _figures(block: Figures) -> str:
    return f'<dl class="figures">{"".join(map(_figure, block.figures))}</dl>'


def _figure(figure: Figure) -> str:
    told = _change(figure) or escape(figure.note)
    return (
        f"<div><dt>{escape(figure.label)}</dt>"
        f'<dd class="value">{escape(text_of(figure.value, figure.unit))}</dd>'
        + (f'<dd class="change">{told}</dd>' if told else "")
        + "</div>"
    )


def _change(figure: Figure) -> str:
    """How a figure changed: a share in points, because a percentage of a percentage misleads."""
    change = relative_change(figure.value, figure.before)
    if change is None or figure.value is None or figure.before is None:
        return ""
    is_share = figure.unit == "share"
    told = signed_points(figure.value - figure.before) if is_share else signed_percent(change)
    good = {"up": change > 0, "down": change < 0}.get(figure.good)
    mark = "" if good is None or abs(change) < _SMALL_CHANGE else "good" if good else "bad"
    shown = f'<b class="{mark}">' if mark else "<b>"
    return f"{shown}{told}</b> from {escape(text_of(figure.before, figure.unit))}"


def _plot(block: Plot, name: str, static: bool) -> str:
    drawn = draw(block, name)
    specification = (
        ""
        if static
        else f'<script type="application/json">{_for_script(drawn.specification)}</script>'
    )
    return (
        f'<figure class="plot" aria-labelledby="{name}"><h3>{escape(block.title)}</h3>'
        f'<figcaption id="{name}">{escape(block.summary)}</figcaption>'
        f'<div role="img" aria-labelledby="{name}"><div class="wide">{drawn.wide}</div>'
        # Readers of mail that ignore styles of the head show one of the two.
        f'<div class="narrow" style="display:none">{drawn.narrow}</div></div>'
        f"<details><summary>Numbers</summary>{html_table(block.rows, block.title)}"
        f"{csv_link(block.rows, name)}</details>{specification}</figure>"
    )


def _table(block: Table) -> str:
    note = f'<p class="note">{escape(block.note)}</p>' if block.note else ""
    return (
        f"<div><h3>{escape(block.title)}</h3>{note}{html_table(block.rows, block.title)}"
        f"{csv_link(block.rows, _anchor(block.title))}</div>"
    )


def _anchor(title: str) -> str:
    return re.sub(r"\W+", "-", title.lower()).strip("-")
