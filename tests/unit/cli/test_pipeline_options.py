"""Options of ``headrace pipeline`` that become settings of Spark."""

import pytest

from headrace.cli.output import CommandFailed
from headrace.cli.pipeline_options import spark_config


@pytest.fixture
def archive(tmp_path):
    path = tmp_path / "packages.tar.gz"
    path.touch()
    return str(path)


@pytest.mark.parametrize(
    ("master", "setting"),
    [("spark://host:7077", "spark.archives"), ("yarn", "spark.yarn.dist.archives")],
)
def test_packages_reach_the_executors_as_the_master_sends_files(master, setting, archive):
    assert spark_config(master, archive, ["a=b"]) == {
        setting: f"{archive}#packages",
        "spark.executorEnv.PYTHONPATH": "./packages",
        "a": "b",
    }


def test_an_archive_that_does_not_exist_is_refused_by_name():
    with pytest.raises(CommandFailed, match="--archives /no/such/file"):
        spark_config("yarn", "/no/such/file", None)
