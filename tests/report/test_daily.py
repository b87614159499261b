"""The daily report: its numbers, its size, and that the same tables give the same bytes."""

import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from deltalake import DeltaTable

from headrace.report.errors import ReportFailed
from tests.report.conftest import build
from tests.report.warehouse import DAY, START

ROOT = Path(__file__).parents[2]
PANELS = [
    "At a glance", "Traffic", "Pages", "Sessions", "Ranking movers", "Security", "Service health",
    "Audit", "Expectations", "Late events and dead letters",
]  # fmt: skip
VOID = {"meta", "br", "img", "path", "line", "rect"}


class Document(HTMLParser):
    """Checks that elements are closed, and collects them."""

    def __init__(self, page):
        super().__init__()
        self.stack, self.elements, self.texts = [], [], []
        self.feed(page)
        assert self.stack == []

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag not in VOID:
            self.stack.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.stack.pop() == tag

    def handle_data(self, data):
        if not {"style", "script"} & set(self.stack):
            self.texts.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.texts).split())

    def all(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]


@pytest.fixture(scope="module")
def document(static_page):
    return Document(static_page)


def test_every_panel_has_a_heading_and_a_link(document):
    assert [attributes["href"] for attributes in document.all("a")][: len(PANELS)] == [
        f"#{section['id']}" for section in document.all("section")
    ]
    for title in PANELS:
        assert title in document.texts


def test_the_numbers_are_those_of_the_tables(document, warehouse):
    text = document.text
    assert "Page views 6,000 +11.1 % from 5,400" in text
    requests = DeltaTable(str(warehouse / "raw" / "requests")).to_pyarrow_table()
    of_day = {}
    for event_id, at, status in zip(
        *(requests.column(name).to_pylist() for name in ("event_id", "at", "status")), strict=True
    ):
        if at.date() == DAY:
            of_day[event_id] = status >= 500
    share = sum(of_day.values()) / len(of_day)
    assert f"Failed requests {share * 100:.1f} %" in text
    assert "Every record was loaded once." in text
    assert "All tiers hold what they should." in text
    for tier in ("broker", "table raw/page-views", "job activity/10s", "job security/1s"):
        assert f"page-views {tier} 100 100 0 0" in " ".join(text.split()), tier


def test_dead_letters_are_counted_once_and_by_the_day_of_their_neighbors(document):
    assert "page-views load decode the value is no JSON: expected a value at … 2" in document.text
    assert "the event time, … ms, is too late 1" in document.text


def test_rows_that_broke_a_rule_are_counted_over_all_batches(document, warehouse, tmp_path):
    text = " ".join(document.text.split())
    assert "9 rows of page_views broke the rule has_visitor, 0.90 % of all." in text
    assert "shop page_views has_visitor 1,000 9 0.90 % 100 2 17 Nov, 00:21" in text
    assert "shop page_views short_page 1,000 0 0.0 % 100 0 17 Nov, 00:21" in text
    shutil.copytree(warehouse / "sessions", tmp_path / "sessions")
    assert "No pipeline of this warehouse has counted rows" in build(tmp_path, DAY)


def test_exact_and_estimated_visitors_are_told_apart(document):
    assert "Visitors on this page are exact" in document.text
    assert "estimates, with a standard error of 1.6 %." in document.text


def test_every_plot_has_a_text_its_numbers_and_a_file(document, static_page):
    plots = re.findall(r'<figure class="plot".*?</figure>', static_page, re.S)
    assert len(plots) == 9
    for plot in plots:
        named = re.search(r'role="img" aria-labelledby="([^"]+)"', plot)[1]
        caption = re.search(rf'<figcaption id="{named}">([^<]+)</figcaption>', plot)[1]
        assert len(caption) > 10
        assert plot.count("<svg ") == 2 and plot.count("<table>") == 1
        assert re.search(r'download="[\w-]+\.csv" href="data:text/csv;', plot)


def test_what_visitors_wrote_is_text(page, static_page):
    for written in (page, static_page):
        assert "<script>alert(1)" not in written
        assert "&lt;script&gt;alert(1)&lt;/script&gt;" in written


def test_a_page_loads_nothing_and_is_small_enough(page, static_page):
    assert len(page.encode()) <= 1_500_000
    assert len(static_page.encode()) <= 400_000
    assert "<script" not in static_page
    for written in (page, static_page):
        assert "default-src 'none'" in written
        document = Document(re.sub(r"<script>.*?</script>", "", written, flags=re.S))
        loaded = [a for _, a in document.elements if "src" in a or a.get("rel")]
        assert loaded == []
        for attributes in document.all("a"):
            assert attributes["href"].startswith(("#", "data:text/csv"))


