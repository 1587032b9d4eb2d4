"""The thread of the lanes that sleep, while the server is away."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any, cast

import pytest
from redis.exceptions import ConnectionError as NotConnected

from bridge.link.health import Health
from bridge.link.outage import Outage
from bridge.master import sleepers as module
from bridge.master.sleepers import Sleepers


class Wire:
    """A connection to a server that is away."""

    def __init__(self) -> None:
        self.asked = False
        self.calls = 0

    def call(self, *_words: Any) -> Any:
        self.calls += 1
        raise NotConnected("refused")

    def ask(self, *_words: Any) -> None:
        self.call()

    def expect(self, _s: float) -> None: ...
    def renew(self) -> None: ...
    def close(self) -> None: ...


class Lane:
    """A lane that sleeps, and whose lead ends with the leader lease."""

    def __init__(self) -> None:
        self.keys = SimpleNamespace(prefix="lane")
        self.leader = SimpleNamespace(sleeping_place=None, due_in_s=None)
        self.sleeps_on = True
        self.ended = False

    def end(self) -> None:
        self.ended = True


@pytest.fixture
def wire(monkeypatch: pytest.MonkeyPatch) -> Wire:
    wire = Wire()
    clock = SimpleNamespace(monotonic=time.monotonic, sleep=lambda _s: None)
    monkeypatch.setattr(module, "Wire", lambda *_, **__: wire)
    monkeypatch.setattr(module, "client", lambda *_, **__: SimpleNamespace(connection=SimpleNamespace(_sock=None)))
    monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(Sleepers, "_question", lambda _self: ())
    return wire


def test_when_all_sleeping_lanes_have_ended_in_an_outage_their_thread_does_not_ask_the_server_again(wire: Wire) -> None:
    over: list[bool] = []
    outage = cast("Outage", SimpleNamespace(met=lambda _exc: None, over=lambda: over.append(True)))
    sleepers = Sleepers("redis://away", outage, cast("Health", SimpleNamespace(turn=lambda: None)), lambda: 9)
    lane = Lane()
    sleepers.add(cast("module.Sleeper", lane))

    def turn() -> None:
        # As the thread has it. It is woken at once each time, so that no turn lasts
        sleepers.poke()
        assert sleepers._take_in()
        try:
            sleepers._turn()
        except NotConnected as exc:
            sleepers._lost(exc)

    # Given lanes that sleep when the server goes away, and whose leads end
    turn()
    turn()
    assert wire.calls == 2
    lane.sleeps_on = False
    turn()
    assert lane.ended
    # Then the thread waits, instead of asking without a pause
    before = wire.calls
    turn()
    turn()
    assert wire.calls == before
    assert over
