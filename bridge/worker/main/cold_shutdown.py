"""Cold shutdown: Celery's name for a worker that must end at once (SIGQUIT, a second Ctrl-C).

Celery first waits for ``worker_soft_shutdown_timeout``, then ends the running tasks. It sends its signals only after
that, which is too late. So the bridge hooks into the two methods of the worker:

- At the start, messages that have not started go back, and the leader sends nothing more.
- Running tasks have the time of the soft shutdown. A message that is cut off comes again. It is not charged with an
  attempt, since it is not to blame.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bridge.worker.main.members import Members


def hook_cold_shutdown(worker: Any, members: Members) -> None:
    """Makes ``worker`` (Celery's) call ``members`` at the start and at the end of a cold shutdown."""
    wait_for_soft_shutdown = worker.wait_for_soft_shutdown
    terminate = worker.terminate

    def tell_and_wait() -> None:
        members.end_now()
        members.begin_shutdown()
        members.forced_end.start()
        wait_for_soft_shutdown()

    def terminate_and_stop(in_sighandler: bool = False) -> None:
        members.end_now()
        terminate(in_sighandler)
        # Celery sends `worker_shutdown` only after a warm shutdown.
        members.stop()

    worker.wait_for_soft_shutdown = tell_and_wait
    worker.terminate = terminate_and_stop
