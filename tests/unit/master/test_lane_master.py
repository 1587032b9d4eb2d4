"""A lane whose thread cannot start, since the system has no room for one more."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery

from bridge.app.installation import install
from bridge.app.lanes import lanes_of
from bridge.master import lane_master as module
from bridge.master.lane_master import LaneMaster
from bridge.protocol import unreadable
from bridge.routing.leadership import lead
from bridge.stack.embedded import EmbeddedServer


def start(_thread: Any) -> None:
    raise RuntimeError("can't start new thread")


@pytest.mark.parametrize("said", [b"garbage", b"", b"[]", b"7", b"\xff", b'{"settings": 7}'])
def test_a_master_starts_although_what_the_leader_said_cannot_be_read(
    said: bytes, valkey: EmbeddedServer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unreadable, "_said", set())
    app = install(Celery("shop", broker=valkey.url, set_as_current=False))
    [lane] = lanes_of(app)
    nothing: Any = None
    with valkey.client() as redis:
        about = lane.settings.keys.about
        redis.hset(about, "master", said)
        LaneMaster(
            app, lane, redis, "m1", nothing, announce=nothing, failed=nothing, defective=nothing, ended=nothing,
            sleepers=nothing,
        )  # fmt: skip
    lines = [record.getMessage() for record in caplog.records if "cannot be read" in record.getMessage()]
    # An empty list says nothing, as no facts do.
    assert len(lines) == (said != b"[]")
    assert all(line.startswith(f"the field 'master' of the key {about} ") for line in lines)


@pytest.mark.parametrize("wakes_up", [False, True])
def test_a_lane_without_a_thread_is_given_up_and_asked_for_again(
    valkey: EmbeddedServer, monkeypatch: pytest.MonkeyPatch, *, wakes_up: bool
) -> None:
    app = install(Celery("shop", broker=valkey.url, set_as_current=False))
    [lane] = lanes_of(app)
    told: list[str] = []
    outage: Any = SimpleNamespace(met=lambda _exc: None, over=lambda: None)
    nothing: Any = None
    with valkey.client() as redis:
        master = LaneMaster(
            app, lane, redis, "m1", outage, announce=told.append, failed=lambda exc: pytest.fail(f"{exc!r}"),
            defective=told.append, ended=lambda: told.append("ended"), sleepers=nothing,
        )  # fmt: skip
        [reply] = lead(redis, "m1", [master.candidate])
        assert not isinstance(reply, Exception)
        assert reply is not None
        assert reply.elected
        # When its thread cannot start: as it is elected, or as it wakes up
        if wakes_up:
            monkeypatch.setattr(threading.Thread, "start", lambda _thread: None)
            master.elected(reply.token, time.monotonic())
            master.asleep, master._thread = True, None
        monkeypatch.setattr(threading.Thread, "start", start)
        if wakes_up:
            master.wake_up(again=True)
        else:
            master.elected(reply.token, time.monotonic())

        # Then another master may lead at once, this one asks again later, and it can stop
        assert redis.get(master.keys.leader) is None
        assert not master.election.leads()
        assert told == [master.chain, "ended"]
        assert not master.may_stand(time.monotonic())
        assert master.may_stand(time.monotonic() + 2 * module.DEFECT_S)
        assert master.join(0)
