"""``headrace demo`` with its Spark job, as a process of its own."""

import json
import os
import re
import subprocess
import sys
from collections import Counter

import pytest

from headrace.pipeline.demo import BUSIEST, GROUP, VIEWS, read_counts
from headrace.testing import Broker
from tests.spark.kit import Topics

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def test_the_demo_counts_page_views_into_a_table_and_another_topic(tmp_path):
    folder = tmp_path / "kept"

    ran = subprocess.run(
        [sys.executable, "-m", "headrace", "demo", "--data", str(folder)],
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
    # The same from the log it left, with a client that we did not write.
    with Broker(data=folder, process=True) as broker:
        topics = Topics(broker.bootstrap_servers)
        seen = Counter(json.loads(m.value())["page"] for m in topics.read(VIEWS))
        assert seen == counts
        lines = [json.loads(m.value()) for m in topics.read(BUSIEST)]
        batches = {line["batch"] for line in lines}
        assert len(lines) == 10 * len(batches)
        assert sum(topics.committed(GROUP, VIEWS).values()) == 200_000
