"""What the pages show, done as they show it: tests of the test kit, the tour of the README."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.testing import Broker

ROOT = Path(__file__).parents[2]
LIMIT_S = 120

pytestmark = pytest.mark.slow


def blocks(page, language):
    return re.findall(rf"^```{language}\n(.*?)^```", (ROOT / page).read_text(), re.M | re.S)


def test_every_test_on_the_page_of_the_test_kit_passes(tmp_path):
    shown = blocks("docs/testing.md", "python")
    assert len(shown) >= 5
    for number, text in enumerate(shown):
        (tmp_path / f"test_shown_{number}.py").write_text(text)
    passed = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)],
        cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT_S,
    )  # fmt: skip
    assert passed.returncode == 0, passed.stdout + passed.stderr
    assert f"{len(shown)} passed" in passed.stdout


def test_the_test_in_the_readme_has_ten_lines():
    (shown,) = blocks("README.md", "python")
    function = shown[shown.index("def ") :]
    assert len(function.splitlines()) <= 10


def tour():
    """The commands of the README's tour, each with what it is said to print."""
    (shown,) = [text for text in blocks("README.md", "") if "headrace produce" in text]
    for step in re.split(r"^\$ ", shown, flags=re.M)[1:]:
        line, _, printed = step.partition("\n")
        yield line, printed


def test_the_tour_of_the_readme_prints_what_it_shows(tmp_path):
    scripts = Path(sys.executable).parent
    assert shutil.which("headrace", path=scripts), "Headrace is not installed; make setup"
    with Broker() as broker:
        environment = {
            **os.environ,
            "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}",
            "HEADRACE_BOOTSTRAP": broker.bootstrap_servers,
        }
        steps = list(tour())
        assert len(steps) >= 3
        for line, printed in steps:
            done = subprocess.run(
                line, shell=True, cwd=tmp_path, env=environment, capture_output=True, text=True,
                timeout=LIMIT_S,
            )  # fmt: skip
            assert done.returncode == 0, f"{line}: {done.stderr}"
            assert done.stdout.expandtabs() == printed.expandtabs(), line
