"""HTTP consumers register: while a reply of the server is lost, and while another lease of their name holds."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import orjson
import pytest
from celery import Celery
from redis.exceptions import TimeoutError as NoReply

from bridge.app.finding import learn_layout
from bridge.app.installation import install
from bridge.app.installed import bridge_of
from bridge.app.lanes import lanes_of
from bridge.http import registering as module
from bridge.http.consumer_forms import Registering
from bridge.http.problems import Problem
from bridge.http.registering import Registry
from bridge.routing.http_consumers import enlist
from bridge.stack.embedded import EmbeddedServer

ASKED = Registering(name="h1", concurrency=1, tasks=["shop.pay"])


def app_on(server: EmbeddedServer, **conf: Any) -> Celery:
    app = install(Celery("shop", broker=server.url, set_as_current=False))
    app.conf.update(bridge_redis_url=server.url, **conf)
    return app


def registry_of(app: Celery) -> Registry:
    bridge = bridge_of(app)
    site: Any = SimpleNamespace(app=app, redis=bridge.async_client, stopping=asyncio.Event(), settings=bridge.settings)
    return Registry(site, incarnations=SimpleNamespace(add=lambda _one: None))  # type: ignore[arg-type]


async def still_here() -> bool:
    return False


def test_an_incarnation_whose_registration_was_not_answered_holds_no_lease(valkey: EmbeddedServer) -> None:
    app = app_on(valkey)
    lanes = lanes_of(app)
    keys = lanes[0].settings.keys

    async def lost(*call: Any) -> Any:
        await enlist(*call)
        raise NoReply("timed out")

    async def waits() -> bool:
        pytest.fail("it waits for the end of a lease")

    async def register() -> str:
        registry = registry_of(app)
        with patch.object(module, "enlist", lost), pytest.raises(NoReply):
            await registry.register(ASKED, lanes, waits)
        redis = await bridge_of(app).async_client()
        assert not [key async for key in redis.scan_iter(match=keys.lease("*"))]
        # The consumer calls again
        return (await registry.register(ASKED, lanes, waits)).id

    incarnation = asyncio.run(register())
    with valkey.client() as redis:
        assert list(redis.scan_iter(match=keys.lease("*"))) == [keys.lease(incarnation).encode()]


@pytest.mark.parametrize("is_renewed", [False, True])
@pytest.mark.parametrize("partitions", [1, 2])
def test_an_older_lease_is_waited_for_as_long_as_that_one_is(
    valkey: EmbeddedServer, partitions: int, is_renewed: bool
) -> None:
    # Given the lease of a consumer that came before a deploy, with a longer lease
    app = app_on(valkey, bridge_lease=1.0, bridge_partitions=partitions)
    learn_layout(app)
    lanes = lanes_of(app)
    length_ms = 2500
    leases = [lane.settings.keys.lease("older") for lane in lanes]
    with valkey.client() as redis:
        for lane, lease in zip(lanes, leases, strict=True):
            keys = lane.settings.keys
            older = {"incarnation": "older", "queue": keys.queue("h1"), "slots": 1, "lease_ms": length_ms}
            redis.hset(keys.consumers, "h1", orjson.dumps({**older, "kind": "http"}))
            redis.set(lease, "h1", px=length_ms)

    async def renew() -> bool:
        redis = await bridge_of(app).async_client()
        for lease in leases:
            assert await redis.pexpire(lease, length_ms)
        return False

    began = time.monotonic()
    register = registry_of(app).register(ASKED, lanes, renew if is_renewed else still_here)
    if is_renewed:
        with pytest.raises(Problem, match="renews its lease"):
            asyncio.run(register)
        assert time.monotonic() - began >= length_ms / 1000
    else:
        incarnation = asyncio.run(register)
        with valkey.client() as redis:
            assert redis.exists(*(lane.settings.keys.lease(incarnation.id) for lane in lanes)) == len(lanes)
