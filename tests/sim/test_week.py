"""One node over a simulated week: the same run twice, and under another hash seed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sim.week import RETENTION_MS, run_week

ROOT = Path(__file__).parents[2]
SEED = 7


@pytest.mark.slow
def test_a_week_of_retention_sessions_and_long_polls_gives_one_trace():
    week = run_week(SEED)
    records_a_day = week.produced / 7
    kept = week.produced - week.log_start
    assert RETENTION_MS == 86_400_000
    assert records_a_day < kept < 1.6 * records_a_day, "a day, and a segment that is not over"
    assert week.fetched == week.produced > 900, "the consumer saw every record before it expired"
    assert week.expired_sessions > 20

    command = [sys.executable, "-m", "tests.sim.week", str(SEED)]
    other = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": "12345", "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
    )
    assert other.stdout.split()[-1] == week.trace.text
