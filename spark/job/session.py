"""The Spark session of the jobs, built in one place.

Under ``spark-submit`` the session is the one that was submitted to, and only what concerns this project is set.
Otherwise a Java is found and started here, and what Spark says while it works goes to a log file: a user sees the
job's own words, and one line when it fails.
"""

from __future__ import annotations

import atexit
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any

from pyspark import SparkContext, java_gateway
from pyspark.sql import SparkSession

from bridge.routing.errors import ConfigurationError, TicketBridgeError
from bridge.spark.job.failures import one_line
from bridge.spark.job.home import home_without_archive
from bridge.spark.job.java import find_java
from bridge.spark.job.packages import HOME, send_packages

DEFAULT_MASTER = "local[*]"
#: Partitions of a shuffle. The default of 200 is meant for clusters; on one machine it is 200 tiny tasks.
LOCAL_SHUFFLE_PARTITIONS = 8
#: What a Java that did not come up says of it: an error that ended it, and one that Spark gave a reason for.
_TELLING = re.compile(r"^(?:Exception in thread \"main\" (?:\w+\.)+\w+|.* ERROR .*Reason): (.+)", re.MULTILINE)
#: Seconds that Java has to end once its session is stopped; it takes a fraction of one.
JAVA_ENDS_S = 5.0


class SparkStartFailed(TicketBridgeError):
    """Spark did not start; its log, which the message names, says why."""


@contextmanager
def job_session(
    name: str,
    *,
    master: str | None = None,
    log: Path | None = None,
    retries: bool = True,
    conf: Mapping[str, str] | None = None,
) -> Iterator[SparkSession]:
    """The session of a command, as ``local_session`` makes it; once the block is left, nothing of it runs any more.

    What the block raises comes out as the project's own error.
    """
    try:
        session = local_session(name, master=master, log=log, retries=retries, conf=conf)
        try:
            yield session
        except BrokenPipeError:
            raise  # it is about our own output
        except Exception as error:
            # Here, while there is a Java: what Spark throws asks it for its words.
            raise one_line(error) from None
        finally:
            session.stop()
    finally:
        _end_java()


