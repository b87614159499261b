"""Plots that reports draw again and again: lines and stacked bars by hour, bars by name."""

from collections.abc import Callable, Mapping, Sequence

import altair as alt
import pyarrow as pa

from headrace.report.colors import ACCENT, MUTED, SERIES, SHADE
from headrace.report.numbers import heading_of, unit_of

_NARROW_PX = 480
_HEIGHT_PX = 220
_ROW_PX = 24
_LABEL_PX = {True: 110, False: 220}  # room for names: on a narrow screen, on a wide one
_CHARACTER_PX = 7.5
_MS_TEXT = "datum.value < 1000 ? datum.value + ' ms' : datum.value / 1000 + ' s'"
_D3_FORMATS = {
    "": ",~r",
    "share": ".1%",
    "ms": ",~r",
    "seconds": ",~r",
    "bytes": "~s",
    "hour": "02",
}
_SHORT_FORMATS = {"": "~s", "share": "~%", "ms": "~s", "seconds": "~s", "bytes": "~s"}

Chart = alt.Chart | alt.LayerChart | alt.FacetChart
Draw = Callable[[pa.Table, int], Chart]  # from rows and a width in pixels


def lines_by_hour(series: Mapping[str, str], provisional: Sequence[int] = ()) -> Draw:
    """Lines over the hours of a day, one per column of ``series``, which maps them to labels.

    The last column is the one to compare with, drawn in gray, if its name ends with ``_before``.
    """
    columns = list(series)
    colors = [
        MUTED if name.endswith("_before") else color
        for name, color in zip(columns, SERIES, strict=False)
    ]

    def draw(rows: pa.Table, width: int) -> Chart:
        unit = unit_of(columns[0])
        hours = alt.X("hour:Q").scale(domain=[-0.5, 23.5], nice=False)
        hours = hours.axis(_hour_axis(width))
        measured = alt.Y("value:Q").axis(_value_axis(unit)).scale(zero=True)
        names = [series[name] for name in columns]
        told = alt.Color("series:N").scale(domain=names, range=colors)
        told = told.legend(None if len(names) == 1 else _legend(width, names))
        folded = (
            alt.Chart(rows)
            .transform_fold([*columns], as_=["column", "value"])
            .transform_calculate(series=f"{_lookup(series)}[datum.column]")
            .transform_filter("isValid(datum.value)")
        )
        lines = folded.mark_line(strokeWidth=2, strokeJoin="round").encode(
            x=hours, y=measured, color=told
        )
        area = (
            alt.Chart(rows)
            .transform_filter(f"isValid(datum[{columns[0]!r}])")
            .mark_area(color=ACCENT, opacity=0.1)
            .encode(x=hours, y=alt.Y(f"{columns[0]}:Q"))
        )
        shaded = [_shaded(provisional)] if provisional else []
        filled = [area] if len(columns) - sum(n.endswith("_before") for n in columns) == 1 else []
        return alt.layer(*shaded, *filled, lines, _touched(rows, columns, series)).properties(
            height=_HEIGHT_PX
        )

    return draw


def groups_by_hour(
    value: str,
    group: str,
    names: Sequence[str],
    *,
    stacked: bool = False,
    provisional: Sequence[int] = (),
) -> Draw:
    """Rows of hour, group and value as lines, or as stacked bars; ``names`` lists the groups."""

    def draw(rows: pa.Table, width: int) -> Chart:
        told = alt.Color(f"{group}:N").scale(domain=list(names), range=SERIES[: len(names)])
        base = (
            alt.Chart(rows)
            .transform_calculate(time=_hour_text("datum.hour"))
            .encode(
                x=alt.X("hour:Q").scale(domain=[-0.5, 23.5], nice=False).axis(_hour_axis(width)),
                y=alt.Y(f"{value}:Q").axis(_value_axis(unit_of(value), whole=stacked)),
                color=told.legend(_legend(width, names, "square" if stacked else "stroke")),
                tooltip=[
                    alt.Tooltip("time:N", title="Hour"),
                    _tooltip(group, "N"),
                    _tooltip(value),
                ],
            )
        )
        shaded = [_shaded(provisional)] if provisional else []
        if stacked:
            drawn = [base.mark_bar(size=round(0.6 * width / 26))]
        else:
            # Points large enough for a pointer.
            drawn = [base.mark_line(strokeWidth=2), base.mark_point(size=300, opacity=0)]
        return alt.layer(*shaded, *drawn).properties(height=_HEIGHT_PX)

    return draw


def bars(name: str, value: str, *more: str) -> Draw:
    """One bar per row, in the order of the rows, with its value; ``more`` is for the tooltip."""

    def draw(rows: pa.Table, width: int) -> Chart:
        unit = unit_of(value)
        texts = [str(text) for text in rows.column(name).to_pylist()]
        longest = max(map(len, texts), default=0)
        room_px = _LABEL_PX[width < _NARROW_PX]
        # Browsers have wider fonts than the one that is measured here.
        axis = alt.Axis(
            labelLimit=round(0.85 * room_px),
            minExtent=min(room_px, round(longest * _CHARACTER_PX)) + 6,
            title=None,
            ticks=False,
            domain=False,
        )
        named = alt.Y(f"{name}:N", sort=None).axis(axis)
        largest = max((number or 0 for number in rows.column(value).to_pylist()), default=0)
        with_number = (1.3 if width < _NARROW_PX else 1.18) * largest
        scale = alt.Scale(domain=[0, with_number or 1], nice=False)
        base = alt.Chart(rows).encode(y=named)
        drawn = base.mark_bar(color=ACCENT, size=14).encode(
            x=alt.X(f"{value}:Q").axis(None).scale(scale),
            tooltip=[_tooltip(name, "N"), _tooltip(value), *(_tooltip(other) for other in more)],
        )
        text = base.mark_text(align="left", dx=5, color=MUTED).encode(
            x=alt.X(f"{value}:Q"), text=alt.Text(f"{value}:Q", format=_D3_FORMATS[unit])
        )
        return alt.layer(drawn, text).properties(height=_ROW_PX * max(rows.num_rows, 1))

    return draw


