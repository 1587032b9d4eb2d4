"""Makes Celery read the last results of its pool processes when a worker stops.

When its consumer closes, Celery (5.7) forgets every task that no pool process has accepted yet. But such a task may
already be in the pipe of a process. That process will run it or give it back, and will report so. If Celery knows of no
other task, it does not read that report. Then the process waits 30 s for a reader, and the worker waits with it. So
this module makes Celery remember each task that was written to a living process, until that process has answered.

Celery does the same when it loses its connection and the worker goes on. There nothing is changed.
"""

from __future__ import annotations

from typing import Any


def keep_unanswered_jobs(consumer: Any) -> None:
    """Makes ``consumer`` (Celery's) keep the jobs that its pool processes still have to answer, when it closes.

    Pools without processes have no such jobs. They are not changed.
    """
    on_close = consumer.blueprint.on_close

    def close() -> None:
        # Celery has no public names for the jobs of a pool, and for the process that has a job.
        known = getattr(getattr(consumer.pool, "_pool", None), "_cache", {})
        written = {number: job for number, job in known.items() if getattr(job, "_write_to", None) is not None}
        on_close()
        known.update((number, job) for number, job in written.items() if not job.ready() and job._write_to._is_alive())

    consumer.blueprint.on_close = close
