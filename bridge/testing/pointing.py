"""Points an app at another server for a block, then restores it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from bridge.app.installed import bridge_of
from bridge.settings.app import NAMES
from bridge.settings.config_keys import given_settings

#: The addresses in an app's settings, which are replaced.
ADDRESSES = ("broker_url", "result_backend", "broker_read_url", "broker_write_url")
#: Variables that Celery reads before these settings.
VARIABLES = ("CELERY_BROKER_URL", "CELERY_RESULT_BACKEND", "CELERY_BROKER_READ_URL", "CELERY_BROKER_WRITE_URL")
#: TLS of the old server, which is replaced if the new one speaks plain text.
TLS = ("broker_use_ssl", "redis_backend_use_ssl")
#: URLs of servers that may need it.
_SECURE = ("rediss:", "sentinel:")


@contextmanager
def pointed_at(app: Any, url: str) -> Iterator[None]:
    """``app`` sends to the server at ``url`` and reads results from it, for as long as the block."""
    bridge = bridge_of(app)
    conf = app.conf
    meanwhile: dict[str, Any] = {**dict.fromkeys(ADDRESSES, url), "task_always_eager": False}
    if not url.startswith(_SECURE):
        meanwhile |= dict.fromkeys(TLS)
    before = {name: conf.get(name) for name in meanwhile}
    if own := given_settings(app, NAMES).get("redis_url"):
        # It is the broker's, so the new broker's URL says it.
        meanwhile["bridge_redis_url"], before["bridge_redis_url"] = "", own[1]

    prefix = vars(conf).get("prefix") or ""

    def namespaced(name: str) -> str:
        return prefix + (name if prefix.islower() else name.upper())

    def put(values: dict[str, Any]) -> None:
        conf.update(values)
        # Drops the clients of the old server.
        app._pool = app.amqp._producer_pool = None
        app._backend_cache = None
        with suppress(AttributeError):
            del app._local.backend
        for name in ("settings", "layout", "knows_layout", "retired", "client"):
            vars(bridge).pop(name, None)

    variables = {name: os.environ.pop(name) for name in VARIABLES if name in os.environ}
    # With a namespace, Celery 5.6 reads the name that has it before all changes by the short name.
    long = {namespaced(name): value for name, value in meanwhile.items()} if prefix else {}
    changed = {name: conf.changes[name] for name in long if name in conf.changes}
    put({**meanwhile, **long})
    # Those of the old server, by their event loops.
    clients = bridge.exchange_async_clients({})
    try:
        yield
    finally:
        os.environ.update(variables)
        for name in long:
            conf.changes.pop(name, None)
        put({**before, **changed})
        bridge.exchange_async_clients(clients)
