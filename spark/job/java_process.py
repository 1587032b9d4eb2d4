"""The process of the Java that a session has started: how it ends, whatever ends the session."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from pyspark import SparkContext, java_gateway

#: Seconds that Java has to end after its session was stopped. It usually takes a fraction of one.
JAVA_ENDS_S = 5.0


def end_java() -> None:
    """Ends the Java that was started here, and waits for its end. The Java of spark-submit is not ended.

    Otherwise Java would end a moment after this process: a supervisor or a test that waits for the command would still
    find it, without the folder of its classes, which is removed when this process ends.
    """
    gateway = SparkContext._gateway
    java: subprocess.Popen[bytes] | None = getattr(gateway, "proc", None)
    if gateway is None or java is None:
        return
    SparkContext._gateway = SparkContext._jvm = None
    # From here on Python does not tell Java which of its objects it releases.
    gateway.shutdown()
    with ended_or_killed(java), suppress(OSError):
        if java.stdin is not None:
            # Java reads this pipe to notice the end of its parent.
            java.stdin.close()


@contextmanager
def ended_or_killed(java: subprocess.Popen[bytes]) -> Iterator[None]:
    """Waits for the end of a Java that the block has asked to end. Kills it if it does not end."""
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
def java_ends_with_a_failed_start() -> Iterator[None]:
    """Ends a Java that the block starts, if an error or a signal ends the block before PySpark is connected to it.

    PySpark does not end such a Java: it removes the folder into which Java writes its port. Java fails at that before
    it watches the pipe that shows our end, and one of its threads keeps it alive.
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
            # A signal between the two would leave a process that is not in the list.
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
                with ended_or_killed(java):
                    # Not killed at once: when Java ends by itself, it removes its files.
                    java.terminate()
        raise
    finally:
        starter.Popen = popen
