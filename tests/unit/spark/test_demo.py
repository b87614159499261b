"""The demo: missing or old Java, and batches that are written once."""

import sys

import pytest

from headrace.spark.demo import append_once, busiest_pages, read_counts, why_not

pa = pytest.importorskip("pyarrow")


def a_java(directory, said):
    """A ``java`` program that prints this version."""
    program = directory / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho '{said}' >&2\n")
    program.chmod(0o755)


@pytest.mark.parametrize(
    ("said", "fits"),
    [
        ('openjdk version "17.0.19" 2026-04-21', True),
        ('openjdk version "25" 2025-09-16', True),
        ('openjdk version "11.0.2" 2019-01-15', False),
        ('java version "1.8.0_292"', False),
        ("The operation could not be completed. Unable to locate a Java Runtime.", False),
    ],
)
def test_java_must_be_new_enough(tmp_path, monkeypatch, said, fits):
    a_java(tmp_path, said)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))

    missing = why_not()

    assert (missing is None) == fits, missing
    assert fits or "Java 17 or newer" in missing


def test_a_missing_package_is_named_with_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "deltalake", None)  # as if it were not installed

    missing = why_not()

    assert missing.startswith("deltalake is not installed")
    assert "make setup" in missing and "pip install 'headrace[pipeline]'" in missing


def test_java_is_looked_for_on_the_path(tmp_path, monkeypatch):
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert why_not().startswith("Java is not installed")

    a_java(tmp_path, 'openjdk version "21"')
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/bin:/usr/bin")
    assert why_not() is None


def test_a_repeated_batch_is_not_counted_again(tmp_path):
    table = tmp_path / "table"
    first = pa.table({"page": ["/a", "/b", "/a"], "views": [1, 2, 3]})
    second = pa.table({"page": ["/b"], "views": [10]})

    for batch_id, rows in [(0, first), (0, first), (1, second), (0, first), (1, second)]:
        append_once(table, rows, "job", batch_id)

    assert read_counts(table) == {"/a": 4, "/b": 12}


def test_views_of_a_page_are_summed_over_all_minutes():
    counts = pa.table({"page": ["/a", "/b", "/a"], "views": [2, 3, 2]})

    assert busiest_pages(counts, 7) == [
        ("/a", '{"page": "/a", "views": 4, "batch": 7}'),
        ("/b", '{"page": "/b", "views": 3, "batch": 7}'),
    ]
