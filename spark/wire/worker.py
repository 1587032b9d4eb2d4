"""The Python process in which Spark runs tasks, one after another."""

from __future__ import annotations

import gc
from functools import cache

from pyspark import TaskContext


def begin_task() -> None:
    """Takes what is imported out of the garbage collector's rounds; does nothing outside a task of Spark's.

    PySpark has a worker collect its garbage after every task, which looks at each object that there is: the better part
    of them belong to modules, which live as long as the process. That is 30 ms a task, in which 20,000 entries are
    read.
    """
    if TaskContext.get() is not None:
        _keep_modules()


@cache
def _keep_modules() -> None:
    # First, so that no garbage is kept for good.
    gc.collect()
    gc.freeze()
