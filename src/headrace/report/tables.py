"""Rows as an HTML table and as CSV. Pure."""

import base64
import csv
import io
from datetime import datetime
from html import escape
from typing import Any

import pyarrow as pa

from headrace.report.numbers import heading_of, text_of, unit_of

_SHORT, _LONG = 18, 32  # characters
# A spreadsheet takes a cell that begins with one of these for a formula.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def html_table(rows: pa.Table, caption: str) -> str:
    """A table with aligned numbers; ``caption`` is for screen readers."""
    columns = rows.column_names
    kinds = [_kind(rows, name) for name in columns]
    units = [unit_of(name) for name in columns]
    head = "".join(
        f'<th scope="col"{_class(kind)}>{escape(heading_of(name))}</th>'
        for name, kind in zip(columns, kinds, strict=True)
    )
    body = "".join(
        "<tr>"
        + "".join(
            f"<td{_class(kind)}>{escape(text_of(row[name], unit))}</td>"
            for name, kind, unit in zip(columns, kinds, units, strict=True)
        )
        + "</tr>"
        for row in rows.to_pylist()
    )
    return (
        f'<div class="rows"><table><caption>{escape(caption)}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def csv_link(rows: pa.Table, name: str) -> str:
    """A link that holds the rows as a file."""
    data = base64.b64encode(csv_text(rows).encode()).decode()
    return (
        f'<a class="csv" download="{escape(name)}.csv" '
        f'href="data:text/csv;charset=utf-8;base64,{data}">CSV</a>'
    )


def csv_text(rows: pa.Table) -> str:
    """The rows with exact numbers, and times in ISO 8601."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\r\n")
    writer.writerow(rows.column_names)
    writer.writerows([_cell(value) for value in row.values()] for row in rows.to_pylist())
    return file.getvalue()


def _cell(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, float):
        return round(value, 6)
    if isinstance(value, str) and value.startswith(_FORMULA):
        return "'" + value
    return value


def has_long_texts(rows: pa.Table) -> bool:
    """Whether a column needs the whole width of the page."""
    return any(_longest(rows, name) > _LONG for name in rows.column_names)


def _longest(rows: pa.Table, column: str) -> int:
    if not pa.types.is_string(rows.schema.field(column).type):
        return 0
    return max((len(text) for text in rows.column(column).to_pylist() if text), default=0)


def _kind(rows: pa.Table, column: str) -> str:
    """The class of a column's cells: n for numbers, s for texts that stay on one line."""
    kind = rows.schema.field(column).type
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return "n"
    return "s" if _longest(rows, column) <= _SHORT else ""


def _class(kind: str) -> str:
    return f' class="{kind}"' if kind else ""
