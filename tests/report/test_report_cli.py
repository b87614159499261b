"""``headrace report``: what it writes, prints and refuses."""

import json
import shutil
import sys
from pathlib import Path

import pytest
from deltalake import DeltaTable

from headrace.cli import report
from headrace.cli.main import main

OWN = """
from headrace.report import panel

TITLE = "Mine"

@panel("Greeting")
def greeting(day):
    yield f"Hello on {day.date}."
"""


@pytest.fixture
def headrace(capfd, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def run(*arguments, status=0):
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(["report", *arguments])
        printed = capfd.readouterr()
        assert ended.value.code == status, printed.err or printed.out
        return printed

    return run


def test_a_page_is_named_after_the_report_and_the_day(headrace, warehouse, tmp_path):
    (tmp_path / "mine.py").write_text(OWN)
    ran = headrace("run", "mine.py", "--warehouse", str(warehouse))
    assert ran.out == "mine-2026-11-16.html\n"
    page = (tmp_path / "mine-2026-11-16.html").read_text(encoding="utf-8")
    assert "Hello on 2026-11-16." in page and "<script" not in page


def test_daily_with_date_output_and_open(headrace, warehouse, tmp_path, monkeypatch):
    opened = []
    monkeypatch.setattr(report.webbrowser, "open", lambda address: opened.append(address) or True)
    ran = headrace(
        "daily", "--date", "2026-11-15", "--static", "--open", "-o", "page.html",
        "--warehouse", str(warehouse),
    )  # fmt: skip
    assert ran.out == "page.html\n"
    assert "Sunday, 15 November 2026" in (tmp_path / "page.html").read_text(encoding="utf-8")
    assert opened == [(tmp_path / "page.html").as_uri()]
    monkeypatch.setattr(report.webbrowser, "open", lambda address: False)
    (tmp_path / "mine.py").write_text(OWN)
    ran = headrace("run", "mine.py", "--open", "--warehouse", str(warehouse))
    assert "found no browser" in ran.err


def test_list_shows_panels_and_what_they_need(headrace, tmp_path):
    (tmp_path / "mine.py").write_text(OWN)
    lines = headrace("list", "mine.py").out.splitlines()
    assert lines[0].split() == ["REPORT", "PANEL", "NEEDS"]
    assert lines[2].split() == ["daily", "Traffic", "events_page_views"]
    assert lines[-1].split() == ["mine", "Greeting", "-"]
    listed = json.loads(headrace("list", "--format", "json").out)
    assert listed[3] == {"report": "daily", "panel": "Sessions", "needs": ["sessions"]}


@pytest.mark.parametrize(
    ("arguments", "status", "reason"),
    [
        (["daily", "--date", "yesterday"], 2, "--date 'yesterday': expected a date such as"),
        (["daily", "--warehouse", "nothing"], 1, "nothing: no such directory"),
        (["daily"], 1, "warehouse: no such directory"),
        (["daily", "--warehouse", "."], 1, "has no table with events; load topics"),
        (["run", "missing.py"], 1, "missing.py: no such file"),
        (["list", "missing.py"], 1, "missing.py: no such file"),
        (
            ["daily", "--date", "2026-11-16", "--warehouse", ".", "--static", "-o", "no/page.html"],
            1,
            "no/page.html: No such file or directory",
        ),
    ],
)
def test_what_is_refused(headrace, arguments, status, reason):
    ran = headrace(*arguments, status=status)
    assert reason in ran.err and "Traceback" not in ran.err


@pytest.mark.parametrize("damage", ["missing", "truncated", "overwritten"])
@pytest.mark.parametrize("table", ["raw/page-views", "sessions", "raw/page-views/_dead_letters"])
def test_a_damaged_file_is_named(headrace, warehouse, tmp_path, table, damage):
    shutil.copytree(warehouse, "damaged")
    path = Path(max(DeltaTable(str(tmp_path / "damaged" / table)).file_uris()))
    content = path.read_bytes()
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(content[:20] if damage == "truncated" else bytes(len(content)))
    ran = headrace("daily", "--static", "--warehouse", "damaged", status=1)
    assert path.name in ran.err and "Traceback" not in ran.err
    assert not list(tmp_path.glob("*.html"))
    wrong = {"missing": "is missing", "truncated": "has 20 bytes", "overwritten": "cannot be read"}
    assert wrong[damage] in ran.err


def test_a_missing_package_is_named(headrace, monkeypatch):
    monkeypatch.setitem(sys.modules, "altair", None)
    ran = headrace("daily", status=1)
    assert "altair is not installed. Install the extra `report`" in ran.err
