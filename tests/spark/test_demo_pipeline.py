"""``headrace demo pipeline``: from generated events to a report, in one command."""

import os
import re
import subprocess
import sys

import pytest
from deltalake import DeltaTable

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def test_a_day_goes_through_the_pipeline(tmp_path):
    ran = subprocess.run(
        [sys.executable, "-m", "headrace", "demo", "pipeline", "--once"]
        + ["--events", "5000", "--data", str(tmp_path)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=400,
        env={**os.environ, "PYTHONWARNINGS": ""},
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "5,000 events to 13 topics" in ran.stdout
    tiers = re.findall(r"(broker|table) +([\d,]+) +([\d,]+) +(\d+) +(\d+)", ran.stdout)
    assert tiers == [("broker", "5,000", "5,000", "0", "0"), ("table", "5,000", "5,000", "0", "0")]
    for job in ("activity", "feed", "ranking", "security", "operations"):
        assert re.search(rf"{job} +[\d,]+ events → +[1-9]", ran.stdout), job
    views = DeltaTable(str(tmp_path / "warehouse" / "page_days")).to_pyarrow_table()
    assert sum(views.column("views").to_pylist()) > 1_000
    (page,) = tmp_path.glob("daily-*.html")
    assert "</html>" in page.read_text()[-100:]
