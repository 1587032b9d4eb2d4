"""A lane of an older format is brought up by the first leader of a newer version, step by step."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery

import bridge
import bridge.leader.leader
from bridge.app.lanes import lane_of
from bridge.leader.leader import Leader
from bridge.leader.takeover.formats import STEPS, bring_up
from bridge.link.server_clock import ServerClock
from bridge.protocol.agreement import LANE_FORMAT
from bridge.routing.errors import ConfigurationError
from bridge.routing.keys import LaneKeys
from bridge.stack.embedded import EmbeddedServer
from tests.script_calls import lead


def term_of(format_: bytes | None) -> Any:
    redis = SimpleNamespace(hget=lambda _key, field: {"format": format_}[field])
    return SimpleNamespace(redis=redis, keys=LaneKeys("ticket_stream", "shop"))


@pytest.mark.parametrize(("found", "done"), [(b"1", [1, 2]), (b"2", [2]), (b"3", []), (None, [])], ids=str)
def test_the_steps_from_the_lane_s_format_on_are_done_in_order(found: bytes | None, done: list[int]) -> None:
    did: list[int] = []
    steps = {number: lambda _term, number=number: did.append(number) for number in (2, 1)}
    bring_up(term_of(found), steps, 3)
    assert did == done


def test_a_lane_that_is_too_old_is_refused_before_any_step() -> None:
    did: list[int] = []
    with pytest.raises(ConfigurationError, match=r"is in format 1, .* no way from format 2 to 3: run the version"):
        bring_up(term_of(b"1"), {1: lambda _term: did.append(1)}, 3)
    assert did == []


def test_there_is_a_step_from_each_format_to_the_next() -> None:
    assert set(STEPS) == set(range(1, LANE_FORMAT))


def test_a_leader_brings_the_lane_up_before_it_says_which_format_it_has(
    valkey: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = Celery("formats", broker=valkey.url, set_as_current=False)
    bridge.install(app)
    lane = lane_of(app)
    keys = lane.settings.keys
    seen: list[Any] = []
    with valkey.client() as redis:
        monkeypatch.setattr(bridge.leader.leader, "bring_up", lambda _term: seen.append(redis.hkeys(keys.about)))
        redis.hset(keys.about, mapping={"app": "formats"})
        _, token, _ = lead(redis, keys, "here", 10_000)
        leader = Leader(app, valkey.url, lane, token, ServerClock(6.0))
        redis.hdel(keys.about, "format")
        monkeypatch.setattr(bridge.leader.leader, "arrive", lambda *_arguments: None)
        leader._look_around()
        leader._term.close()
        assert seen == [[b"app"]]
        assert redis.hget(keys.about, "format") == str(LANE_FORMAT).encode()
