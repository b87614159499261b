"""Report files: what they declare, and what is said about mistakes."""

import pytest

from headrace.report.definition import failed_panel, load_report
from headrace.report.errors import ReportFailed

REPORT = """
from headrace.report import job_table, panel

TITLE = "Shop"
CLOCK_TOPICS = ("orders",)
totals = job_table("totals", key=["shop"], merge={"orders": "sum"})

@panel("Second in name, first in the file", needs=["totals"])
def z(day):
    yield "z"

@panel("Last")
def a(day):
    yield "a"
"""


def write(directory, text):
    path = directory / "my_shop.py"
    path.write_text(text)
    return path


def test_panels_come_in_the_order_of_the_file(tmp_path):
    report = load_report(write(tmp_path, REPORT))
    assert (report.name, report.title, report.clock_topics) == ("my_shop", "Shop", ("orders",))
    assert [panel.title for panel in report.panels] == ["Second in name, first in the file", "Last"]
    assert report.panels[0].needs == ("totals",)
    assert [(table.name, table.key) for table in report.job_tables] == [("totals", ("shop",))]


def test_a_file_without_a_title_is_named_after_itself(tmp_path):
    text = "from headrace.report import panel\n@panel('P')\ndef p(day):\n    yield ''\n"
    assert load_report(write(tmp_path, text)).title == "My shop"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "declares no panel"),
        ("x = 1\nimport no_such_module\n", "my_shop.py:2: ModuleNotFoundError"),
        ("x = 1\nif\n", "my_shop.py:2: SyntaxError"),
    ],
)
def test_mistakes_are_named_with_their_line(tmp_path, text, reason):
    with pytest.raises(ReportFailed) as failed:
        load_report(write(tmp_path, text))
    assert reason in str(failed.value)


def test_files_that_are_no_reports(tmp_path):
    with pytest.raises(ReportFailed, match="no such file"):
        load_report(tmp_path / "missing.py")
    (tmp_path / "report.sql").write_text("select 1")
    with pytest.raises(ReportFailed, match=r"ends in \.py"):
        load_report(tmp_path / "report.sql")


def test_a_failure_in_a_panel_names_file_line_and_panel(tmp_path):
    path = write(tmp_path, REPORT.replace('yield "z"', "yield 1 / 0"))
    which = load_report(path).panels[0]
    with pytest.raises(ZeroDivisionError) as failed:
        list(which.build(None))
    told = str(failed_panel(path, which, failed.value))
    assert f"{path}:10: panel 'Second in name, first in the file': ZeroDivisionError" in told
