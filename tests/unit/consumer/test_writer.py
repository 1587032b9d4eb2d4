"""The connections of an `OutcomeWriter` that several threads use."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

import pytest
from celery import Celery
from redis.exceptions import ConnectionError as ConnectionLost

from bridge.app.installation import install
from bridge.consumer import writer as writers
from bridge.consumer.deadline import now_ns
from bridge.consumer.writer import OutcomeWriter, UnderWay
from bridge.protocol.outcomes import Kind, Outcome
from bridge.worker.guard.shared_page import SharedPage

LIFE = "1" * 32


class Connection:
    """Stands for `bridge.link.connections.Wire`. ``is_lost``: nothing can be sent."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.is_lost = self.is_closed = False

    def ask_packed(self, _packed: bytes) -> None:
        if self.is_lost:
            raise ConnectionLost("not sent")

    def answer(self) -> bytes:
        return b"1-1"

    def renew(self) -> None:
        """Nothing: the server closes no connection that is idle."""

    def close(self) -> None:
        self.is_closed = True


def begin(writer: OutcomeWriter) -> UnderWay:
    return writer.begin_write(LIFE, [Outcome("1-0", 1, Kind.RETURNED)])


def begin_another(writer: OutcomeWriter, others: list[Any]) -> None:
    others.append(begin(writer))


def interrupted(call: Callable[[], Any], code: Any, step: int, other: Callable[[], Any]) -> bool:
    """Calls ``call``, and ``other`` before the ``step``-th instruction of the function with ``code``, as another thread
    may come between any two. False: the function has fewer instructions.
    """
    left = step

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left
        if frame.f_code is not code:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            left -= 1
            if not left:
                other()
        return trace

    before = sys.gettrace()
    # Python 3.12 has no events of instructions unless a frame has asked for them by then.
    sys._getframe().f_trace_opcodes = True
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return left <= 0


def test_a_connection_that_another_thread_took_while_one_was_lost_stays_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writers, "Wire", Connection)
    settings = install(Celery("shop", broker="redis://localhost:1/0", set_as_current=False)).bridge.settings
    shared = SharedPage()
    shared.begin(LIFE, now_ns() + 600 * 10**9)
    step = 1
    while True:
        # Given three connections that are idle, of which the next one is lost
        writer = OutcomeWriter(settings.redis_url, settings.lane, shared)
        for write in [begin(writer) for _ in range(3)]:
            assert write.end()
        lost: Any = writer._idle[-1]
        lost.is_lost = True
        # When another thread begins a write while this one is met
        others: list[Any] = []
        came = interrupted(
            partial(begin, writer),
            OutcomeWriter._lost.__code__,
            step,
            partial(begin_another, writer, others),
        )
        # Then that write has a connection of its own
        if not came:
            break
        assert not others[0]._wire.is_closed, f"before instruction {step}"
        assert lost.is_closed
        step += 1
    assert step > 10, "each instruction was tried"
