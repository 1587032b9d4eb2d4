"""What Spark throws becomes one line of the project's own errors."""

from __future__ import annotations

import os
import signal

import pytest

from routing.errors import ConfigurationError, InputError, PayloadError, TicketBridgeError
from spark.failures import one_line, told_in_one_line
from spark.replies import RefusedByServer

PYTHON_TRACE = """An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "somewhere/write_into_data_source.py", line 1, in data_source_write_func
    res = writer.write(iterator)
{name}: {text}

\tat org.apache.spark.sql.execution.python.BasePythonRunner
Caused by: something else
"""


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("routing.errors.PayloadError", PayloadError),
        ("routing.errors.ConfigurationError", ConfigurationError),
        ("spark.replies.RefusedByServer", RefusedByServer),
    ],
)
def test_an_error_of_a_task_is_found_in_javas_account_of_it(name: str, kind: type[TicketBridgeError]) -> None:
    told = one_line(RuntimeError(PYTHON_TRACE.format(name=name, text="ticket 'T1' is bad: 2 after 3")))
    assert type(told) is kind
    assert str(told) == "ticket 'T1' is bad: 2 after 3"


def test_an_error_of_spark_keeps_its_first_line_only() -> None:
    told = one_line(RuntimeError("\n\nsomething is wrong\n\tat java.lang.Thread\n"))
    assert type(told) is TicketBridgeError
    assert str(told) == "Spark failed: something is wrong"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "[FAILED_READ_FILE.NO_HINT] Encountered error while reading file x.  SQLSTATE: KD001\n"
            "Caused by: java.io.EOFException: Unexpected end of input stream\n",
            "the input cannot be read: Unexpected end of input stream",
        ),
        (
            "[FAILED_READ_FILE.NO_HINT] Encountered error while reading file x.  SQLSTATE: KD001\n",
            "the input cannot be read: Encountered error while reading file x.",
        ),
    ],
)
def test_an_unreadable_file_is_the_inputs_fault(text: str, said: str) -> None:
    told = one_line(RuntimeError(text))
    assert isinstance(told, InputError)
    assert str(told) == said


@pytest.mark.parametrize(
    ("error", "code"), [(ConfigurationError("x"), 2), (InputError("x"), 1), (RuntimeError("x"), 1)]
)
def test_a_job_that_fails_ends_with_one_line_and_its_exit_code(
    error: Exception, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended, told_in_one_line(as_json=True):
        raise error
    assert ended.value.code == code
    said = capsys.readouterr()
    assert said.err.startswith("error: ")
    assert said.err.count("\n") == 1
    assert said.out.startswith('{"event": "failed", "error": ')


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_a_job_in_good_order(
    number: signal.Signals, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    before = signal.getsignal(signal.SIGTERM)
    cleaned = []

    def job() -> None:
        try:
            os.kill(os.getpid(), number)
        finally:
            cleaned.append("up")

    with pytest.raises(SystemExit) as ended, told_in_one_line():
        job()
    assert (ended.value.code, cleaned) == (code, ["up"])
    assert capsys.readouterr().err.startswith("error: stopped")
    assert signal.getsignal(signal.SIGTERM) is before
