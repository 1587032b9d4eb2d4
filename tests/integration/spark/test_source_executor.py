"""Writes and reads in the Python that executors have: pyarrow, redis-py and PySpark, and of this project nothing but
the archive that the driver sends. Without a JVM. With one it is `test_clusters.py`, which is long.
"""

from __future__ import annotations

import base64
import os
import subprocess
from pathlib import Path

from pyspark import cloudpickle

from bridge.spark.job.packages import zipped_packages
from bridge.spark.read.columns import default_schema
from bridge.spark.read.options import parse_read
from bridge.spark.read.reader import RedisStreamReader
from bridge.stack.embedded import EmbeddedServer
from tests.integration.spark.spark_clusters import NEEDED, has, python_with
from tests.integration.spark.spark_writes import STREAM, log, sequence, writer

#: What a worker of Spark does with what it gets. Prints what came of it, and where its modules are from.
WORKER = """
import base64, pickle, sys
job = pickle.loads(base64.b64decode(sys.stdin.read()))
import bridge.routing, bridge.spark
print(job(), bridge.spark.__file__, bridge.routing.__file__)
"""
ROWS = 95


def ran(python: Path, job: object) -> list[str]:
    """What the executors' Python says of a job that the driver pickled as Spark does."""
    pickled: bytes = cloudpickle.dumps(job)  # type: ignore[no-untyped-call]
    done: subprocess.CompletedProcess[str] = subprocess.run(
        [str(python), "-c", WORKER],
        input=base64.b64encode(pickled).decode(),
        capture_output=True,
        text=True,
        check=False,
        cwd="/",
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        | {"PYTHONPATH": str(zipped_packages())},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_the_sent_archive_is_all_of_this_project_that_a_task_needs(valkey: EmbeddedServer, tmp_path: Path) -> None:
    # Given the Python of an executor, which lacks this project
    python = python_with(tmp_path / "env", (*NEEDED, "pyspark", "py4j"))
    assert not has(python, "bridge")
    # When it writes a partition, and reads it
    writing, rows = writer(valkey.url, orderBy="seq"), log(ROWS)
    options = parse_read({"url": valkey.url, "stream": STREAM})
    reading = RedisStreamReader(options, default_schema(options.fields))
    said = [ran(python, lambda: writing.write(iter([rows])).rows)]
    [part] = reading.partitions()
    said.append(ran(python, lambda: sum(batch.num_rows for batch in reading.read(part))))
    # Then all rows are there, and its modules were those of the archive
    assert sequence(valkey) == list(range(ROWS))
    for rows_done, *modules in said:
        assert rows_done == str(ROWS)
        assert all(module.startswith(f"{zipped_packages()}/") for module in modules)
