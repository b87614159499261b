"""The examples on the pages work as shown: the tests in docs/testing.md, the tour in README."""

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


def check_tests(shown, directory):
    """Run each text as a test file, in one test session."""
    for number, text in enumerate(shown):
        (directory / f"test_shown_{number}.py").write_text(text)
    passed = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(directory)],
        cwd=directory, capture_output=True, text=True, timeout=LIMIT_S,
    )  # fmt: skip
    assert passed.returncode == 0, passed.stdout + passed.stderr
    test_count = sum(text.count("\ndef test_") + text.startswith("def test_") for text in shown)
    assert test_count >= len(shown) and f"{test_count} passed" in passed.stdout


def test_every_test_in_the_guide_to_the_test_kit_passes(tmp_path):
    check_tests(blocks("docs/testing.md", "python"), tmp_path)


def test_the_tests_in_the_readme_pass_and_have_ten_lines(tmp_path):
    shown = blocks("README.md", "python")
    check_tests(shown, tmp_path)
    for text in shown:
        function = text[text.index("def ") :]
        assert len(function.splitlines()) <= 10


def tour():
    """The commands of the README's tour, each with the output that the README shows."""
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
