"""Answers of a server: passing failures are waited out, permanent ones are errors."""

from __future__ import annotations

import pytest
import redis

from bridge.routing.errors import ServerUnavailable
from bridge.routing.pushes import Answer
from bridge.routing.return_codes import ReturnCode
from bridge.spark.wire.replies import Link, RefusedByServer, Trouble

SECRET = "hunter2"
IN_SCRIPT_6 = (
    "Error running script (call to f_5c0): @user_script:1: @user_script: 1: -{code} command not allowed when used "
    "memory > 'maxmemory'."
)


def link() -> Link:
    return Link(f"redis://:{SECRET}@127.0.0.1:1/0")


@pytest.mark.parametrize(
    ("error", "full"),
    [
        (redis.exceptions.OutOfMemoryError("command not allowed when used memory > 'maxmemory'."), True),
        (redis.exceptions.ResponseError(IN_SCRIPT_6.format(code="OOM")), True),
        (redis.exceptions.ResponseError(IN_SCRIPT_6.format(code="READONLY")), False),
        (redis.exceptions.BusyLoadingError("LOADING"), False),
        (redis.exceptions.ReadOnlyError("You can't write"), False),
        (redis.exceptions.NoScriptError("No matching script"), False),
        (redis.exceptions.ConnectionError("Connection closed by server."), False),
        (redis.exceptions.TimeoutError("Timeout reading"), False),
        (ConnectionResetError(104, "reset"), False),
    ],
    ids=lambda value: type(value).__name__,
)
def test_passing_failures_are_waited_out(error: Exception, full: bool) -> None:
    failure = link().failed(error)
    assert isinstance(failure, Trouble)
    assert failure.full is full
    assert SECRET not in str(failure)
    assert "\n" not in str(failure)


@pytest.mark.parametrize(
    "error",
    [
        redis.exceptions.ResponseError("WRONGTYPE Operation against a key"),
        redis.exceptions.ResponseError("ERR unknown command"),
        redis.exceptions.DataError("Invalid input"),
    ],
    ids=str,
)
def test_permanent_failures_are_errors(error: Exception) -> None:
    assert isinstance(link().failed(error), RefusedByServer)


@pytest.mark.parametrize(
    "error",
    [redis.exceptions.AuthenticationError("WRONGPASS"), redis.exceptions.NoPermissionError("NOPERM")],
    ids=str,
)
def test_a_login_that_is_refused_is_not_tried_again(error: Exception) -> None:
    failure = link().failed(error)
    assert isinstance(failure, ServerUnavailable)
    assert SECRET not in str(failure)


def test_a_server_that_is_not_there_is_trouble() -> None:
    with pytest.raises(Trouble, match=r"no answer from redis://127\.0\.0\.1:1/0"):
        link().client()


@pytest.mark.parametrize(
    ("reply", "answer"),
    [
        ([b"OK"], Answer(ReturnCode.OK)),
        ([b"OK", 7], Answer(ReturnCode.OK, "7")),
        ([b"WAIT", 20], Answer(ReturnCode.WAIT, "20")),
        ([b"CHANGED", b"3 4 end"], Answer(ReturnCode.CHANGED, "3 4 end")),
    ],
)
def test_an_answer_is_a_return_code_and_a_value(reply: list[bytes | int], answer: Answer) -> None:
    assert Answer.of(reply) == answer
