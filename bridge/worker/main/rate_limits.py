"""Rate limits that an operator sets while the worker runs (``app.control.rate_limit``).

Messages of a task with a rate limit travel alone, and Celery's bucket lets one after another into the pool. The leader
reads in the registration which tasks have one. So after the command it knows of the new limit only a few seconds later,
and sends bundles until then. The worker starts none of these. It keeps them until the next renewal of its lease, and
then gives them back. If it did so earlier, the leader, which does not know the limit yet, would send them again.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from bridge.protocol.headers import readable_runs

if TYPE_CHECKING:
    from collections.abc import Callable

#: Bundles are kept back for so many leases after the command. A leader of an older version never learns of the limit.
LEASES = 3


def new_limits_of(consumer: Any, lease_s: float) -> NewLimits:
    """The new limits of the worker that has ``consumer`` (Celery's). They outlast a lost connection."""
    found: NewLimits | None = getattr(consumer, "bridge_new_limits", None)
    if found is None:
        found = consumer.bridge_new_limits = NewLimits(consumer, lease_s)
    return found


class NewLimits:
    """The tasks of a worker that got a limit lately. ``consumer``: Celery's."""

    def __init__(self, consumer: Any, lease_s: float) -> None:
        self._consumer = consumer
        self._lease_s = lease_s
        self._limited = self._limited_now()
        self._tasks = frozenset[str]()
        self._until = 0.0
        reset: Callable[[], None] = consumer.reset_rate_limits

        def reset_and_look() -> None:
            reset()
            self._look()

        # Celery's command calls it when the new limit is set.
        consumer.reset_rate_limits = reset_and_look

    def _limited_now(self) -> frozenset[str]:
        return frozenset(name for name, bucket in self._consumer.task_buckets.items() if bucket)

    def _look(self) -> None:
        before, self._limited = self._limited, self._limited_now()
        self._tasks = (self._tasks | (self._limited - before)) & self._limited
        self._until = time.monotonic() + LEASES * self._lease_s

    def keep_back(self, body: str | bytes) -> bool:
        """Whether the bundle with ``body`` must not start: it has a message of a task that got a limit lately."""
        # Nearly always there is no such task, and then no bundle is looked into.
        if not self._tasks:
            return False
        if time.monotonic() > self._until:
            self._tasks = frozenset()
            return False
        return any(name in self._tasks for run in readable_runs(body, None) for _, name, _ in run.messages)
