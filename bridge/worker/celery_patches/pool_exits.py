"""Makes Celery notice within a few milliseconds that a pool process has ended.

The kernel closes the files of a process that ends before the process can be reaped. So Celery (5.7) is often told of
the end too early: the sentinel closes, Celery looks once, and the process is still there. It looks again only at its
timer, every 5 s. Until then the message that ran is not charged, its ticket waits, and no new process takes the place
of the old one. Plain Celery has the same delay.
"""

from __future__ import annotations

from typing import Any

#: Seconds until the second look. Each wait is twice as long as the one before: an end is noticed at most about twice as
#: late as it could be, and a process that lives on without its sentinel (a task closed all files) costs few looks.
FIRST_S = 0.002
#: The longest wait. After it Celery's own timer is as early.
LONGEST_S = 2.0


def notice_exits_soon() -> None:
    """Makes Celery's pool of processes look again after the sentinel of a process has closed. May be called twice."""
    from celery.concurrency.asynpool import AsynPool

    sentinel_closed = AsynPool._event_process_exit
    if getattr(sentinel_closed, "of_ticket_bridge", False):
        return

    def look_and_look_again(pool: Any, hub: Any, process: Any) -> None:
        sentinel_closed(pool, hub, process)
        _look_again(pool, hub, process, FIRST_S)

    look_and_look_again.of_ticket_bridge = True  # type: ignore[attr-defined]
    AsynPool._event_process_exit = look_and_look_again


def _look_again(pool: Any, hub: Any, process: Any, wait_s: float) -> None:
    if wait_s <= LONGEST_S and process in pool._pool:
        hub.call_later(wait_s, _look, pool, hub, process, wait_s)


def _look(pool: Any, hub: Any, process: Any, waited_s: float) -> None:
    if process not in pool._pool:
        return
    # Asks the kernel, and reaps the process if it has ended.
    if process.exitcode is not None:
        pool.maintain_pool()
    _look_again(pool, hub, process, 2 * waited_s)
