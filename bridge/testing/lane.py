"""A whole lane in the process of a test: a server, a master and a worker, each on a thread or as a child of its own.

The tasks run in this process, on a pool of threads, so a test may replace what they call. The app is pointed at the
server until the lane ends, and then restored.
"""

from __future__ import annotations

import threading
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self

from redis import Redis

from bridge.app.installed import bridge_of
from bridge.link.connections import client
from bridge.master.process import Master
from bridge.stack.embedded import EmbeddedServer
from bridge.testing.due import make_due
from bridge.testing.lane_worker import worker_on_thread
from bridge.testing.outcome import app_lanes_here, dead_letters, lanes_here, wait_until_done
from bridge.testing.pointing import pointed_at


class Lane:
    """A context manager; ``url`` names a server, else one is started (the extra ``embedded``).

    ``concurrency``: tickets that are handled at once. Starting takes about a second. Then ``url`` is its server's.
    """

    def __init__(self, app: Any, *, url: str | None = None, concurrency: int = 2) -> None:
        self.app = app
        bridge_of(app)
        self._url = url
        self._concurrency = concurrency
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            url = self._url or stack.enter_context(EmbeddedServer(append_only=False)).url
            self.url = url
            stack.enter_context(pointed_at(self.app, url))
            self.redis: Redis = stack.enter_context(client(url))
            self._lead(stack)
            stack.enter_context(worker_on_thread(self.app, self._concurrency))
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()

    def wait(self, timeout_s: float = 30.0) -> None:
        """Waits until every message that was pushed is done or dead. Raises `TimeoutError`, which says what is not."""
        wait_until_done(self.redis, lanes_here(self.app, self.redis), timeout_s)

    def make_due(self, timeout_s: float = 30.0) -> int:
        """Makes every delayed message that was pushed due now. Returns how many there were.

        Raises `TimeoutError` when the master does not read what was pushed, and `OrderFailed`.
        """
        return make_due(self.redis, app_lanes_here(self.app, self.redis), timeout_s)

    def dead_letters(self) -> list[dict[str, str]]:
        """The messages that were given up, oldest first, with the fields of their letters."""
        return dead_letters(self.redis, lanes_here(self.app, self.redis))

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
