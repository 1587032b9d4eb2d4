"""How a worker stops itself: nothing runs on when the lease that it was dispatched under is over.

Whoever still can does it: the main process when it notices, each pool child by a thread of its own (also while the main
process is frozen), and the watcher from outside (also while a task holds Python's lock, or a child is frozen). Only
pool children are killed: where the main process runs the tasks itself, nobody is, and the fence is the guard.
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
    from bridge.worker.guard.shared_page import Shared


def kill_overdue(shared: Shared) -> list[int]:
    """Kills the pool children that run something although the lease is over; which ones."""
    main, _ = shared.main
    return [row.pid for row in shared.overdue() if row.pid != main and kill(row.pid, row.started)]


def wait_s(shared: Shared, lease_s: float) -> float:
    """How long whoever watches the deadline may sleep."""
    left = shared.left_s
    if left > 0:
        # Sleep does not count the time that the machine is suspended: so never for all of it.
        return min(left, lease_s / 2)
    # Past it: a lease that is renewed late may end again soon.
    return max(0.02, lease_s * MARGIN / 2)


def watch_own_deadline(shared: Shared, lease_s: float) -> None:
    """Starts the thread by which a pool child ends itself when it runs something past the deadline."""

    def watch() -> None:
        own = os.getpid()
        while True:
            time.sleep(wait_s(shared, lease_s))
            if shared.left_s <= 0 and any(row.pid == own for row in shared.overdue()):
                os.kill(own, signal.SIGKILL)

    threading.Thread(target=watch, name="bridge-deadline", daemon=True).start()
