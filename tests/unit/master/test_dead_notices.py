"""Which lanes a notice about dead letters is about, and when the next one goes out. Redis is a table in memory."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery
from redis.exceptions import ConnectionError as ConnectionLost

from bridge.app.installation import install
from bridge.link.webhook import WebhookFailed
from bridge.master import dead_notices
from bridge.master.dead_notices import DeadNotices
from bridge.routing.errors import NotLeading
from bridge.routing.keys import LaneKeys

#: Requests a minute.
RATE = 6
PAUSE_S = 60 / RATE


class World:
    """Lanes with dead letters, a receiver, and the clock of the process."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        #: Key of a lane's dead letters -> the number of its last one.
        self.dead: dict[str, int] = {}
        #: The streams that each notice was about.
        self.told: list[list[str]] = []
        self.receiver_fails = False
        #: What Redis says when a note is written.
        self.refusal: Exception | None = None
        app: Any = Celery("shop", broker="redis://localhost:1/0", set_as_current=False)
        install(app)
        app.conf.bridge_on_dead_notify = {"url": "http://127.0.0.1:1/", "secret": "of the receiver, long", "rate": RATE}
        self.notices = DeadNotices(app, [])
        patch.setattr("bridge.master.dead_notices.time.monotonic", lambda: self.now)
        patch.setattr(dead_notices, "note_told", self._note_told)
        patch.setattr(dead_notices, "note_failed", self._note_failed)
        patch.setattr(self.notices._webhook, "send", self._send)

    def lead(self, *streams: str) -> None:
        for stream in streams:
            keys = LaneKeys(stream, "g")
            self.notices._lanes[keys.prefix] = dead_notices._Lane(keys, "1 m", "g", "", "0-0")
            self.dead[keys.dead] = 0

    def die(self, stream: str) -> None:
        self.dead[LaneKeys(stream, "g").dead] += 1

    def turn(self) -> None:
        """What the thread does when there are letters, and the next request may be sent."""
        news = self.notices._gather(self)  # type: ignore[arg-type]
        self.told.append([one.stream for _, one in news])
        self.notices._tell(self, news)  # type: ignore[arg-type]

    def execute_command(self, _: str, key: str, after: str, *__: Any) -> list[tuple[bytes, list[bytes]]]:
        number = self.dead[key]
        return [(b"%d-0" % number, [b"message_id", b"1-0"])] if number > int(after[1:].partition("-")[0]) else []

    def _send(self, *_: Any) -> None:
        if self.receiver_fails:
            raise WebhookFailed("the receiver answered 500")

    def _note_told(self, *_: Any, to: str = "0-0", **__: Any) -> str:
        if self.refusal is not None:
            raise self.refusal
        return to

    def _note_failed(self, *_: Any) -> None:
        if self.refusal is not None:
            raise self.refusal


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


def test_lanes_take_turns_when_more_of_them_get_letters_than_a_notice_has(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_notices, "LANES", 2)
    streams = ["a", "b", "c", "d", "e"]
    world.lead(*streams)
    for _ in range(5):
        # All of them get letters between two notices
        for stream in streams:
            world.die(stream)
        world.turn()
    assert world.told == [["a", "b"], ["c", "d"], ["e", "a"], ["b", "c"], ["d", "e"]]


@pytest.mark.parametrize("refusal", [None, ConnectionLost("away"), NotLeading("another leads")], ids=repr)
def test_requests_keep_their_distance_whatever_becomes_of_the_note(world: World, refusal: Exception | None) -> None:
    world.lead("a")
    world.die("a")
    world.refusal = refusal
    try:
        world.turn()
    except ConnectionLost:
        assert refusal is not None
    assert world.notices._send_at == world.now + PAUSE_S


def test_a_receiver_that_fails_gets_the_next_request_later_each_time_while_redis_is_away(world: World) -> None:
    world.lead("a")
    world.die("a")
    world.receiver_fails = True
    world.refusal = ConnectionLost("away")
    for failures in range(1, 6):
        with pytest.raises(ConnectionLost):
            world.turn()
        longest = 2.0 ** (failures - 1)
        assert longest / 2 <= world.notices._send_at - world.now <= longest
