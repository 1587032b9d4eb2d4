"""The Spark session of the jobs, built in one place.

Under ``spark-submit`` the session is the one that was submitted to, and only what concerns this project is set.
Otherwise a Java is found and started here, and what Spark says while it works goes to a log file: a user sees the
job's own words, and one line when it fails.
"""

from __future__ import annotations

import atexit
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pyspark.sql import SparkSession

from routing.errors import TicketBridgeError
from spark.java import find_java

DEFAULT_MASTER = "local[*]"
#: Partitions of a shuffle. The default of 200 is meant for clusters; on one machine it is 200 tiny tasks.
LOCAL_SHUFFLE_PARTITIONS = 8


class SparkStartFailed(TicketBridgeError):
    """Spark did not start; its log, which the message names, says why."""


def local_session(name: str, *, master: str | None = None, log: Path | None = None) -> SparkSession:
    """A session with the data source registered, the session timezone UTC and the web interface off.

    ``master`` defaults to ``local[*]``, or to what was submitted to. ``log`` gets Spark's output; by default a
    temporary file, removed at exit. Tasks are not retried and not run twice: a second attempt would write its rows a
    second time. Raises ``JavaMissing`` and ``SparkStartFailed``.
    """
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    builder = (
        SparkSession.builder.appName(name)
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.task.maxFailures", "1")
        .config("spark.speculation", "false")
    )
    if submitted:
        if master:
            builder = builder.master(master)
        session = builder.getOrCreate()
        # The errors of a job are told by the job; Spark's version of them is hundreds of lines.
        session.sparkContext.setLogLevel("FATAL")
    else:
        session = _start(builder.master(master or DEFAULT_MASTER), log)
    from spark.source import RedisStreamDataSource

    session.dataSource.register(RedisStreamDataSource)
    return session


def _start(builder: SparkSession.Builder, log: Path | None) -> SparkSession:
    """Start Java and a session in it, quietly."""
    os.environ.update(find_java().env)
    # Workers must be this Python, with this project: they unpickle its classes.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    here = str(Path(__file__).resolve().parent.parent)
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if here not in paths:
        os.environ["PYTHONPATH"] = os.pathsep.join([here, *filter(None, paths)])
    builder = (
        builder.config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", str(LOCAL_SHUFFLE_PARTITIONS))
        .config("spark.sql.warehouse.dir", str(Path(tempfile.gettempdir()) / "ticket-bridge-warehouse"))
    )
    kept = log is not None
    log = log or _temporary_log()
    try:
        with _stderr_to(log):
            session = builder.getOrCreate()
    except Exception as error:
        raise SparkStartFailed(f"Spark did not start ({_last_line(log)}); see {log}") from error
    if not kept:
        atexit.register(_remove, log)
    return session


@contextmanager
def _stderr_to(log: Path) -> Iterator[None]:
    """Give the processes started meanwhile ``log`` as their standard error, for all their life.

    Java prints warnings before any logging is configured, and Python workers print through Java; a logging
    configuration would catch neither.
    """
    sys.stderr.flush()
    before = os.dup(2)
    try:
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    except OSError as error:
        os.close(before)
        raise SparkStartFailed(f"cannot write Spark's log {log}: {error.strerror}") from None
    try:
        os.dup2(descriptor, 2)
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)
        os.close(descriptor)


def _temporary_log() -> Path:
    descriptor, name = tempfile.mkstemp(prefix="ticket-bridge-spark-", suffix=".log")
    os.close(descriptor)
    return Path(name)


def _last_line(log: Path) -> str:
    try:
        lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    except OSError:
        lines = []
    return lines[-1][:200] if lines else "it said nothing"


def _remove(log: Path) -> None:
    with suppress(OSError):
        log.unlink()
