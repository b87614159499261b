"""Tables, documents and notes without a terminal."""

import json

import pytest

from headrace.cli import output


def test_columns_are_aligned_and_not_truncated(capsys):
    long = "v" * 300
    output.table(["KEY", "VALUE"], [("a", long), ("bcd", 1)])
    assert capsys.readouterr().out.splitlines() == ["KEY  VALUE", f"a    {long}", "bcd  1"]


def test_a_column_without_values_is_omitted(capsys):
    output.table(["TOPIC", "ERROR", "N"], [("a", None, 1), ("b", "", 2)])
    assert capsys.readouterr().out.splitlines() == ["TOPIC  N", "a      1", "b      2"]


def test_none_is_a_dash_and_booleans_are_lowercase(capsys):
    output.table(["A", "B"], [(None, True), ("x", False)])
    assert capsys.readouterr().out.splitlines() == ["A  B", "-  true", "x  false"]


def test_a_table_without_rows_is_its_heading(capsys):
    output.table(["A", "B"], [])
    assert capsys.readouterr().out == "A  B\n"


def test_notes_and_errors_do_not_go_to_stdout(capsys):
    output.note("note")
    output.error("failure")
    output.progress("not shown without a terminal")
    output.progress_over()
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == "note\nheadrace: failure\n"


@pytest.mark.parametrize(
    ("failure", "text"),
    [
        (OSError(98, "the port is taken"), "the port is taken"),
        (PermissionError(13, "Permission denied", "/data"), "/data: Permission denied"),
        (OSError("no number"), "no number"),
        (ValueError("wrong"), "wrong"),
    ],
)
def test_a_reason_has_no_error_number(failure, text):
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
def test_only_yes_confirms(monkeypatch, capsys, answer, expected):
    import io

    monkeypatch.setattr("sys.stdin", io.StringIO(answer))
    assert output.confirmed("Delete?") is expected
    assert capsys.readouterr().err == "Delete? [y/N] "
