"""Whole brokers under faults: nothing that was acknowledged or read is lost, and all converge.

``SEEDS`` in the environment is a range such as 1-2000, or one seed to replay. docs/simulation.md
describes the fault model.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sim.bugs import BUGS
from tests.sim.run import main, simulate

ROOT = Path(__file__).parents[2]
SEED = 5
SEEDS_FOR_A_BUG = 2000

pytestmark = pytest.mark.slow


def seeds():
    first, _, last = os.environ.get("SEEDS", "1-60").partition("-")
    return range(int(first), int(last or first) + 1)


def test_no_seed_finds_an_anomaly():
    for seed in seeds():
        result = simulate(seed)
        faults = "\n".join(map(str, result.faults))
        assert not result.findings, f"seed {seed}: {result.findings}, with the faults\n{faults}"
        assert result.acknowledged_count > 50


def test_a_run_is_a_function_of_its_seed():
    command = [sys.executable, "-m", "tests.sim.run", str(SEED)]
    environment = {"PYTHONHASHSEED": "12345", "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    other = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
    )
    result = simulate(SEED)
    assert f"digest {result.digest}" in other.stdout
    assert other.stdout.splitlines()[-1] == "1 seeds ran, 0 with findings"


def test_a_run_without_one_fault_has_the_same_others():
    faults = simulate(SEED).faults
    assert len(faults) > 2
    assert simulate(SEED, frozenset([1])).faults == [fault for fault in faults if fault.number != 1]


def test_a_finding_is_reported_with_the_faults_of_its_seed(capsys):
    seed = BUGS["rule-7"].seed
    assert main([str(seed), "--bug", "rule-7"]) == 1
    printed = capsys.readouterr().out
    assert "  fault   0 " in printed
    assert "  FOUND LOST: " in printed
    assert printed.endswith("1 seeds ran, 1 with findings\n")


@pytest.mark.parametrize("name", [name for name, bug in BUGS.items() if bug.seed is not None])
def test_a_planted_bug_is_found(name):
    """By the seed in the table, or by another one if the brokers have changed since."""
    for seed in (BUGS[name].seed, *range(1, SEEDS_FOR_A_BUG + 1)):
        if simulate(seed, bug=name).findings:
            return
    raise AssertionError(f"{SEEDS_FOR_A_BUG} seeds do not find {name}")


def test_the_page_lists_every_planted_bug():
    page = (ROOT / "docs" / "simulation.md").read_text()
    rows = [f"| `{name}` | {bug.what} | {bug.seed or '-'} |" for name, bug in BUGS.items()]
    assert [row for row in rows if row not in page] == []
