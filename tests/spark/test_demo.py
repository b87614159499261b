"""``headrace demo`` with its Spark job, as a separate process."""

import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from headrace.spark.demo import BUSIEST, GROUP, VIEWS, read_counts
from headrace.testing import Broker
from tests.spark.kit import Topics, wait_for

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def test_the_demo_counts_page_views_into_a_table_and_another_topic(tmp_path):
    directory = tmp_path / "kept"

    ran = subprocess.run(
        [sys.executable, "-m", "headrace", "demo", "--data", str(directory)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)},
    )

    assert ran.returncode == 0, ran.stderr
    counts = read_counts(tmp_path / "kept-tables" / "page-views-per-minute")
    assert counts.total() == 200_000
    told = re.findall(r"^ +([\d,]+)  (/page/\d+)$", ran.stdout, re.MULTILINE)
    assert [(page, int(n.replace(",", ""))) for n, page in told] == counts.most_common(10)
    assert f"Delta table: {tmp_path}/kept-tables/page-views-per-minute" in ran.stdout
    assert f"consumer group '{GROUP}': lag 0" in ran.stdout
    assert ran.stdout.count("of 200,000 views counted") > 1  # progress
    # The same from its log, with a stock client.
    with Broker(data=directory, process=True) as broker:
        topics = Topics(broker.bootstrap_servers)
        seen = Counter(json.loads(m.value())["page"] for m in topics.read(VIEWS))
        assert seen == counts
        lines = [json.loads(m.value()) for m in topics.read(BUSIEST)]
        batches = {line["batch"] for line in lines}
        assert len(lines) == 10 * len(batches)
        assert sum(topics.committed(GROUP, VIEWS).values()) == 200_000


def processes_that_name(text):
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if text.encode() in entry.read_bytes():
                found.append(entry)
        except OSError:
            continue  # the process has ended
    return found


@pytest.mark.skipif(
    not Path("/proc/self/cmdline").exists(),
    reason="what the demo leaves running is looked up in /proc, which only Linux has",
)
@pytest.mark.long
def test_ctrl_c_in_the_spark_job_leaves_no_trace_on_the_screen_and_no_process(tmp_path):
    demo = subprocess.Popen(
        [sys.executable, "-m", "headrace", "demo", "--data", str(tmp_path / "kept")],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path), "TMPDIR": str(tmp_path)},
    )
    with demo:
        assert any("views counted" in line for line in demo.stdout)
        tables = str(tmp_path / "kept-tables")
        assert processes_that_name(tables)

        os.killpg(demo.pid, signal.SIGINT)  # as a terminal does: to the whole process group

        out, err = demo.communicate(timeout=60)
    assert (demo.returncode, err) == (130, "")
    assert "Delta table" not in out
    wait_for(lambda: not processes_that_name(tables), "the end of the job's processes")
    assert not list(tmp_path.glob("headrace-*"))
