"""A whole lane in the process of a test: a server, a master and a worker, each on a thread or as a child of its own.

The tasks run in this process, on a pool of threads, so a test may replace what they call. The app is pointed at the
server for as long as the lane is there, and set back after it.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from contextlib import ExitStack, suppress
from types import TracebackType
from typing import Any, Self

from celery.contrib.testing.worker import start_worker
from redis import Redis

from bridge.app.installed import bridge_of
from bridge.link.connections import client
from bridge.master.process import Master
from bridge.stack.embedded import EmbeddedServer

#: Seconds between two looks at the lane.
LANE_CHECK_S = 0.02
#: What of an app's settings the lane replaces.
REPLACED = ("broker_url", "result_backend", "task_always_eager", "broker_read_url", "broker_write_url")


class Lane:
    """A context manager; ``url`` names a server, else one is started (the extra ``embedded``).

    ``concurrency``: tickets that are handled at once. Starting takes about a second.
    """

    def __init__(self, app: Any, *, url: str | None = None, concurrency: int = 2) -> None:
        self.app = app
        self._bridge = bridge_of(app)
        self._url = url
        self._concurrency = concurrency
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            url = self._url or stack.enter_context(EmbeddedServer(append_only=False)).url
            self._point_at(url, stack)
            self.redis: Redis = stack.enter_context(client(url))
            self._lead(stack)
            # Celery's starter asks for the level of its own log.
            level = logging.getLogger().getEffectiveLevel() or logging.WARNING
            name = f"test-{uuid.uuid4().hex[:8]}@localhost"
            stack.enter_context(
                start_worker(
                    self.app,
                    pool="threads",
                    concurrency=self._concurrency,
                    loglevel=level,
                    hostname=name,
                    perform_ping_check=False,
                    shutdown_timeout=30,
                )
            )
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()

    def wait(self, timeout_s: float = 30.0) -> None:
        """Waits until every message that was pushed is done or dead. Raises `TimeoutError`, which says what is not."""
        end = time.monotonic() + timeout_s
        while (left := self._undone()) is not None:
            if time.monotonic() > end:
                raise TimeoutError(f"after {timeout_s:g} s the lane has {left}")
            time.sleep(LANE_CHECK_S)

    def dead_letters(self) -> list[dict[str, str]]:
        """The messages that were given up, oldest first, with the fields of their letters."""
        found: Any = self.redis.xrange(self._bridge.settings.lane.keys.dead)
        return [
            {name.decode(): value.decode(errors="backslashreplace") for name, value in fields.items()}
            for _, fields in found
        ]

    def _undone(self) -> str | None:
        settings = self._bridge.settings.lane
        if not self.redis.exists(settings.stream):
            return None
        stream: Any = self.redis.xinfo_stream(settings.stream)
        groups: Any = {one["name"]: one for one in self.redis.xinfo_groups(settings.stream)}
        group = groups.get(settings.group.encode())
        if group is None:
            return "no group yet"
        if group["last-delivered-id"] != stream["last-generated-id"] and stream["length"]:
            last: Any = self.redis.xrevrange(settings.stream, count=1)
            if _key(last[0][0]) > _key(group["last-delivered-id"]):
                return "messages that were not read"
        return f"{group['pending']} pending messages" if group["pending"] else None

    def _lead(self, stack: ExitStack) -> None:
        leading = threading.Event()
        master = Master(self.app, announce=lambda line: leading.set() if "leading" in line else None)
        thread = threading.Thread(target=master.run, name="bridge-master", daemon=True)
        thread.start()

        def end() -> None:
            master.stop()
            thread.join(30)

        stack.callback(end)
        if not leading.wait(30):
            raise TimeoutError("the master did not come to lead within 30 s")

    def _point_at(self, url: str, stack: ExitStack) -> None:
        conf = self.app.conf
        before = {name: conf.get(name) for name in REPLACED}

        def put(values: dict[str, Any]) -> None:
            conf.update(values)
            # What was made for the other server.
            self.app._pool = self.app.amqp._producer_pool = None
            self.app._backend_cache = None
            with suppress(AttributeError):
                del self.app._local.backend
            for name in ("settings", "client", "eager"):
                vars(self._bridge).pop(name, None)

        stack.callback(put, before)
        put({**dict.fromkeys(REPLACED, url), "task_always_eager": False})


def _key(id_: bytes) -> tuple[int, int]:
    ms, _, sequence = id_.partition(b"-")
    return int(ms), int(sequence)
