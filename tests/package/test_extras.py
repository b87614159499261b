"""Each extra in an environment of its own: it brings all that its commands need."""

import json
import re
import sys

import pytest

from headrace.spark.demo import why_not
from headrace.testing import Broker
from tests.package.environments import own_environment, pip_environment, run
from tests.report.warehouse import write_warehouse

pytestmark = pytest.mark.slow

SCHEMA = "event_id STRING, page STRING"
PIPELINE = """
from pyspark.sql import Row, functions as F
from pyspark.sql.streaming import StatefulProcessor
from headrace.pipeline import example, source, step, table

@source("views", schema="event_id string, page string", event_id="event_id")
def views(records):
    return records

@table(key=["page"], merge={"views": "sum"})
def pages(views):
    return views.groupBy("page").agg(F.count("*").alias("views"))

class Counting(StatefulProcessor):
    def init(self, handle):
        self._count = handle.getValueState("count", "count long")

    def handleInputRows(self, key, rows, timers):
        before = self._count.get()[0] if self._count.exists() else 0
        self._count.update((before + sum(1 for _ in rows),))
        yield Row(page=key[0], views=self._count.get()[0])

    def close(self):
        pass

@step
def counted(views):
    return views.groupBy("page").transformWithState(
        Counting(), "page string, views long", "Update", "None")

@table(key=["page"], merge={"views": "sum"})
def counted_pages(counted):
    return counted

@example
def repeated_events_count_once():
    view = {"event_id": "1", "page": "/a"}
    return {"views": [view, view]}, {
        "pages": [{"page": "/a", "views": 1}], "counted_pages": [{"page": "/a", "views": 1}]}
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
def test_the_extra_pipeline_tests_loads_and_runs(wheel, tmp_path):
    missing = why_not()
    if missing is not None and "Java" in missing:
        pytest.skip(missing)
    scripts = installed(wheel, tmp_path, "pipeline")
    (tmp_path / "views.py").write_text(PIPELINE)
    values = [{"event_id": str(number), "page": f"/{number % 2}"} for number in (1, 2, 3, 3)]
    with Broker(process=True, topics={"views": 1}) as broker:
        environment = own_environment(scripts) | {"HEADRACE_BOOTSTRAP": broker.bootstrap_servers}

        def headrace(*arguments, **options):
            return run(scripts / "headrace", *arguments, cwd=tmp_path, env=environment,
                       timeout=600, **options)  # fmt: skip

        # The step with state needs protobuf.
        assert headrace("pipeline", "test", "views.py").startswith("ok repeated_events_count_once")
        headrace("produce", "views", input="".join(f"{json.dumps(one)}\n" for one in values))
        loaded = headrace("pipeline", "load", "views", "--table", "warehouse/raw/views",
                          "--value", "json", "--schema", SCHEMA)  # fmt: skip
        assert loaded.startswith("committed 4 rows in 1 file")
        ran = json.loads(headrace("pipeline", "run", "views.py", "--once", "--format", "json"))
    assert (ran["rows"], ran["written"]) == (4, {"pages": 2, "counted_pages": 2})
