"""Ctrl-C while rows are pushed: the counts never say what is not so. Without a server."""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import count
from types import FrameType
from typing import Any, cast

import pytest
from redis import Redis
from redis.exceptions import ResponseError

import bridge.producer.pusher
from bridge.producer.pusher import Destination, Pushed, push_rows
from bridge.producer.rows import Row
from bridge.routing import producing
from bridge.routing.errors import ServerUnavailable
from bridge.routing.return_codes import ReturnCode

FILE = bridge.producer.pusher.__file__
ROWS = 10
BATCH = 4


def interrupted_at(line: int, action: Callable[[], None]) -> bool:
    """Runs the action; raises `KeyboardInterrupt` before the n-th line that the pusher runs. Says whether it came."""
    done = 0

    def local(_frame: FrameType, event: str, _arg: object) -> Any:
        nonlocal done
        if event == "line":
            done += 1
            if done == line:
                raise KeyboardInterrupt
        return local

    def trace(frame: FrameType, _event: str, _arg: object) -> Any:
        return local if frame.f_code.co_filename == FILE else None

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        action()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


def test_ctrl_c_before_any_line_leaves_true_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    added: list[object] = []

    def push(_client: object, _places: object, rows: list[object]) -> tuple[object, ...]:
        added.extend(rows)
        return ReturnCode.OK, *(f"{n}-0".encode() for n in range(len(added) - len(rows), len(added)))

    monkeypatch.setattr(producing, "push_rows", push)
    counts = set()
    for line in count(1):
        added.clear()
        pushed = Pushed()
        rows = [Row(n, b"T", None, b"{}") for n in range(ROWS)]

        def action(pushed: Pushed = pushed, rows: list[Row] = rows) -> None:
            push_rows(cast("Redis", None), Destination("ticket_stream"), rows, BATCH, pushed, lambda _: None)

        if not interrupted_at(line, action):
            break
        assert pushed.rows <= len(added) <= pushed.rows + pushed.uncertain, line
        assert pushed.rows in (0, BATCH, 2 * BATCH, ROWS), f"half a batch was counted before line {line}"
        assert pushed.last_id == (f"{pushed.rows - 1}-0" if pushed.rows else None)
        counts.add((pushed.rows, pushed.uncertain))
    assert {(0, 0), (0, 4), (4, 0), (4, 4), (8, 0), (8, 2), (10, 0)} <= counts


@pytest.mark.parametrize("text", ["BUSY Redis is busy running a script", "NOPERM this user has no permissions"])
def test_a_call_that_is_refused_whole_leaves_true_counts(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = count(1)

    def push(_client: object, _places: object, rows: list[object]) -> tuple[object, ...]:
        if next(calls) == 2:
            raise ResponseError(text)
        return ReturnCode.OK, *(f"{n}-0".encode() for n in range(len(rows)))

    monkeypatch.setattr(producing, "push_rows", push)
    pushed = Pushed()
    rows = [Row(n, b"T", None, b"{}") for n in range(ROWS)]
    with pytest.raises(ServerUnavailable, match="the rows of lines 4 to 7 were refused"):
        push_rows(cast("Redis", None), Destination("ticket_stream"), rows, BATCH, pushed, lambda _: None)
    assert (pushed.rows, pushed.uncertain) == (BATCH, 0)
