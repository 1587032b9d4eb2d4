"""Forks the Python processes of the tests' Spark, with what each of them imports: ``spark.python.daemon.module``.

Spark's own daemon has imported little when it forks, and each read and each write starts several processes. What they
import takes half a second of processor time, and what they do for a test a fraction of that.
"""

from __future__ import annotations

import gc
import importlib
import sys

from pyspark import daemon

#: What tasks and plans of the data sources import, and the processes of Spark that run them.
MODULES = (
    "pyspark.worker", "pyarrow", "redis", "bridge.spark.source", "bridge.spark.state_source",
    "bridge.spark.read.reader", "bridge.spark.read.stream_reader", "bridge.spark.write.writer",
    "bridge.spark.write.stream_writer", "bridge.spark.states.reader",
)  # fmt: skip

if __name__ == "__main__":
    for name in (*sys.argv[1:2], *MODULES):
        importlib.import_module(name)
    # Forks share these pages, since their collectors leave them alone.
    gc.collect()
    gc.freeze()
    daemon.manager()
