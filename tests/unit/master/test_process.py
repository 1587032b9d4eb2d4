"""A master process around its lanes: what it does before they start, at a signal, and when their layout is over."""

from __future__ import annotations

import gc
import resource
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from celery import Celery
from redis.exceptions import ConnectionError as Lost

import bridge
from bridge.master import process
from bridge.master.process import Master
from bridge.routing.errors import ServerUnavailable
from bridge.testing.waiting import wait_until


class FakeLineup:
    """Lanes that are over at once, or run ``during``."""

    shares_a_process = False

    def __init__(self, during: Callable[[], None] | None = None) -> None:
        self.is_over = during is None
        self._during = during
        self.stopped = 0
        self._lock = threading.Lock()
        self.hung = False

    def run(self, _healthy: Callable[[], None]) -> None:
        if self._during is not None:
            # Within an event's wait, the thread that waits has the event's lock
            with self._lock:
                self._during()
            wait_until(lambda: self.stopped or self.hung, description="the lanes to be stopped")

    def stop(self) -> None:
        if not self._lock.acquire(timeout=5):
            self.hung = True
            return
        self.stopped += 1
        self._lock.release()


class FakeHeartbeats:
    def __init__(self, *_: Any) -> None:
        """Hears nothing."""

    start = stop = __init__


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch) -> Celery:
    monkeypatch.setattr(process, "Heartbeats", FakeHeartbeats)
    return bridge.install(Celery("shop", broker="redis://127.0.0.1:1/0", set_as_current=False))


@pytest.fixture
def handlers() -> Iterator[None]:
    """The handlers of a master's signals are those of before, afterwards."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_what_start_up_made_is_no_part_of_collections(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    class FakeMaster:
        def __init__(self, *_: Any) -> None:
            calls.append("made")

        def run(self) -> None:
            calls.append("run")

    monkeypatch.setattr(process, "Master", FakeMaster)
    monkeypatch.setattr(gc, "freeze", lambda: calls.append("freeze"))
    app: Any = None
    process.run(app)
    assert calls == ["made", "freeze", "run"]


@pytest.mark.parametrize(
    "signals", [(signal.SIGTERM,), (signal.SIGINT, signal.SIGTERM)], ids=["one", "one within another's handler"]
)
@pytest.mark.usefixtures("handlers")
def test_a_signal_stops_a_master_that_holds_the_lock_of_an_event(
    app: Celery, monkeypatch: pytest.MonkeyPatch, signals: tuple[signal.Signals, ...]
) -> None:
    def during() -> None:
        for number in signals:
            signal.raise_signal(number)

    lineup = FakeLineup(during)
    monkeypatch.setattr(process, "Lineup", lambda *_: lineup)
    said: list[str] = []
    Master(app, said.append).run()
    assert not lineup.hung
    assert said == ["stopped"]


@pytest.mark.parametrize("error", [Lost("refused"), ServerUnavailable("cannot reach Redis")], ids=["redis", "checked"])
@pytest.mark.usefixtures("handlers")
def test_a_master_takes_part_in_a_new_layout_when_the_server_is_back(
    app: Celery, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr(process, "RETRY_S", 0.01)
    last = FakeLineup(lambda: signal.raise_signal(signal.SIGTERM))
    found: list[Any] = [FakeLineup(), error, error, last]

    def lineup(*_: Any) -> FakeLineup:
        if isinstance(one := found.pop(0), FakeLineup):
            return one
        raise one

    monkeypatch.setattr(process, "Lineup", lineup)
    Master(app, lambda _line: None).run()
    assert last.stopped


@pytest.mark.parametrize("error", [BrokenPipeError(), OSError(28, "no space left"), ValueError("closed")], ids=repr)
@pytest.mark.usefixtures("handlers")
def test_a_line_that_cannot_be_written_ends_no_master(
    app: Celery, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def announce(_line: str) -> None:
        raise error

    def lineup(_app: Celery, say: Callable[[str], None], _named: Any) -> FakeLineup:
        def during() -> None:
            say("leading, term 1")
            signal.raise_signal(signal.SIGTERM)

        return FakeLineup(during)

    monkeypatch.setattr(process, "Lineup", lineup)
    Master(app, announce).run()


def test_a_master_may_open_as_many_files_as_the_system_allows(app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    seen = []

    class Stub:
        def __init__(self, *_: Any) -> None:
            """Leads nothing."""

        def run(self) -> None:
            seen.append(resource.getrlimit(resource.RLIMIT_NOFILE))

    monkeypatch.setattr(process, "Master", Stub)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, hard - 1), hard))
    try:
        process.run(app)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        gc.unfreeze()
    assert seen == [(hard, hard)]
