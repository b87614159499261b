"""``headrace pipeline load`` and ``status``, as a user runs them."""

import json
import os
import subprocess
import sys

import pytest
from deltalake import DeltaTable

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def headrace(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "headrace", "pipeline", *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, "PYTHONWARNINGS": ""},
    )


def test_load_and_status(topics, tmp_path):
    topic = topics.create("status", 2)
    table = tmp_path / "warehouse" / "views"
    for partition in range(2):
        topics.send(topic, [json.dumps({"user": n}) for n in range(30)], partition)
    topics.send(topic, ["no json"])
    here = ["--table", table, "-b", topics.bootstrap]

    options = ["--value", "json", "--schema", "user BIGINT", "--master", "local[1]"]
    ran = headrace("load", topic, *here, *options, "--format", "json")
    assert ran.returncode == 0, ran.stderr
    batch = json.loads(ran.stdout)
    assert (batch["decision"], batch["row_count"], batch["letter_count"]) == ("commit", 60, 1)
    assert [(span["partition"], span["offset_end"]) for span in batch["spans"]] == [
        (0, 31),
        (1, 30),
    ]
    assert DeltaTable(str(table)).to_pyarrow_table().num_rows == 60

    topics.send(topic, ['{"user": 1}'] * 5, 1)
    ran = headrace("status", *here, "--format", "json")
    assert ran.returncode == 0, ran.stderr
    first, second = json.loads(ran.stdout)
    assert (first["topic"], first["partition"], second["partition"]) == (topic, 0, 1)
    assert (first["loaded_up_to"], first["lag_records"], first["lag_seconds"]) == (31, 0, 0.0)
    assert (first["rows"], first["files"], first["dead_letters"]) == (30, 1, 1)
    assert (second["loaded_up_to"], second["lag_records"], second["rows"]) == (30, 5, 30)
    assert second["lag_seconds"] > 0
    assert first["bytes"] > 0 and first["last_commit_ms"] > 0

    ran = headrace("status", *here)
    assert "LOADED-UP-TO" in ran.stdout and topic in ran.stdout
