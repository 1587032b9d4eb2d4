"""A connection costs no read of package metadata, and the server still learns which client it has."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import redis.utils

from bridge.routing.async_connection import async_client
from bridge.routing.connection import client
from bridge.stack.embedded import EmbeddedServer

URLS = [
    "redis://127.0.0.1:1/0",
    "rediss://127.0.0.1:1/0?ssl_cert_reqs=none",
    "unix:///none.sock?db=0",
    "sentinel://127.0.0.1:1/0?master_name=one",
]


def objects(made: Any, url: str) -> None:
    """Makes the connection objects that a use of the client ``made`` would make. Opens none."""
    pool = made.connection_pool
    pool.make_connection()
    if url.startswith("sentinel:"):
        pool.sentinel_manager.sentinels[0].connection_pool.make_connection()


async def objects_of_async(url: str) -> None:
    objects(async_client(url), url)


KINDS: dict[str, Callable[[str], None]] = {
    "client": lambda url: objects(client(url), url),
    "async client": lambda url: asyncio.run(objects_of_async(url)),
}


@pytest.mark.parametrize("url", URLS, ids=lambda url: url.partition(":")[0])
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_no_connection_reads_package_metadata(
    url: str, kind: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def read() -> str:
        raise AssertionError("package metadata was read")

    monkeypatch.setattr(redis.utils, "get_lib_version", read)
    kind(url)


@pytest.mark.filterwarnings("ignore:.*deprecated usage of input argument:DeprecationWarning")
def test_the_server_learns_the_client(server: EmbeddedServer) -> None:
    for query, name in (("", "redis-py"), ("?lib_name=shop", "shop")):
        with client(server.url + query) as made:
            info = made.client_info()
            assert info.get("lib-name", name) == name
            assert info.get("lib-ver", redis.__version__) == redis.__version__
