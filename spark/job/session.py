"""The Spark session of the jobs, built in one place.

Under ``spark-submit`` the session is the submitted one, and only settings of this project are made. Otherwise a Java is
found and started here, and Spark's own output goes to a log file: a user sees only the job's output, and one line when
it fails.
"""

from __future__ import annotations

import atexit
import os
import re
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path

from pyspark.sql import SparkSession

from bridge.routing.errors import ConfigurationError, TicketBridgeError
from bridge.spark.job.failures import one_line
from bridge.spark.job.home import home_without_archive
from bridge.spark.job.java import find_java
from bridge.spark.job.java_process import end_java, java_ends_with_a_failed_start
from bridge.spark.job.packages import HOME, send_packages

DEFAULT_MASTER = "local[*]"
#: Partitions of a shuffle. Spark's default of 200 is meant for clusters. On one machine it makes 200 tiny tasks.
LOCAL_SHUFFLE_PARTITIONS = 8
#: Why Java did not start, the most telling first: an error that ended it, or one for which Spark gave a reason; the
#: cause of an error without words; the last line that is no part of a stack trace.
_TELLING = tuple(
    re.compile(pattern, re.MULTILINE)
    for pattern in (
        r"^(?:Exception in thread \"main\" (?:\w+\.)+\w+|.* ERROR .*Reason): (.+)",
        r"^Caused by: (.+)",
        r"^[ \t]*(?!at |\.\.\. \d+ more|\s)(.*\S)",
    )
)


class SparkStartFailed(TicketBridgeError):
    """Spark did not start. The message names the log that says why."""


@contextmanager
def job_session(
    name: str,
    *,
    master: str | None = None,
    log: Path | None = None,
    retries: bool = True,
    conf: Mapping[str, str] | None = None,
) -> Iterator[SparkSession]:
    """The session of a command, as ``local_session`` makes it. After the block, the session and its Java have ended.

    An error of the block is raised as the project's own error.
    """
    try:
        session = local_session(name, master=master, log=log, retries=retries, conf=conf)
        try:
            yield session
        except BrokenPipeError:
            raise  # it is an error of our own output
        except Exception as error:
            # Here, while Java runs: Spark's errors ask it for their messages.
            raise one_line(error) from None
        finally:
            session.stop()
    finally:
        end_java()


def local_session(
    name: str,
    *,
    master: str | None = None,
    log: Path | None = None,
    retries: bool = True,
    conf: Mapping[str, str] | None = None,
) -> SparkSession:
    """A session with the data sources registered, the session timezone UTC and the web interface off.

    ``master`` defaults to ``local[*]``, or to that of spark-submit. ``log`` gets Spark's output; by default it is a
    temporary file, which is removed at exit. Without ``retries`` a task runs only once: for writes whose second attempt
    would add its rows again. ``conf`` is Spark's own configuration. It overrides the settings made here, except the
    timezone, on which the meaning of the data depends. Raises ``JavaMissing`` and
    ``SparkStartFailed``.
    """
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    builder = SparkSession.builder.appName(name)
    if not retries:
        builder = builder.config("spark.task.maxFailures", "1").config("spark.speculation", "false")
    if submitted:
        if master:
            builder = builder.master(master)
        session = _configured(builder, conf).getOrCreate()
        # The job shows its errors itself; Spark's version of them is hundreds of lines long.
        session.sparkContext.setLogLevel("FATAL")
    else:
        session = _start(builder, master or DEFAULT_MASTER, conf, log)
    try:
        _prepare(session, away=submitted or not _is_local(session.sparkContext.master or ""))
    except Exception as error:
        # While Java runs: Spark's errors ask it for their messages.
        line = one_line(error)
        session.stop()
        raise line from None
    return session


def _prepare(session: SparkSession, *, away: bool) -> None:
    """Makes the settings that all jobs need. ``away``: tasks may run in a Python without this project."""
    session.conf.set("spark.sql.session.timeZone", "UTC")
    if away:
        send_packages(session.sparkContext)
    from bridge.spark.source import RedisStreamDataSource
    from bridge.spark.state_source import RedisStateDataSource

    session.dataSource.register(RedisStreamDataSource)
    session.dataSource.register(RedisStateDataSource)


def parse_conf(options: Iterable[str]) -> dict[str, str]:
    """``--conf key=value``, given any number of times. Raises ``ConfigurationError``, without the value."""
    conf = {}
    for option in options:
        key, equals, value = option.partition("=")
        if not equals or not key.strip():
            raise ConfigurationError(f"--conf must be key=value, not {key!r}")
        conf[key.strip()] = value
    return conf


def _configured(builder: SparkSession.Builder, conf: Mapping[str, str] | None) -> SparkSession.Builder:
    for key, value in (conf or {}).items():
        builder = builder.config(key, value)
    return builder


def _is_local(master: str) -> bool:
    return master == "local" or master.startswith("local[")


def _start(
    builder: SparkSession.Builder, master: str, conf: Mapping[str, str] | None, log: Path | None
) -> SparkSession:
    """Starts Java and a session in it, quietly."""
    os.environ.update(find_java().env)
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    if _is_local(master):
        # Workers use this Python, with this project: they unpickle its classes.
        os.environ["PYSPARK_PYTHON"] = sys.executable
        paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        if str(HOME) not in paths:
            os.environ["PYTHONPATH"] = os.pathsep.join([str(HOME), *filter(None, paths)])
    elif conf and "spark.pyspark.python" in conf:
        # Only spark-submit reads this setting.
        os.environ["PYSPARK_PYTHON"] = conf["spark.pyspark.python"]
    builder = (
        builder.master(master)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.warehouse.dir", str(Path(tempfile.gettempdir()) / "ticket-bridge-warehouse"))
    )
    if _is_local(master):
        # Only processes of this machine connect to this driver.
        builder = (
            builder.config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.sql.shuffle.partitions", str(LOCAL_SHUFFLE_PARTITIONS))
        )
    kept = log is not None
    log = log or _temporary_log()
    removal = partial(_remove, log)
    if not kept:
        # Before Spark starts: a signal may end the start.
        atexit.register(removal)
    try:
        with (
            _stderr_to(log),
            home_without_archive() if _is_local(master) else nullcontext(),
            _own_address() if _is_local(master) else nullcontext(),
            java_ends_with_a_failed_start(),
        ):
            return _configured(builder, conf).getOrCreate()
    except Exception as error:
        # The log is kept, since the error names it.
        atexit.unregister(removal)
        raise SparkStartFailed(f"Spark did not start ({_why(log)}); see {log}") from error


@contextmanager
def _own_address() -> Iterator[None]:
    """A Java that the block starts does not look for the address of the machine's name, which may have none.

    Later the variable is gone: if this process starts a driver for a cluster, the cluster must reach it.
    """
    if "SPARK_LOCAL_IP" in os.environ:
        yield
        return
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    try:
        yield
    finally:
        del os.environ["SPARK_LOCAL_IP"]


@contextmanager
def _stderr_to(log: Path) -> Iterator[None]:
    """Processes that the block starts have ``log`` as their standard error, as long as they live.

    Java prints warnings before its logging is configured, and Python workers print through Java. A configuration of
    logging would catch neither.
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


def _why(log: Path) -> str:
    """The line of Spark's log that says why it did not start."""
    try:
        text = log.read_text(errors="replace")
    except OSError:
        text = ""
    found: list[str] = next(filter(None, (pattern.findall(text) for pattern in _TELLING)), ["its log is empty"])
    return found[-1][:200]


def _remove(log: Path) -> None:
    with suppress(OSError):
        log.unlink()
