"""What the demo tells its user to type."""

import sys

from headrace.cli import demo


def test_a_program_that_is_not_on_the_path_is_named_by_its_place(monkeypatch, tmp_path):
    programs = tmp_path / ".venv" / "bin"
    programs.mkdir(parents=True)
    monkeypatch.setattr(sys, "executable", str(programs / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert demo._program() == "headrace"  # there is none beside Python either

    (programs / "headrace").touch(mode=0o755)
    assert demo._program() == ".venv/bin/headrace"
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert demo._program() == str(programs / "headrace")
    monkeypatch.setenv("PATH", str(programs))
    assert demo._program() == "headrace"
