"""Each extra in an environment of its own: it brings all that its commands need."""

import json
import re
import sys

import pytest

from headrace.spark.demo import why_not
from tests.package.environments import own_environment, pip_environment, run
from tests.report.warehouse import write_warehouse

pytestmark = pytest.mark.slow

PIPELINE = """
from pyspark.sql import functions as F
from headrace.pipeline import example, source, table

@source("views", schema="event_id string, page string", event_id="event_id")
def views(records):
    return records

@table(key=["page"], merge={"views": "sum"})
def pages(views):
    return views.groupBy("page").agg(F.count("*").alias("views"))

@example
def repeated_events_count_once():
    view = {"event_id": "1", "page": "/a"}
    return {"views": [view, view]}, {"pages": [{"page": "/a", "views": 1}]}
"""


def installed(wheel, directory, extra):
    """The scripts directory of a new environment with this extra."""
    run(sys.executable, "-m", "venv", directory / "venv")
    scripts = directory / "venv" / "bin"
    run(scripts / "python", "-m", "pip", "install", "-q", f"{wheel}[{extra}]",
        env=pip_environment(), timeout=1200)  # fmt: skip
    return scripts


def packages(scripts):
    listed = json.loads(run(scripts / "python", "-m", "pip", "list", "--format", "json"))
    return {re.sub(r"[-_.]+", "-", package["name"]).lower() for package in listed}


def test_the_extra_report_writes_a_report_without_spark(wheel, tmp_path):
    scripts = installed(wheel, tmp_path, "report")
    assert "pyspark" not in packages(scripts)
    warehouse = write_warehouse(tmp_path / "warehouse")
    command = [scripts / "headrace", "report", "daily", "--warehouse", warehouse]
    run(*command, "--output", tmp_path / "page.html", cwd=tmp_path, env=own_environment(scripts))
    assert "<svg" in (tmp_path / "page.html").read_text()


@pytest.mark.interop  # over 400 MB
def test_the_extra_pipeline_runs_the_examples_of_a_file(wheel, tmp_path):
    missing = why_not()
    if missing is not None and "Java" in missing:
        pytest.skip(missing)
    scripts = installed(wheel, tmp_path, "pipeline")
    (tmp_path / "views.py").write_text(PIPELINE)
    said = run(scripts / "headrace", "pipeline", "test", "views.py",
               cwd=tmp_path, env=own_environment(scripts), timeout=600)  # fmt: skip
    assert said.startswith("ok repeated_events_count_once")
