"""How a worker ends that was told to end at once: what Celery calls a cold shutdown (SIGQUIT, a second Ctrl-C).

Celery first waits for ``worker_soft_shutdown_timeout``, then ends what runs, and tells its signals only after that. So
the bridge looks in where it begins: what has not begun goes back at once, and the leader sends nothing more. What runs
has the time of a soft shutdown, and comes again if it is cut off: uncharged, since it did nothing wrong.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bridge.worker.main.member import Member


def hook_cold_shutdown(worker: Any, member: Member) -> None:
    """Makes ``worker`` (Celery's) tell ``member`` when a cold shutdown begins, and when it is over."""
    wait_for_soft_shutdown = worker.wait_for_soft_shutdown
    terminate = worker.terminate

    def tell_and_wait() -> None:
        member.shared.end_now()
        member.begin_shutdown()
        member.forced_end.start()
        wait_for_soft_shutdown()

    def terminate_and_stop(in_sighandler: bool = False) -> None:
        member.shared.end_now()
        terminate(in_sighandler)
        # Celery says that a worker has ended (`worker_shutdown`) only when nobody hurried it.
        member.stop()

    worker.wait_for_soft_shutdown = tell_and_wait
    worker.terminate = terminate_and_stop
