"""A ``SPARK_HOME`` with which Python workers import the installed PySpark.

Spark puts ``$SPARK_HOME/python/lib/pyspark.zip`` first on its workers' path. Python keeps no compiled files for an
archive. So each worker process, and a job starts several, compiles PySpark again: more than a second of CPU instead of
a third of one. Workers of a local session use this Python, which has PySpark. So they get a home without the archive,
made of links to the real one.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark


@contextmanager
def home_without_archive() -> Iterator[None]:
    """Spark that the block starts has such a home. Its links are removed when this process ends.

    Does nothing if ``SPARK_HOME`` is set, or if PySpark itself is imported from an archive.
    """
    real = Path(pyspark.__file__).parent
    if "SPARK_HOME" in os.environ or not (real / "bin").is_dir() or not (real / "jars").is_dir():
        yield
        return
    home = Path(tempfile.mkdtemp(prefix="ticket-bridge-spark-home-"))
    # Not earlier: Java opens a jar when it first looks for a class in it.
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    for part in ("bin", "jars", "sbin", "licenses", "data"):
        if (real / part).exists():
            (home / part).symlink_to(real / part)
    os.environ["SPARK_HOME"] = str(home)
    try:
        yield
    finally:
        del os.environ["SPARK_HOME"]
