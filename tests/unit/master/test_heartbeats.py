"""Heartbeats are heard, and their absence makes the leader look."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import pytest
from celery import Celery

import bridge.master.heartbeats
from bridge.master.heartbeats import Heartbeats
from bridge.stack.embedded import EmbeddedServer
from bridge.testing.waiting import wait_until


class Looks:
    """Counts how often the leader was asked to check the leases."""

    count = 0
    silent: Collection[str] = ()

    def __call__(self, silent: Collection[str]) -> None:
        self.count += 1
        self.silent = silent


@pytest.fixture
def app(valkey: EmbeddedServer) -> Iterator[Celery]:
    made = Celery("heard", broker=valkey.url, set_as_current=False)
    yield made
    made.close()


@pytest.fixture
def looks() -> Looks:
    return Looks()


@pytest.fixture
def heartbeats(app: Celery, looks: Looks, monkeypatch: pytest.MonkeyPatch) -> Iterator[Heartbeats]:
    monkeypatch.setattr(bridge.master.heartbeats, "INTERVAL_S", 0.5)
    made = Heartbeats(app, looks)
    made.start()
    yield made
    made.stop()


def say(app: Celery, kind: str, hostname: str) -> None:
    """Sends an event as a worker of that name."""
    with app.connection_for_write() as link, app.events.Dispatcher(link, hostname=hostname) as dispatcher:
        dispatcher.send(kind, freq=2.0)


def heard(app: Celery, heartbeats: Heartbeats, hostname: str) -> None:
    def say_until_heard() -> bool:
        say(app, "worker-heartbeat", hostname)
        return hostname in heartbeats._heard

    wait_until(say_until_heard, description=f"a heartbeat of {hostname} to be heard")


def test_a_worker_that_falls_silent_makes_the_leader_look_once(
    app: Celery, heartbeats: Heartbeats, looks: Looks
) -> None:
    heard(app, heartbeats, "w1@a")
    assert looks.count == 0
    wait_until(lambda: looks.count == 1, description="a look")
    assert list(looks.silent) == ["w1@a"]
    assert heartbeats._heard == {}


def test_a_worker_that_says_that_it_goes_makes_the_leader_look_at_once(
    app: Celery, heartbeats: Heartbeats, looks: Looks
) -> None:
    heard(app, heartbeats, "w1@a")
    say(app, "worker-offline", "w1@a")
    wait_until(lambda: looks.count >= 1, description="a look")
    assert list(looks.silent) == ["w1@a"]
    assert "w1@a" not in heartbeats._heard


def test_a_lost_connection_is_opened_again_and_charges_no_message(
    app: Celery, heartbeats: Heartbeats, looks: Looks, valkey: EmbeddedServer
) -> None:
    heard(app, heartbeats, "w1@a")
    with valkey.client() as admin:
        admin.client_kill_filter(_type="pubsub")
    wait_until(lambda: not heartbeats._heard, description="the lost link to be noticed")
    assert looks.count == 0
    heard(app, heartbeats, "w2@a")