def local_session(
    name: str,
    *,
    master: str | None = None,
    log: Path | None = None,
    retries: bool = True,
    conf: Mapping[str, str] | None = None,
) -> SparkSession:
    """A session with the data source registered, the session timezone UTC and the web interface off.

    ``master`` defaults to ``local[*]``, or to what was submitted to. ``log`` gets Spark's output; by default a
    temporary file, removed at exit. Without ``retries`` a task is tried once and never run twice: for writes whose
    second attempt would add its rows a second time. ``conf`` is Spark's own configuration, and wins over what is set
    here, but for the timezone, on which the meaning of the data depends. Raises ``JavaMissing`` and
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
        # The errors of a job are told by the job; Spark's version of them is hundreds of lines.
        session.sparkContext.setLogLevel("FATAL")
    else:
        session = _start(builder, master or DEFAULT_MASTER, conf, log)
    try:
        _prepare(session, away=submitted or not _is_local(session.sparkContext.master or ""))
    except Exception as error:
        # Told while there is a Java: what Spark throws asks it for its words.
        told = one_line(error)
        session.stop()
        raise told from None
    return session


def _prepare(session: SparkSession, *, away: bool) -> None:
    """Set what all jobs need; ``away`` when tasks may run in a Python that does not have this project."""
    session.conf.set("spark.sql.session.timeZone", "UTC")
    if away:
        send_packages(session.sparkContext)
    from bridge.spark.source import RedisStreamDataSource

    session.dataSource.register(RedisStreamDataSource)


def _end_java() -> None:
    """End the Java that was started here, and wait for that; one that was submitted to is not ours to end.

    Left alone it ends a moment after this process: whoever waits for the command, a supervisor or a test, would still
    find it, and the folder that its classes come from is removed when this process ends.
    """
    gateway = SparkContext._gateway
    java: subprocess.Popen[bytes] | None = getattr(gateway, "proc", None)
    if gateway is None or java is None:
        return
    SparkContext._gateway = SparkContext._jvm = None
    # What Python still holds of Java's objects is not told to it any more.
    gateway.shutdown()
    with _at_last_killed(java), suppress(OSError):
        if java.stdin is not None:
            # It reads this pipe to notice the end of who started it.
            java.stdin.close()


@contextmanager
def _at_last_killed(java: subprocess.Popen[bytes]) -> Iterator[None]:
    """Wait for the end of a Java that the block has asked to end; kill it when it does not."""
    try:
        yield
        java.wait(JAVA_ENDS_S)
    except subprocess.TimeoutExpired:
        pass
    finally:
        # Also when a second Ctrl-C ends the waiting.
        if java.poll() is None:
            java.kill()
            java.wait()


@contextmanager
def _no_java_without_gateway() -> Iterator[None]:
    """End a Java that is started meanwhile when the block is left by an error or a signal before PySpark knows it.

    PySpark then forgets about it, and takes away the folder where it was to say how it can be reached. It fails at
    that, before it looks at the pipe that tells of our end, and a thread of its keeps it there for good.
    """
    started: list[subprocess.Popen[bytes]] = []
    starter: Any = java_gateway
    popen = starter.Popen

    def noted(*args: Any, **kwargs: Any) -> subprocess.Popen[bytes]:
        ours = {signal.SIGINT, signal.SIGTERM}
        before = signal.pthread_sigmask(signal.SIG_BLOCK, ours)
        preexec = kwargs.pop("preexec_fn", None)

        def unblocked() -> None:
            if preexec is not None:
                preexec()
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

        try:
            # A signal in the middle of this would leave a process that nobody has noted.
            started.append(popen(*args, preexec_fn=unblocked, **kwargs))
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return started[-1]

    starter.Popen = noted
    try:
        yield
    except BaseException:
        if SparkContext._gateway is None:
            for java in started:
                with _at_last_killed(java):
                    # Not killed at once: its own end removes its files.
                    java.terminate()
        raise
    finally:
        starter.Popen = popen


def parse_conf(words: Iterable[str]) -> dict[str, str]:
    """``--conf key=value``, given any number of times. Raises ``ConfigurationError``, without the value."""
    conf = {}
    for word in words:
        key, equals, value = word.partition("=")
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
    """Start Java and a session in it, quietly."""
    os.environ.update(find_java().env)
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    if _is_local(master):
        # Workers are this Python, with this project: they unpickle its classes.
        os.environ["PYSPARK_PYTHON"] = sys.executable
        paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        if str(HOME) not in paths:
            os.environ["PYTHONPATH"] = os.pathsep.join([str(HOME), *filter(None, paths)])
    elif conf and "spark.pyspark.python" in conf:
        # Only spark-submit looks at this one.
        os.environ["PYSPARK_PYTHON"] = conf["spark.pyspark.python"]
    builder = (
        builder.master(master)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.warehouse.dir", str(Path(tempfile.gettempdir()) / "ticket-bridge-warehouse"))
    )
    if _is_local(master):
        # Nobody else needs to reach this driver; the executors of a cluster do.
        builder = (
            builder.config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.sql.shuffle.partitions", str(LOCAL_SHUFFLE_PARTITIONS))
        )
    kept = log is not None
    log = log or _temporary_log()
    removal = partial(_remove, log)
    if not kept:
        # Now, not when Spark has started: a signal may end this before.
        atexit.register(removal)
    try:
        with (
            _stderr_to(log),
            home_without_archive() if _is_local(master) else nullcontext(),
            _no_java_without_gateway(),
        ):
            return _configured(builder, conf).getOrCreate()
    except Exception as error:
        # Whoever reads this will want to read that, too.
        atexit.unregister(removal)
        raise SparkStartFailed(f"Spark did not start ({_why(log)}); see {log}") from error


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


def _why(log: Path) -> str:
    """The line of Spark's log that says why it did not start; else its last one."""
    try:
        text = log.read_text(errors="replace")
    except OSError:
        text = ""
    found = _TELLING.findall(text)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return (found or lines or ["it said nothing"])[-1][:200]


def _remove(log: Path) -> None:
    with suppress(OSError):
        log.unlink()
