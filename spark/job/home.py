"""A home for Spark whose Python workers import PySpark from where it is installed.

Spark puts ``$SPARK_HOME/python/lib/pyspark.zip`` first on its workers' path. Python keeps no compiled files for an
archive, so each worker process that Spark starts, and a job starts several, compiles PySpark anew: more than a second
of CPU, against a third of one. Workers of a local session are this very Python, which has PySpark; so they are given a
home without the archive, made of links to the real one.
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
    """While the block runs, Spark that is started finds such a home. Its links are removed when this process ends.

    Does nothing where somebody chose a home, or where PySpark itself is imported from an archive.
    """
    real = Path(pyspark.__file__).parent
    if "SPARK_HOME" in os.environ or not (real / "bin").is_dir() or not (real / "jars").is_dir():
        yield
        return
    home = Path(tempfile.mkdtemp(prefix="ticket-bridge-spark-home-"))
    # Not sooner: Java opens a jar when it first looks for a class in it.
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    for part in ("bin", "jars", "sbin", "licenses", "data"):
        if (real / part).exists():
            (home / part).symlink_to(real / part)
    os.environ["SPARK_HOME"] = str(home)
    try:
        yield
    finally:
        del os.environ["SPARK_HOME"]
