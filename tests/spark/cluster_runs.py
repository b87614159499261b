"""A pipeline file, its events and its packages, for clusters whose executors lack Headrace."""

import json
import os
import subprocess
import sys
import sysconfig
import tarfile
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

import duckdb
from deltalake import DeltaTable

import headrace

EVENTS, PAGES, BATCH = 1_500, 7, 500
DOUBLED = 40
START = datetime(2026, 3, 1, 12, tzinfo=UTC)
FILE = """
from pyspark.sql import functions as F
from headrace.pipeline import source, step, table, topic

@source("{views}", schema="event_id string, at timestamp, page string, visitor long",
        event_time="at", event_id="event_id")
def views(records):
    return records

@step
def counted(views, page_counts):
    new = views.groupBy("page").agg(F.count("*").alias("views"))
    known = page_counts.select("page", F.col("views").alias("before"))
    return new.join(known, "page", "left").select(
        "page", (F.col("views") + F.coalesce("before", F.lit(0))).alias("views"))

@table(key=["page"], schema="page string, views long")
def page_counts(counted):
    return counted

@table(key=["event_id"])
def seen(views):
    return views

@topic("{counts}", key="page", compacted=True)
def announced(counted):
    return counted
"""


def environment_without_headrace(directory):
    """For the driver: executors use a Python that has all packages except ours."""
    python = directory / "python"
    site = sysconfig.get_paths()["purelib"]
    # Without its module `site`, Python reads no file that adds the source tree to its path.
    python.write_text(
        f'#!/bin/sh\nexport PYTHONPATH="$PYTHONPATH:{site}"\nexec {sys.executable} -S "$@"\n'
    )
    python.chmod(0o755)
    for module, is_found in (("pyarrow", True), ("headrace", False)):
        tried = subprocess.run([python, "-c", f"import {module}"], capture_output=True)
        assert (tried.returncode == 0) is is_found, tried.stderr
    return {**os.environ, "PYSPARK_PYTHON": str(python)}


def write_packages(directory):
    """The archive that ``pip install --target`` and ``tar`` would make."""
    path = directory / "packages.tar.gz"
    source = Path(headrace.__file__).parent
    with tarfile.open(path, "w:gz") as archive:
        for package in (source, source.with_name("pyspark_headrace")):
            archive.add(package, package.name)
    return path


def view(number):
    at = START + timedelta(milliseconds=100 * number)
    value = {"event_id": str(number), "at": at.isoformat(), "visitor": number % 50}
    return json.dumps(value | {"page": f"/{number % PAGES}"})


def send_views(topics):
    """Two partitions; a few events are doubled."""
    topic = topics.create("views", 2)
    for partition in range(2):
        numbers = [n for n in range(EVENTS) if n % 2 == partition]
        values = [view(n) for n in [*numbers, *numbers[: DOUBLED // 2]]]
        topics.send(topic, values, partition, timestamp=int(START.timestamp() * 1000))
    return topic


def write_file(path, views, counts):
    path.write_text(FILE.format(views=views, counts=counts))
    return path


def check_results(topics, counts, warehouse, options=None):
    """The tables and the topic have every event of ``send_views`` once."""

    def rows_of(name):
        return DeltaTable(f"{warehouse}/{name}", storage_options=options).to_pyarrow_table()

    expected = Counter(f"/{number % PAGES}" for number in range(EVENTS))
    latest = {}
    for message in topics.read(counts):
        latest[message.key().decode()] = json.loads(message.value())["views"]
    assert latest == expected
    rows = rows_of("page_counts").sort_by("_batch")
    newest = {row["page"]: row["views"] for row in rows.to_pylist()}
    assert newest == expected
    seen = rows_of("seen").column("event_id").to_pylist()
    assert sorted(seen) == sorted(map(str, range(EVENTS)))


def check_load(url, options):
    """The table has every record of ``send_views`` once."""
    views = DeltaTable(url, storage_options=options).to_pyarrow_dataset()  # noqa: F841
    rows, distinct = duckdb.sql(
        "select count(*), count(distinct (_partition, _offset)) from views"
    ).fetchall()[0]
    assert rows == distinct == EVENTS + DOUBLED
