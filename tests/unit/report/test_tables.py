"""Rows as HTML and as CSV."""

import base64
import csv
import io
import re
from datetime import UTC, datetime

import pyarrow as pa

from headrace.report.tables import csv_link, csv_text, has_long_texts, html_table

ROWS = pa.table(
    {
        "query": ["<b>bold</b>", "=cmd()", None],
        "views": [12345, 2, 3],
        "late_share": [0.123456789, 0.0, 1.0],
        "since": [datetime(2026, 11, 16, 7, 8, tzinfo=UTC)] * 3,
    }
)


def test_a_table_escapes_texts_and_marks_numbers():
    table = html_table(ROWS, "Searches & more")
    assert "&lt;b&gt;bold&lt;/b&gt;" in table and "<b>" not in table
    assert "<caption>Searches &amp; more</caption>" in table
    assert '<th scope="col" class="n">Views</th>' in table
    assert '<td class="n">12,345</td>' in table
    assert '<td class="s">–</td>' in table
    assert '<td class="n">12.3\u202f%</td>' in table


def test_csv_has_exact_values_and_no_formulas():
    header, *rows = csv.reader(io.StringIO(csv_text(ROWS)))
    assert header == ["query", "views", "late_share", "since"]
    assert rows[0] == ["<b>bold</b>", "12345", "0.123457", "2026-11-16T07:08:00+00:00"]
    assert rows[1][0] == "'=cmd()"
    assert rows[2][0] == ""


def test_a_link_holds_the_file():
    link = csv_link(ROWS, 'a"b')
    assert 'download="a&quot;b.csv"' in link
    data = re.search(r"base64,([^\"]+)", link)[1]
    assert base64.b64decode(data).decode() == csv_text(ROWS)


def test_long_texts_need_the_whole_width():
    assert not has_long_texts(ROWS)
    assert has_long_texts(pa.table({"reason": ["the value is no JSON: expected a value"]}))
