"""The end of a command's Spark: its Java ends and its error is shown. A program stands in for Java."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from pyspark import SparkContext

from bridge.routing.errors import TicketBridgeError
from bridge.spark.job import java_process
from bridge.spark.job import session as session_module
from bridge.spark.job.session import job_session

#: Ends when nobody is left who could write to it, as Spark's Java does.
POLITE = ("cat",)
STUBBORN = ("sleep", "600")


class Session:
    """As much of a session as a command needs to end it."""

    stopped = False

    def stop(self) -> None:
        self.stopped = True


class Gateway:
    """The way from Python to a Java."""

    def __init__(self, proc: subprocess.Popen[bytes] | None) -> None:
        self.proc = proc
        self.shut_down = False

    def shutdown(self) -> None:
        self.shut_down = True


Start = Callable[..., Gateway]


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Starts a program as the Java of the next session; none: as under spark-submit."""
    started: list[subprocess.Popen[bytes]] = []

    def started_as_java(*arguments: str) -> Gateway:
        java = subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) if arguments else None
        gateway = Gateway(java)
        monkeypatch.setattr(SparkContext, "_gateway", gateway)
        monkeypatch.setattr(SparkContext, "_jvm", object())
        started.extend([java] if java else [])
        return gateway

    monkeypatch.setattr(session_module, "local_session", lambda *_, **__: Session())
    yield started_as_java
    for java in started:
        with suppress(ProcessLookupError):
            java.kill()
        java.wait()


def test_a_command_leaves_no_java_behind(start: Start) -> None:
    gateway = start(*POLITE)
    with job_session("x") as made:
        assert gateway.proc is not None
        assert gateway.proc.poll() is None
    assert isinstance(made, Session)
    assert (made.stopped, gateway.shut_down, gateway.proc.poll()) == (True, True, 0)
    # Another session of this process would get a Java of its own.
    assert SparkContext._gateway is None


@pytest.mark.parametrize("ended_by", [None, KeyboardInterrupt])
def test_a_java_that_does_not_end_is_ended(
    start: Start, monkeypatch: pytest.MonkeyPatch, ended_by: type[BaseException] | None
) -> None:
    gateway = start(*STUBBORN)
    assert gateway.proc is not None
    if ended_by is None:
        monkeypatch.setattr(java_process, "JAVA_ENDS_S", 0.1)
    else:
        # Somebody is impatient while it is waited for.
        waited: list[Any] = []
        wait = gateway.proc.wait

        def impatient(timeout: float | None = None) -> int:
            waited.append(timeout)
            if len(waited) == 1:
                raise KeyboardInterrupt
            return wait(timeout)

        monkeypatch.setattr(gateway.proc, "wait", impatient)
    with suppress(KeyboardInterrupt), job_session("x"):
        pass
    assert gateway.proc.poll() == -9


def test_the_java_of_spark_submit_is_not_ours_to_end(start: Start) -> None:
    gateway = start()
    with job_session("x"):
        pass
    assert not gateway.shut_down


class AsksJava(Exception):
    """As PySpark's errors: its words are Java's."""

    def __str__(self) -> str:
        assert SparkContext._jvm is not None
        return "it is full"


def test_an_error_is_read_while_java_lives(start: Start) -> None:
    start(*POLITE)
    with pytest.raises(TicketBridgeError, match=r"^Spark failed: it is full$"), job_session("x"):
        raise AsksJava
