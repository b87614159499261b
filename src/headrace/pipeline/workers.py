"""Spark's Python workers: what one of them is spared between two tasks."""

import gc

from pyspark import TaskContext

_settled = False


def settle() -> None:
    """Leaves all that the process has loaded by now out of garbage collection, for good.

    Spark collects garbage after every task of a worker, before the next one may begin. To walk
    through the modules of Spark, Arrow and ourselves takes 30 ms each time and finds nothing,
    which is most of what a task of a small streaming batch takes. To be called at the end of a
    task, when all is loaded; only the first call in a worker does something.
    """
    global _settled
    if _settled or TaskContext.get() is None:
        return
    _settled = True
    gc.collect()
    gc.freeze()
