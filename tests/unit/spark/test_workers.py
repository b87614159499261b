"""Python workers of Spark at the start and at the end of a task."""

import gc
import importlib
import socket
import struct
import sys

import pytest
from pyspark import TaskContext

from headrace.spark import workers


@pytest.fixture(autouse=True)
def as_before():
    importlib.reload(workers)  # each worker settles once
    yield
    gc.unfreeze()
    TaskContext._setTaskContext(None)


def test_a_worker_excludes_loaded_modules_from_garbage_collection_once():
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


def unacknowledged(link):
    """The number of segments that the other end has not acknowledged, from the kernel."""
    (count,) = struct.unpack_from(
        "=I", link.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104), 24
    )
    return count


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing is done")
def test_a_worker_acknowledges_received_data_at_once():
    TaskContext._setTaskContext(TaskContext())
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as spark,
        listener.accept()[0] as worker,
    ):
        for _ in range(1000):
            spark.sendall(b"task")
            worker.recv(4)
            if unacknowledged(spark):
                break  # the kernel delays the acknowledgment
            worker.sendall(b"done")
            spark.recv(4)
        else:
            pytest.fail("every piece was acknowledged at once anyway")

        workers.hasten()

        assert unacknowledged(spark) == 0
        worker.sendall(b"done")  # the socket still works
        assert spark.recv(4) == b"done"
