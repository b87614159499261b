"""``make setup`` announces its steps, which take minutes."""

import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_every_slow_step_of_the_setup_is_announced():
    ran = subprocess.run(
        ["make", "--dry-run", "--always-make", "setup"], cwd=ROOT, capture_output=True, text=True
    )
    lines = ran.stdout.splitlines()
    slow = [n for n, line in enumerate(lines) if "-m venv" in line or "pip install" in line]
    assert len(slow) == 3, ran.stderr
    assert all(lines[number - 1].startswith('echo "') for number in slow)
