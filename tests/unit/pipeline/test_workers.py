"""What a Python worker of Spark does at the end of its first task."""

import gc

import pytest
from pyspark import TaskContext

from headrace.pipeline import workers


@pytest.fixture(autouse=True)
def as_before(monkeypatch):
    monkeypatch.setattr(workers, "_settled", False)
    yield
    gc.unfreeze()
    TaskContext._setTaskContext(None)


def test_a_worker_leaves_what_it_has_loaded_out_of_garbage_collection_once():
    TaskContext._setTaskContext(TaskContext())

    workers.settle()
    frozen = gc.get_freeze_count()
    later = [[] for _ in range(1000)]
    workers.settle()

    assert frozen > 1000
    assert gc.get_freeze_count() <= frozen
    assert len(later) == 1000


def test_outside_of_a_task_nothing_changes():
    before = gc.get_freeze_count()

    workers.settle()

    assert gc.get_freeze_count() == before
