"""What members of a lane must agree on, and the errors and warnings if they do not."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from celery import Celery
from hypothesis import given
from hypothesis import strategies as st
from redis import Redis

import bridge
from bridge.protocol.agreement import (
    LANE_FORMAT,
    OF_MASTERS,
    SHARED,
    app_name,
    arrive,
    differences,
    facts,
    package_version,
    readable_facts,
)
from bridge.routing.errors import ConfigurationError
from bridge.routing.keys import LaneKeys
from bridge.routing.layouts import in_layout
from bridge.settings.lane import LaneSettings
from bridge.stack.embedded import EmbeddedServer
from tests.unreadable_values import like


def make(server: EmbeddedServer, name: str | None, **settings: object) -> Celery:
    app = bridge.install(Celery(name, broker=server.url))
    app.conf.update({f"bridge_{key}": value for key, value in settings.items()})
    return app


def come(redis: Redis, app: Celery) -> None:
    """A member of ``app`` arrives in its only lane."""
    arrive(redis, app, app.bridge.settings.lane, in_layout(app.bridge.settings.lane.stream))


def facts_of(app: Celery, *, master: bool) -> dict[str, Any]:
    """What a member of ``app`` says of itself in its only lane."""
    return facts(app, app.bridge.settings.lane, master=master)


@pytest.fixture
def redis(server: EmbeddedServer) -> Redis:
    made: Redis = server.client()
    made.flushdb()
    return made


def test_the_first_app_has_the_lane_and_an_app_of_another_name_is_refused(server: EmbeddedServer, redis: Redis) -> None:
    shop = make(server, "shop")
    come(redis, shop)
    come(redis, make(server, "shop"))
    with pytest.raises(ConfigurationError) as caught:
        come(redis, make(server, "billing"))
    message = str(caught.value)
    assert "belongs to the app 'shop', and this is 'billing'" in message
    assert "bridge_app = 'shop'" in message
    assert "\n" not in message
    # A name in the settings, another group, or the old name in the settings of a renamed app
    come(redis, make(server, "billing", group="billing"))
    come(redis, make(server, "billing", app="shop"))
    assert redis.hget(shop.bridge.settings.lane.keys.about, "app") == b"shop"


@pytest.mark.parametrize("name", [None, "__main__"])
def test_an_app_without_a_name_has_no_lane_and_is_refused_none(
    name: str | None, server: EmbeddedServer, redis: Redis
) -> None:
    nameless = make(server, name)
    assert app_name(nameless) == ""
    come(redis, nameless)
    come(redis, make(server, "shop"))
    come(redis, nameless)
    with pytest.raises(ConfigurationError):
        come(redis, make(server, "billing"))


def test_a_newer_format_is_refused_and_an_older_one_is_not(server: EmbeddedServer, redis: Redis) -> None:
    app = make(server, "shop")
    key = app.bridge.settings.lane.keys.about
    redis.hset(key, "format", LANE_FORMAT + 1)
    with pytest.raises(ConfigurationError, match=rf"a newer Ticket Bridge, in format {LANE_FORMAT + 1}.*upgrade it$"):
        come(redis, app)
    redis.hset(key, "format", 0)
    come(redis, app)
    assert redis.hget(key, "format") == b"0"


def test_a_lane_from_before_has_no_format_and_gets_one(server: EmbeddedServer, redis: Redis) -> None:
    app = make(server, "shop")
    redis.hset(app.bridge.settings.lane.keys.about, "app", "shop")
    come(redis, app)
    assert redis.hgetall(app.bridge.settings.lane.keys.about) == {b"app": b"shop", b"format": b"%d" % LANE_FORMAT}


def test_differences_are_named_with_both_values(server: EmbeddedServer) -> None:
    worker = facts_of(make(server, "shop", lease=2.0, max_payload=1000), master=False)
    master = facts_of(make(server, "shop", leader_lease=1.0), master=True)
    assert differences(worker, worker) == []
    assert differences(worker, master) == [
        "bridge_lease is 2.0 (there 6.0)",
        "bridge_max_payload is 1000 (there 1048576)",
    ]
    other = facts_of(make(server, "shop"), master=True)
    assert differences(other, master) == ["bridge_leader_lease is 5.0 (there 1.0)"]
    assert differences(other, {**other, "version": "9"}) == [f"the version is {package_version()} (there 9)"]
    # A member that registers no facts, as older versions do, has no differences
    assert differences(worker, {}) == []
    assert differences({}, {}) == []
    assert orjson.loads(orjson.dumps(master)) == master


def test_all_settings_of_a_lane_that_masters_use_are_compared() -> None:
    #: Those that name the lane, and those that a pool process alone uses.
    others = {"stream", "group", "max_state", "state_ttl"}
    assert {*SHARED, *OF_MASTERS} == {*LaneSettings.model_fields} - others


def test_masters_with_another_filter_differ(server: EmbeddedServer) -> None:
    mine = facts_of(make(server, "shop", filter={"kind": ["a"]}), master=True)
    theirs = facts_of(make(server, "shop", filter={"kind": ["b"]}), master=True)
    assert differences(mine, orjson.loads(orjson.dumps(mine))) == []
    [found] = differences(orjson.loads(orjson.dumps(mine)), orjson.loads(orjson.dumps(theirs)))
    assert found.startswith("bridge_filter is ")


def test_the_order_of_names_and_values_of_a_filter_makes_no_difference(server: EmbeddedServer) -> None:
    values = [f"v{n}" for n in range(30)]
    mine = facts_of(make(server, "shop", filter={"kind": values, "region": "eu"}), master=True)
    theirs = facts_of(make(server, "shop", filter={"region": "eu", "kind": values[::-1]}), master=True)
    assert differences(mine, theirs) == []
    # In another process a set has another order.
    assert mine["settings"]["filter"] == {"wanted": [["kind", "kind", sorted(values)], ["region", "region", ["eu"]]]}


def test_what_a_leader_said_is_left_out_where_it_cannot_be_read() -> None:
    mine = facts_of(bridge.install(Celery("shop", broker="redis://", set_as_current=False)), master=True)

    @given(like(orjson.dumps(mine)), like(orjson.dumps(mine["settings"])).map(_as_settings) | st.just(b"[[]]"))
    def check(text: bytes, settings: bytes) -> None:
        for one in (text, settings):
            differences(mine, readable_facts(LaneKeys("orders", "bridge"), one))

    check()


def _as_settings(text: bytes) -> bytes:
    return b'{"version": "1", "settings": ' + text + b"}"
