"""Keeps Celery reading what pool processes say until they have ended, when a worker stops.

When its consumer closes, Celery (5.7) forgets every task that no process was heard to have begun, as if it were in
nobody's hands. But one that was written to a process is begun there, or given back, and the process says so; and when
Celery knows of no other, it reads no more of that. The process then waits for its last words to be read, for 30 s, and
the worker with it. So what was written to a process that lives stays known until that process has answered.

On a lost connection, where Celery does the same and the worker goes on, nothing is changed.
"""

from __future__ import annotations

from typing import Any


def keep_unanswered_jobs(consumer: Any) -> None:
    """Makes ``consumer`` (Celery's) keep, when it closes for good, what its pool's processes still have to answer.

    Pools without processes have nothing of the kind, and stay as they are.
    """
    on_close = consumer.blueprint.on_close

    def close() -> None:
        # Celery has no public names for what a pool is waiting for, and whom it gave it to.
        known = getattr(getattr(consumer.pool, "_pool", None), "_cache", {})
        written = {number: job for number, job in known.items() if getattr(job, "_write_to", None) is not None}
        on_close()
        known.update((number, job) for number, job in written.items() if not job.ready() and job._write_to._is_alive())

    consumer.blueprint.on_close = close
