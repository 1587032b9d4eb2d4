"""How a worker ends that was told to end at once: what Celery calls a cold shutdown (SIGQUIT, a second Ctrl-C).

Celery first waits for ``worker_soft_shutdown_timeout``, then ends what runs, and tells its signals only after that. So
the bridge looks in where it begins: what has not begun goes back at once, and the leader sends nothing more. What runs
has the time of a soft shutdown, and comes again if it is cut off: uncharged, since it did nothing wrong.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from billiard.exceptions import Terminated
from celery.utils.log import get_logger

from bridge.outcomes import Kind
from bridge.worker.processes import gone, kill

if TYPE_CHECKING:
    from bridge.worker.member import Member

logger = get_logger(__name__)

#: Seconds between two looks at processes that are being ended.
LOOK_S = 0.002
#: Seconds that the kernel has to end a process that was killed.
PATIENCE_S = 2.0


def end_in_order(worker: Any, member: Member) -> None:
    """Makes ``worker`` (Celery's) tell ``member`` when a cold shutdown begins, and when it is over."""
    wait_for_soft_shutdown = worker.wait_for_soft_shutdown
    terminate = worker.terminate

    def tell_and_wait() -> None:
        member.shared.end_now()
        member.going()
        member.ending.start()
        wait_for_soft_shutdown()

    def terminate_and_stop(in_sighandler: bool = False) -> None:
        member.shared.end_now()
        terminate(in_sighandler)
        # Celery says that a worker has ended (`worker_shutdown`) only when nobody hurried it.
        member.stop()

    worker.wait_for_soft_shutdown = tell_and_wait
    worker.terminate = terminate_and_stop


def cut_off_the_rest(member: Member) -> bool:
    """Ends what still runs, and says so; False where that cannot be done for certain.

    It is called when Celery has ended its pool. Of pool processes nothing runs then, but what they were running when
    they were ended may not have been told yet. Greenlets may not have heard of their end. Threads cannot be ended.
    """
    shared = member.shared
    main, _ = shared.main
    deadline = time.monotonic() + PATIENCE_S
    if not member.forks:
        _end_greenlets(member, deadline)
    for row in list(shared.rows()):
        if not row.fence:
            continue
        if row.pid == main:
            return False
        kill(row.pid, row.started)
        while not gone(row.pid, row.started):
            if time.monotonic() > deadline:
                return False
            time.sleep(LOOK_S)
    for request in list(member.requests.values()):
        request.lost(Kind.INTERRUPTED, Terminated("the worker was told to end at once"))
    for thread in list(member.settling):
        thread.join(timeout=max(0.0, shared.left_s))
    return True


def _end_greenlets(member: Member, deadline: float) -> None:
    for request in list(member.requests.values()) if member.can_end else ():
        if request.worker_pid:
            member.pool.terminate_job(request.worker_pid)
    # Where there are greenlets, this lets them run.
    while member.can_end and member.shared.running_fences() and time.monotonic() < deadline:
        time.sleep(LOOK_S)