# What the extra ``report`` does not bring.
ELSEWHERE = """
import sys
from importlib.abc import MetaPathFinder

class NotInstalled(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("numpy", "pandas", "polars", "py4j", "pyspark"):
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, NotInstalled())
from headrace.cli.main import main
main(sys.argv[1:])
"""


def test_the_same_tables_give_the_same_bytes(warehouse, page, static_page, tmp_path):
    assert build(warehouse) == static_page
    # Another process, with sets in another order, in another time zone, from a copy, without Spark.
    shutil.copytree(warehouse, tmp_path / "copy")
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    environment |= {"PYTHONHASHSEED": "4711", "TZ": "Asia/Tokyo"}
    written = tmp_path / "page.html"
    arguments = ["report", "daily", "--warehouse", str(tmp_path / "copy"), "-o", str(written)]
    ran = subprocess.run(
        [sys.executable, "-c", ELSEWHERE, *arguments],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    assert written.read_text(encoding="utf-8") == page


def test_an_unfinished_day_is_marked(unfinished):
    written = build(unfinished, DAY)
    text = Document(written).text
    assert "Provisional after 14:5" in text
    assert "From 14:00 on, numbers are provisional." in text
    assert "The day is not complete. The day before is counted until 15:0" in text
    # Hours that have not begun have no number; hours that may change say so.
    assert '<td class="n">16:00</td><td class="n">–</td>' in written
    assert re.search(r'<td class="n">14:00</td><td class="n">\d+</td>.*?<td class="s">yes', written)


@pytest.mark.parametrize("kept", ["nothing", "jobs", "events"])
def test_missing_tables_are_one_sentence_each(warehouse, tmp_path, kept):
    chosen = {"nothing": [], "jobs": ["sessions", "incidents"], "events": ["raw/searches"]}[kept]
    for name in chosen:
        shutil.copytree(warehouse / name, tmp_path / name)
    text = Document(build(tmp_path, DAY)).text
    assert ("The warehouse has no table sessions." in text) == (kept != "jobs")
    assert "The warehouse has no table raw/page-views." in text
    assert "The warehouse has no table raw/requests." in text


def test_empty_tables_and_other_days(warehouse, tmp_path):
    shutil.copytree(warehouse / "sessions", tmp_path / "sessions")
    DeltaTable(str(tmp_path / "sessions")).delete()
    assert "The table sessions has no rows." in build(tmp_path, DAY)
    text = Document(build(warehouse, DAY.replace(day=20))).text
    assert "The table raw/page-views has no rows for this day." in text
    assert "No session started on this day." in text and "No incident on this day." in text


OWN = """
import altair as alt
from headrace.report import Plot, Table, bars, panel

@panel("Hosts", needs=["events_requests"])
def hosts(day):
    rows = day.sql("select host, count(*) as requests from events_requests where today group by 1")
    yield "One host serves all."
    yield Plot("Requests", rows, "Requests by host.", bars("host", "requests"))
    yield Table("The same", rows)
"""


def test_an_own_report(warehouse, tmp_path):
    file = tmp_path / "hosts.py"
    file.write_text(OWN)
    text = Document(build(warehouse, file=file)).text
    assert "One host serves all." in text and "12,000" in text and "Hosts" in text
    file.write_text(OWN.replace("host, count(*)", "no_such_column"))
    with pytest.raises(ReportFailed, match=r"hosts.py:7: panel 'Hosts': .*no_such_column"):
        build(warehouse, file=file)
    file.write_text(OWN.replace('"requests"))', '"no_such_column"))'))
    with pytest.raises(ReportFailed, match=r"hosts.py.*panel 'Hosts': .*no_such_column"):
        build(warehouse, file=file)


def test_the_report_of_the_documentation(warehouse, tmp_path):
    (example,) = re.findall(
        r"^```python\n(.*?)^```", (ROOT / "docs" / "reports.md").read_text(), re.M | re.S
    )
    (tmp_path / "searches.py").write_text(example)
    text = Document(build(warehouse, file=tmp_path / "searches.py")).text
    assert "Searches 1,200 +11.1 % from 1,080" in text and "All of them" in text
    assert "zzz" in text


def test_rankings_move_by_event_time(warehouse, document):
    rows = DeltaTable(str(warehouse / "rankings")).to_pyarrow_table().to_pylist()
    now = {(row["category"], row["item"]): row["rank"] for row in rows if row["as_of"] > START}
    before = {(row["category"], row["item"]): row["rank"] for row in rows if row["as_of"] < START}
    moves = {key: before[key] - rank for key, rank in now.items() if key in before}
    (category, item), most = max(moves.items(), key=lambda move: abs(move[1]))
    arrow = "▲" if most > 0 else "▼"
    assert (
        f"{category} {item} {now[category, item]} {before[category, item]} {arrow} {abs(most)}"
        in (document.text)
    )
