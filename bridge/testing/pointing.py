"""Points an app at another server for a block, then restores it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from bridge.app.installed import bridge_of

#: What of an app's settings is replaced.
REPLACED = ("broker_url", "result_backend", "task_always_eager", "broker_read_url", "broker_write_url")


@contextmanager
def pointed_at(app: Any, url: str) -> Iterator[None]:
    """``app`` sends to the server at ``url`` and reads results from it, for as long as the block."""
    bridge = bridge_of(app)
    conf = app.conf
    before = {name: conf.get(name) for name in REPLACED}

    def put(values: dict[str, Any]) -> None:
        conf.update(values)
        # Drops the clients of the old server.
        app._pool = app.amqp._producer_pool = None
        app._backend_cache = None
        with suppress(AttributeError):
            del app._local.backend
        for name in ("settings", "layout", "client", "eager"):
            vars(bridge).pop(name, None)

    put({**dict.fromkeys(REPLACED, url), "task_always_eager": False})
    try:
        yield
    finally:
        put(before)
