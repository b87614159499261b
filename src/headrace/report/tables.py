"""Rows as an HTML table and as CSV. Pure."""

import base64
import csv
import io
from datetime import datetime
from html import escape
from typing import Any

import pyarrow as pa

from headrace.report.numbers import heading_of, text_of, unit_of

# A spreadsheet takes a cell that begins with one of these for a formula.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def html_table(rows: pa.Table, caption: str) -> str:
    """A table with aligned numbers; ``caption`` is for readers who do not see where it is."""
    columns = rows.column_names
    kinds = ["n" if _is_number(field.type) else "" for field in rows.schema]
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


def _is_number(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    )


def _class(kind: str) -> str:
    return f' class="{kind}"' if kind else ""
