"""HTTP consumers register while a reply of the server is lost."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
from celery import Celery
from redis.exceptions import TimeoutError as NoReply

from bridge.app.installation import install
from bridge.app.installed import bridge_of
from bridge.app.lanes import lanes_of
from bridge.http import registering as module
from bridge.http.consumer_forms import Registering
from bridge.http.registering import Registry
from bridge.routing.http_consumers import enlist
from bridge.stack.embedded import EmbeddedServer


def test_an_incarnation_whose_registration_was_not_answered_holds_no_lease(valkey: EmbeddedServer) -> None:
    app = install(Celery("shop", broker=valkey.url, set_as_current=False))
    app.conf.bridge_redis_url = valkey.url
    lanes = lanes_of(app)
    keys = lanes[0].settings.keys
    asked = Registering(name="h1", concurrency=1, tasks=["shop.pay"])

    async def lost(*call: Any) -> Any:
        await enlist(*call)
        raise NoReply("timed out")

    async def still_here() -> bool:
        pytest.fail("it waits for the end of a lease")

    async def register() -> str:
        site: Any = SimpleNamespace(
            app=app, redis=bridge_of(app).async_client, stopping=asyncio.Event(), settings=bridge_of(app).settings
        )
        registry = Registry(site, incarnations=SimpleNamespace(add=lambda _one: None))  # type: ignore[arg-type]
        with patch.object(module, "enlist", lost), pytest.raises(NoReply):
            await registry.register(asked, lanes, still_here)
        assert not [key async for key in (await site.redis()).scan_iter(match=keys.lease("*"))]
        # The consumer calls again
        return (await registry.register(asked, lanes, still_here)).id

    incarnation = asyncio.run(register())
    with valkey.client() as redis:
        assert list(redis.scan_iter(match=keys.lease("*"))) == [keys.lease(incarnation).encode()]