def percentiles(name: str) -> Draw:
    """For each row a line from ``p50_ms`` to ``p99_ms``, with dots there and at ``p95_ms``."""

    def draw(rows: pa.Table, width: int) -> Chart:
        limit = _LABEL_PX[width < _NARROW_PX]
        axis = alt.Axis(title=None, ticks=False, domain=False, labelLimit=limit)
        base = alt.Chart(rows).encode(y=alt.Y(f"{name}:N", sort=None).axis(axis))
        low = max(min(rows.column("p50_ms").to_pylist()), 0.1)
        high = max(*rows.column("p99_ms").to_pylist(), 2 * low)
        ticks = [m * 10**e for e in range(-1, 7) for m in (1, 2, 5) if low < m * 10**e < high]
        measured = alt.Axis(title=None, values=ticks, labelExpr=_MS_TEXT)
        scale = alt.Scale(type="log", domain=[0.9 * low, 1.1 * high], nice=False, clamp=True)
        columns = {f"p{number}_ms": f"p{number} (ms)" for number in (50, 95, 99)}
        told = [alt.Tooltip(f"{name}:N", title=heading_of(name))]
        told += [alt.Tooltip(f"{c}:Q", title=t, format=",.1f") for c, t in columns.items()]
        span = base.mark_rule(strokeWidth=3, color=MUTED, opacity=0.5).encode(
            x=alt.X("p50_ms:Q", scale=scale, axis=measured), x2="p99_ms:Q", tooltip=told
        )
        sizes = {"p50_ms": (60, MUTED), "p99_ms": (60, MUTED), "p95_ms": (130, ACCENT)}
        dots = [
            base.mark_circle(size=size, color=color, opacity=1).encode(x=f"{c}:Q", tooltip=told)
            for c, (size, color) in sizes.items()
        ]
        return alt.layer(span, *dots).properties(height=44 * max(rows.num_rows, 1))

    return draw


def _hour_axis(width: int) -> alt.Axis:
    step = 6 if width < _NARROW_PX else 3
    return alt.Axis(
        title=None, values=list(range(0, 24, step)), grid=False, labelExpr=_hour_text("datum.value")
    )


def _hour_text(value: str) -> str:
    return f"pad({value}, 2, '0', 'left') + ':00'"


def _value_axis(unit: str, whole: bool = False) -> alt.Axis:
    step = 1 if whole else alt.Undefined
    # Each label has its own unit: 0, 500, 1k.
    text = f"format(datum.value, '{_SHORT_FORMATS[unit]}')"
    return alt.Axis(title=None, labelExpr=text, tickCount=4, tickMinStep=step)


def _legend(width: int, names: Sequence[str], symbol: str = "stroke") -> alt.Legend:
    columns = 2 if width < _NARROW_PX and len(names) > 2 else 0
    return alt.Legend(title=None, orient="top", symbolType=symbol, columns=columns)


def _lookup(series: Mapping[str, str]) -> str:
    pairs = ", ".join(f"{name!r}: {label!r}" for name, label in series.items())
    return f"{{{pairs}}}"


def _shaded(hours: Sequence[int]) -> alt.Chart:
    """The hours whose numbers may still change, behind the lines."""
    place = pa.table({"first": [hours[0] - 0.5], "last": [hours[-1] + 0.5]})
    shade = alt.Chart(place).mark_rect(color=SHADE, opacity=0.5)
    drawn: alt.Chart = shade.encode(x=alt.X("first:Q").title(None), x2="last:Q")
    return drawn


def _touched(rows: pa.Table, columns: Sequence[str], series: Mapping[str, str]) -> alt.Chart:
    """Columns over the whole height that show the numbers of an hour under the pointer."""
    told = [
        alt.Tooltip(f"{name}:Q", title=series[name], format=_D3_FORMATS[unit_of(name)])
        for name in columns
    ]
    drawn: alt.Chart = (
        alt.Chart(rows)
        .transform_calculate(left="datum.hour - 0.5", right="datum.hour + 0.5")
        .transform_calculate(time=_hour_text("datum.hour"))
        .mark_rect(opacity=0)
        .encode(
            x=alt.X("left:Q").title(None),
            x2="right:Q",
            tooltip=[alt.Tooltip("time:N", title="Hour"), *told],
        )
    )
    return drawn


def _tooltip(column: str, kind: str = "Q") -> alt.Tooltip:
    heading = heading_of(column)
    if kind == "N":
        return alt.Tooltip(f"{column}:N", title=heading)
    return alt.Tooltip(f"{column}:Q", title=heading, format=_D3_FORMATS[unit_of(column)])
