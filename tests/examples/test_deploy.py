"""The recipes for services name commands and options that exist."""

import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from headrace.cli.serve import run
from headrace.model.config import parse_properties

DEPLOY = Path(__file__).parents[2] / "examples" / "deploy"
UNIT = DEPLOY / "headrace.service"


def check_options(words, capsys):
    """``serve`` knows every option; --help ends it before it starts."""
    assert words[0] == "serve"
    assert run([*words[1:], "--help"]) == 0
    assert "Start a broker" in capsys.readouterr().out


def test_the_unit_starts_a_broker_in_the_foreground(capsys):
    (line,) = re.findall(r"^ExecStart=(.*)$", UNIT.read_text(), re.MULTILINE)
    program, *words = shlex.split(line)
    assert program.endswith("/headrace") and "-daemon" not in words
    check_options(words, capsys)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd")
def test_systemd_understands_the_unit(tmp_path):
    unit = tmp_path / UNIT.name
    # systemd wants the program to exist.
    unit.write_text(UNIT.read_text().replace("/opt/headrace/bin/headrace", "/bin/true"))
    ran = subprocess.run(
        ["systemd-analyze", "verify", unit], capture_output=True, text=True, timeout=60
    )
    assert UNIT.name not in ran.stderr, ran.stderr


def test_the_image_has_what_the_package_is_built_from_and_nothing_else():
    text = (DEPLOY / "Containerfile").read_text()
    copied = [word for line in re.findall(r"^COPY (.*) \S+$", text, re.M) for word in line.split()]
    root = DEPLOY.parents[1]
    assert all((root / name).exists() for name in copied)
    kept = [
        line[1:] for line in (root / ".dockerignore").read_text().splitlines() if line[:1] == "!"
    ]
    assert sorted(kept) == sorted(copied)
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    assert {"src", "pyproject.toml", "constraints.txt", project["readme"]} <= set(copied)
    assert set(project["license-files"]) <= set(copied)


def test_the_image_starts_a_broker_in_the_foreground(capsys):
    text = (DEPLOY / "Containerfile").read_text()
    (command,) = re.findall(r"^CMD \[(.*)\]$", text, re.MULTILINE)
    words = [word.strip().strip('"') for word in command.split(",")]
    check_options(words, capsys)
    settings = [words[at + 1] for at, word in enumerate(words) if word == "-X"]
    assert parse_properties("\n".join(settings), "CMD").keys() == {"advertised.listeners"}
