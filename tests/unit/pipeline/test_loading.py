"""Pipeline files are loaded with the place of every declaration; mistakes name their line."""

import pytest

from headrace.pipeline.errors import BadPipeline
from headrace.pipeline.loading import check_syntax, load

FILE = """\
from headrace.pipeline import example, source, step

@source("views", schema="page string")
def views(records):
    return records


@step
def shop(views, pages=None):
    return views

@example
def an_example():
    return {}, {}
"""


def mistakes_of(path):
    with pytest.raises(BadPipeline) as bad:
        load(str(path))
    return [str(one) for one in bad.value.mistakes]


def test_a_loaded_file(tmp_path):
    path = tmp_path / "site.py"
    path.write_text(FILE)
    found = load(str(path))
    assert found.name == "site"
    assert [(one.name, one.kind, one.parameters, one.place) for one in found.nodes] == [
        ("views", "source", ("records",), (str(path), 3)),
        ("shop", "step", ("views", "pages"), (str(path), 8)),
    ]
    assert [one.name for one in found.examples] == ["an_example"]
    assert not any(one.is_imported for one in found.nodes)


def test_what_a_file_imports_is_known_as_imported(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "shared_sources.py").write_text(FILE)
    path = tmp_path / "site.py"
    path.write_text("from shared_sources import views\n")
    (views,) = load(str(path)).nodes
    assert views.is_imported


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("def broken(:\n", "site.py:1: syntax error: invalid syntax"),
        ("x = 1\nimport nothing_at_all\n", "site.py:2: No module named 'nothing_at_all'"),
        ("x = 1\ny = x / 0\n", "site.py:2: ZeroDivisionError: division by zero"),
        (
            "from headrace.pipeline import expect\n@expect('r', 'true')\ndef f(): ...\n",
            "site.py:2: f: expect needs a source, step, table or topic",
        ),
        ("x = 1\n", "site.py:1: declares nothing; use source, step, table and topic"),
        ("\0", "site.py:1: "),
    ],
)
def test_a_file_that_cannot_be_loaded(tmp_path, text, expected):
    path = tmp_path / "site.py"
    path.write_text(text)
    (found,) = mistakes_of(path)
    assert expected in found


def test_files_that_are_not_there_or_have_no_name(tmp_path):
    assert "no such file" in mistakes_of(tmp_path / "nothing.py")[0]
    path = tmp_path / "my-site.py"
    path.touch()
    assert "'my-site' is not a name in Python" in mistakes_of(path)[0]


def test_syntax_is_checked_without_running_the_file(tmp_path):
    path = tmp_path / "site.py"
    path.write_text("raise SystemExit\n")
    assert check_syntax(str(path)) == path
