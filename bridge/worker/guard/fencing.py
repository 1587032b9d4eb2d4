"""How a worker stops itself: no task runs on after the lease that it was dispatched under.

Three parties check the deadline and kill pool children that run past it. Each covers cases in which others cannot act:

- the main process, when it notices that the lease ended;
- a thread in each pool child, also while the main process is frozen;
- the watcher, also while a task holds Python's lock or a child is frozen.

Only pool children are killed. Where tasks run in the main process (threads, greenlets), no process is killed. There
only the fence guards: outcomes and effects of a stale fence are refused.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import TYPE_CHECKING

from bridge.consumer.deadline import MARGIN
from bridge.worker.guard.processes import kill

if TYPE_CHECKING:
    from bridge.worker.guard.shared_page import SharedPage


def kill_overdue(shared: SharedPage) -> list[int]:
    """Kills the pool children that run a message although its lease is over. Returns their pids."""
    main, _ = shared.main
    return [row.pid for row in shared.overdue() if row.pid != main and kill(row.pid, row.started)]


def wait_s(shared: SharedPage, lease_s: float) -> float:
    """How many seconds a thread that watches the deadline may sleep."""
    left = shared.left_s
    if left > 0:
        # Sleep does not count the time while the machine is suspended. So it never sleeps for the whole rest.
        return min(left, lease_s / 2)
    if shared.is_left:
        return lease_s / 2
    # The deadline has passed. A lease that is renewed late may end again soon, so look often.
    return max(0.02, lease_s * MARGIN / 2)


def watch_own_deadline(shared: SharedPage, lease_s: float) -> None:
    """Starts the thread by which a pool child kills itself when it runs a message past the deadline.

    It ends when the worker has left the lane.
    """

    def watch() -> None:
        own = os.getpid()
        while True:
            time.sleep(wait_s(shared, lease_s))
            if shared.left_s <= 0 and any(row.pid == own for row in shared.overdue()):
                os.kill(own, signal.SIGKILL)
            if shared.is_left:
                return

    threading.Thread(target=watch, name="bridge-deadline", daemon=True).start()
