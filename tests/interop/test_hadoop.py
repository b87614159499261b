"""Tables on HDFS, and pipelines and loads on YARN: the results are those of one process."""

import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest
from deltalake import DeltaTable

from headrace.testing import Broker
from tests.interop import hadoop
from tests.spark import cluster_runs
from tests.spark.kit import Topics

# Several JVMs start in each test.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

JARS = Path(pyspark.__file__).parent / "jars"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    if reason := hadoop.missing():
        pytest.skip(f"Hadoop {reason}")
    with hadoop.running(tmp_path_factory.mktemp("hadoop")) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def topics(cluster):
    """After the cluster, so that the broker is the first to stop."""
    with Broker(process=True) as broker:
        yield Topics(broker.bootstrap_servers)


@pytest.fixture
def on_yarn(tmp_path):
    packages = cluster_runs.write_packages(tmp_path)
    options = ["--master", "yarn", "--archives", packages]
    for setting in (
        # Without it Spark copies its jars to HDFS for each run.
        f"spark.yarn.jars=local:{JARS}/*",
        "spark.executor.instances=2",
        "spark.executor.memory=512m",
        "spark.yarn.am.memory=512m",
        "spark.driver.host=127.0.0.1",
    ):
        options += ["--conf", setting]
    return options


def run_pipeline(cluster, directory, *command, environment=os.environ, status=0):
    """Run ``headrace pipeline`` to its end, with this exit status; what it says about errors."""
    done = subprocess.run(
        [sys.executable, "-m", "headrace", "pipeline", *map(str, command)],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=600,
        cwd=directory,  # Spark leaves files there
        env={**environment, **cluster.environment},
    )
    assert done.returncode == status, done.stderr[-6000:]
    return done.stderr


def test_a_table_on_hdfs_is_loaded_compacted_and_reloaded(cluster, topics, tmp_path):
    topic, url = cluster_runs.send_views(topics), f"{cluster.address}/warehouse/views"
    load = ["load", topic, "--once", "--table", url, "--value", "string", "-b", topics.bootstrap]
    run_pipeline(cluster, tmp_path, *load, "--batch-size", "20k")
    cluster_runs.check_load(url, None)
    files = len(DeltaTable(url).file_uris())
    run_pipeline(cluster, tmp_path, "compact", "--table", url)
    assert len(DeltaTable(url).file_uris()) < files
    run_pipeline(cluster, tmp_path, *load, "--reload-from", "100")
    cluster_runs.check_load(url, None)
    run_pipeline(cluster, tmp_path, *load)  # nothing is left to load
    cluster_runs.check_load(url, None)


def test_two_loads_at_once_into_hdfs_have_every_record_once(cluster, topics, tmp_path):
    topic, url = cluster_runs.send_views(topics), f"{cluster.address}/warehouse/raced"
    command = [sys.executable, "-m", "headrace", "pipeline", "load", topic, "--once", "--table"]
    command += [url, "--value", "string", "--batch-size", "20k", "-b", topics.bootstrap]
    loads = []
    for number in range(2):
        directory = tmp_path / str(number)
        directory.mkdir()
        with (directory / "log").open("w") as log:
            loads.append(
                subprocess.Popen(command, stdout=log, stderr=log, cwd=directory,
                                 env={**os.environ, **cluster.environment})
            )  # fmt: skip
    for number, load in enumerate(loads):
        assert load.wait(600) == 0, (tmp_path / str(number) / "log").read_text()[-4000:]
    cluster_runs.check_load(url, None)


def test_a_load_on_yarn_has_every_record_once(cluster, topics, on_yarn, tmp_path):
    topic, url = cluster_runs.send_views(topics), f"{cluster.address}/warehouse/by-yarn"
    environment = cluster_runs.environment_without_headrace(tmp_path)
    run_pipeline(
        cluster, tmp_path, "load", topic, "--once", "--table", url, "--value", "string",
        "--batch-size", "20k", "-b", topics.bootstrap, *on_yarn, environment=environment,
    )  # fmt: skip
    cluster_runs.check_load(url, None)


@pytest.mark.parametrize("place", ["directory", "hdfs"])
def test_a_pipeline_on_yarn_gives_the_results_of_one_process(
    cluster, topics, on_yarn, tmp_path, place
):
    views, counts = cluster_runs.send_views(topics), topics.create("counts")
    file = cluster_runs.write_file(tmp_path / "site.py", views, counts)
    warehouse, arguments = tmp_path / "warehouse", []
    if place == "hdfs":
        warehouse, arguments = f"{cluster.address}/pipelines", ["--state", tmp_path / "state"]
    run_pipeline(
        cluster, tmp_path, "run", file, "--once", "--batch-records", cluster_runs.BATCH,
        "--warehouse", warehouse, *arguments, "-b", topics.bootstrap, *on_yarn,
        environment=cluster_runs.environment_without_headrace(tmp_path),
    )  # fmt: skip
    cluster_runs.check_results(topics, counts, warehouse)


def test_a_pipeline_on_hdfs_continues_is_computed_again_and_is_not_run_twice(
    cluster, topics, tmp_path
):
    views, counts = cluster_runs.send_views(topics), topics.create("counts")
    file = cluster_runs.write_file(tmp_path / "site.py", views, counts)
    place = ["--warehouse", f"{cluster.address}/local", "-b", topics.bootstrap]
    ours = [*place, "--state", tmp_path / "state"]
    run = ["run", file, "--once", "--batch-records", cluster_runs.BATCH]
    run_pipeline(cluster, tmp_path, *run, *ours)
    cluster_runs.check_results(topics, counts, f"{cluster.address}/local")
    run_pipeline(cluster, tmp_path, *run, *ours)  # nothing is left to read
    run_pipeline(cluster, tmp_path, "backfill", file, *ours)
    cluster_runs.check_results(topics, counts, f"{cluster.address}/local")
    run_pipeline(cluster, tmp_path, "status", file, *ours)

    theirs = [*place, "--state", tmp_path / "another"]
    refused = run_pipeline(cluster, tmp_path, *run, *theirs, status=1)
    assert "already has rows" in refused
    run_pipeline(cluster, tmp_path, *run, *theirs, "--reset")
    cluster_runs.check_results(topics, counts, f"{cluster.address}/local")
    assert "belong to the state in" in run_pipeline(cluster, tmp_path, *run, *ours, status=1)
