"""The leader's log lines about dead letters: the first ones, then their number, and nothing of a payload."""

from __future__ import annotations

import logging

import pytest
from celery import Celery

import bridge
from bridge.app.lanes import lane_of
from bridge.leader.duties.dead_log import DeadLog
from bridge.leader.leader import Leader
from bridge.link.server_clock import ServerClock
from bridge.routing.batch import Batch, DeadLetter
from bridge.routing.transitions import Advanced
from bridge.stack.embedded import EmbeddedServer

WRITTEN = Advanced(0, 0, 0)


def batch(*ids: str) -> Batch:
    fields = [
        "reason",
        "gave up after 5 attempts",
        "error",
        "ValueError: card 4711",
        "ticket_id",
        "T\n1",
        "task",
        "s.t",
    ]
    return Batch(dead=[DeadLetter(id_, [*fields, "payload", "secret"]) for id_ in ids])


def test_the_first_have_a_line_each_and_the_others_a_number(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr("bridge.leader.duties.dead_log.time.monotonic", lambda: now)
    log = DeadLog()
    with caplog.at_level(logging.WARNING):
        log.settled(WRITTEN, Batch())
        log.settled(WRITTEN, batch("1-0", "2-0", "3-0"))
        log.settled(WRITTEN, batch(*(f"{n}-0" for n in range(4, 104))))
        log.look()
    assert [record.message for record in caplog.records] == [
        f"message {n}-0 of ticket T 1, task s.t is dead: gave up after 5 attempts" for n in range(1, 6)
    ]
    caplog.clear()
    now += 10
    log.look()
    log.look()
    assert [record.message for record in caplog.records] == ["98 more messages are dead (`bridge dead list`)"]
    caplog.clear()
    log.settled(WRITTEN, batch("7-0"))
    assert len(caplog.records) == 1
    assert "4711" not in caplog.text
    assert "secret" not in caplog.text


def test_a_term_that_ends_soon_after_a_flood_logs_the_number(
    valkey: EmbeddedServer, caplog: pytest.LogCaptureFixture
) -> None:
    app = Celery("shop", broker=valkey.url, set_as_current=False)
    bridge.install(app)
    leader = Leader(app, valkey.url, lane_of(app), "1 m", ServerClock(6.0))
    leader._dead_log.settled(WRITTEN, batch(*(f"{n}-0" for n in range(1, 104))))
    caplog.clear()
    leader.close()
    leader.close()
    assert [record.message for record in caplog.records] == ["98 more messages are dead (`bridge dead list`)"]


def test_an_entry_that_could_not_be_processed_may_name_nothing(caplog: pytest.LogCaptureFixture) -> None:
    DeadLog().settled(WRITTEN, Batch(dead=[DeadLetter("1-0", ["reason", "no ticket_id", b"field:\xff", b"x"])]))
    assert [record.message for record in caplog.records] == ["message 1-0 is dead: no ticket_id"]
