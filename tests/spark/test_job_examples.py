"""The examples in the job files that Headrace ships, as ``headrace pipeline test`` runs them."""

from contextlib import contextmanager
from pathlib import Path

import pytest

from headrace.pipeline import jobs
from headrace.pipeline.loading import load
from headrace.pipeline.runner.examples import run_examples
from headrace.testing import Broker
from tests.spark.batches import small_data

pytestmark = [pytest.mark.spark, pytest.mark.slow]

JOBS = Path(jobs.__file__).parent
QUICK = ("operations", "ranking")


@contextmanager
def started():
    with Broker() as broker:
        yield broker.bootstrap_servers


@pytest.mark.parametrize(
    "job",
    [
        pytest.param(path, id=path.stem, marks=[] if path.stem in QUICK else [pytest.mark.long])
        for path in sorted(JOBS.glob("[!_]*.py"))
    ],
)
def test_the_examples_of_a_job_pass(spark, job):
    with small_data(spark):
        outcomes = list(run_examples(load(job), spark, started))
    assert [outcome.problems for outcome in outcomes] == [()]
