"""The commands that the demo suggests."""

import sys

from headrace.cli import demo


def test_a_program_outside_path_is_named_by_its_location(monkeypatch, tmp_path):
    programs = tmp_path / ".venv" / "bin"
    programs.mkdir(parents=True)
    monkeypatch.setattr(sys, "executable", str(programs / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert demo.program() == "headrace"  # there is none beside Python

    (programs / "headrace").touch(mode=0o755)
    assert demo.program() == ".venv/bin/headrace"
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert demo.program() == str(programs / "headrace")
    monkeypatch.setenv("PATH", str(programs))
    assert demo.program() == "headrace"
