"""Tables, documents and remarks, where no terminal is."""

import json

import pytest

from headrace.cli import output


def test_columns_stand_under_each_other_and_nothing_is_cut(capsys):
    long = "v" * 300
    output.table(["KEY", "VALUE"], [("a", long), ("bcd", 1)])
    assert capsys.readouterr().out.splitlines() == ["KEY  VALUE", f"a    {long}", "bcd  1"]


def test_a_column_in_which_no_row_has_a_value_is_left_out(capsys):
    output.table(["TOPIC", "ERROR", "N"], [("a", None, 1), ("b", "", 2)])
    assert capsys.readouterr().out.splitlines() == ["TOPIC  N", "a      1", "b      2"]


def test_an_absent_value_is_a_dash_and_a_truth_a_word(capsys):
    output.table(["A", "B"], [(None, True), ("x", False)])
    assert capsys.readouterr().out.splitlines() == ["A  B", "-  true", "x  false"]


def test_a_table_without_rows_is_its_heading(capsys):
    output.table(["A", "B"], [])
    assert capsys.readouterr().out == "A  B\n"


def test_remarks_and_failures_leave_stdout_alone(capsys):
    output.note("remark")
    output.error("failure")
    output.progress("not shown where nobody looks")
    output.progress_over()
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == "remark\nheadrace: failure\n"


@pytest.mark.parametrize(
    ("failure", "text"),
    [
        (OSError(98, "the port is taken"), "the port is taken"),
        (PermissionError(13, "Permission denied", "/data"), "/data: Permission denied"),
        (OSError("no number"), "no number"),
        (ValueError("wrong"), "wrong"),
    ],
)
def test_a_reason_has_no_number_of_the_system(failure, text):
    assert output.reason(failure) == text


def test_a_document_is_json(capsys):
    output.document({"name": "ä", "n": None})
    assert json.loads(capsys.readouterr().out) == {"name": "ä", "n": None}


def test_bars_are_as_long_as_their_values(capsys):
    output.bars([("p50", 1.0, "1.0"), ("p100", 4.0, "4.0")])
    short, long = capsys.readouterr().out.splitlines()
    assert long.count("█") == pytest.approx(4 * short.count("█"), abs=4)
    assert short.endswith("1.0") and short.startswith(" p50")


@pytest.mark.parametrize(("answer", "expected"), [("y\n", True), ("YES\n", True), ("\n", False)])
def test_only_a_yes_is_a_yes(monkeypatch, capsys, answer, expected):
    import io

    monkeypatch.setattr("sys.stdin", io.StringIO(answer))
    assert output.confirmed("Delete?") is expected
    assert capsys.readouterr().err == "Delete? [y/N] "
