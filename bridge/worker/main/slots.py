"""How many messages a worker takes at once (its slots): the size of its pool, which may grow and shrink.

With ``--autoscale`` it is the largest size: Celery grows the pool by the number of messages that have arrived, so
enough messages must arrive to fill it. For a pool that was shrunk to nothing it is 0. Then the leader sends nothing,
and the worker gives back what it has, until the pool grows.

A pool process that hangs while it starts is not a slot. Celery does not look at the processes that a pool starts
with. So without this a worker would look healthy, and hold messages that no process takes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from celery.utils.log import get_logger

from bridge.routing.errors import ConfigurationError
from bridge.worker.guard.shared_page import ROWS

logger = get_logger(__name__)


class Slots:
    """How many messages the pool of a worker takes now.

    - ``consumer`` is Celery's, and ``name`` the worker's.
    - ``patience`` is how many looks (`look_at_starts`) a process may take to start. After that it hangs.
    - ``begun`` returns how many messages have begun in the pool's processes.

    Raises `ConfigurationError` for a pool with more slots than the bridge can run.
    """

    def __init__(self, consumer: Any, name: str, patience: int, begun: Callable[[], int]) -> None:
        self._consumer = consumer
        self._name = name
        self._patience = patience
        self._begun = begun
        #: Pid of a process that is not ready -> how many looks have found it so.
        self._starting: dict[int, int] = {}
        #: How many looks have found no process ready and no message begun since the look before.
        self._standing = 0
        self._last_begun = 0
        #: How many processes hang.
        self._hanging = 0
        if self._size() > ROWS:
            raise ConfigurationError(f"the bridge runs at most {ROWS} messages at once; start {name} with -c {ROWS}")

    def __call__(self) -> int:
        return min(ROWS, max(0, self._size() - self._hanging))

    def _size(self) -> int:
        scaler = getattr(self._consumer.controller, "autoscaler", None)
        if scaler is not None:
            size = scaler.max_concurrency
        else:
            pool = self._consumer.pool
            # Celery 5.6 counts the greenlets that run. gevent and eventlet know how many may run.
            size = getattr(getattr(pool, "_pool", None), "size", pool.num_processes)
        return 1 if size is None else max(0, int(size))

    def look_at_starts(self) -> None:
        """Looks which processes hang. Called every second on Celery's own thread, which learns that they are ready.

        So looks are counted, not seconds: while that thread is stopped, no process counts as hanging.
        """
        pool: Any = getattr(self._consumer.pool, "_pool", None)
        ready: Any = getattr(pool, "_all_inqueues", None)
        if ready is None:
            # Only Celery's pool of processes on an event loop tells which of them are ready.
            return
        starting = [process.pid for process in pool._pool if process.inqW_fd not in ready]
        self._starting = {pid: self._starting.get(pid, 0) + 1 for pid in starting}
        # Celery ends a process that was started later and hangs, and starts the next one. This looks the same as a
        # pool whose processes end after each message, but there messages begin.
        begun = self._begun()
        stands = bool(starting) and len(starting) == len(pool._pool) and begun == self._last_begun
        self._standing = self._standing + 1 if stands else 0
        self._last_begun = begun
        if self._standing > self._patience:
            hanging = len(starting)
        else:
            hanging = sum(looks > self._patience for looks in self._starting.values())
        if hanging > self._hanging:
            logger.error(
                "%d of %d pool processes of %s have not started for %d s, and take no messages; look at what the app "
                "does when a pool process starts (worker_process_init)",
                hanging,
                len(pool._pool),
                self._name,
                self._patience,
            )
        elif self._hanging and not hanging:
            logger.warning("all pool processes of %s have started", self._name)
        self._hanging = hanging
