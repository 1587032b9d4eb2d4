"""The watcher: a small process beside each worker that gives notice when the worker died.

It is started by exec, in a session of its own, and has nothing of the worker but the reading end of a pipe and the
shared page. The worker's main process and every pool child hold the writing end from before they run anything; the
kernel closes it when the last of them is beyond running anything. Then the watcher

1. says nothing when the worker had said that it ends by itself, or never had a lease;
2. makes sure that the main process and every process of the page are gone: no such process, a zombie without living
   threads, or another start time. While one is not, it waits, until the lease is over: then the lease decides;
3. ends the lease in Redis, with the fences that were running (`died.lua`), unless it is over already; and says whether
   the worker was told to end at once, as by a third Ctrl-C while its threads ran: then nothing that ran is to blame.

So there is no notice while anything of the worker could still run. A process that a task forked without exec holds the
pipe too: then there is no notice as long as it lives, and the lease decides.

It sleeps otherwise, but for a look at the deadline when that comes: pool children that run past it are killed from
here, too, whatever keeps them and the main process from doing that themselves.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
from typing import Any

from redis.exceptions import RedisError

from bridge.link.connections import client
from bridge.routing.keys import LaneKeys
from bridge.routing.membership import died
from bridge.worker.guard.fencing import kill_overdue, wait_s
from bridge.worker.guard.processes import gone
from bridge.worker.guard.shared_page import Shared

#: What the worker writes into the pipe when it ends by itself.
ENDS_BY_ITSELF = b"F"

#: Seconds between two looks at processes that are not gone yet: at first, and at most.
EXIT_CHECK_S = (0.0005, 0.05)
#: Seconds between two tries to reach the server, and for each.
RETRY_S = 0.05
TIMEOUT_S = 1.0


def watch(pipe: int, shared: Shared, config: dict[str, Any]) -> None:
    """Returns when the worker has ended and everything is said."""
    # Made now, connected later: nothing is left to be loaded when it matters.
    redis = client(config["url"], timeout_s=TIMEOUT_S)
    keys = LaneKeys(config["stream"], config["group"])
    if not _ended_alone(pipe, shared, config["lease"]):
        return
    incarnation = shared.incarnation
    if not incarnation or not _all_gone(shared):
        return
    ran = sorted(shared.running_fences())
    while shared.left_s > 0:
        try:
            died(redis, keys, config["name"], incarnation, ran, asked=shared.ends_now)
            return
        except (RedisError, OSError):
            # Whatever it is: while the lease holds, a notice is better than none, and after that it is not needed.
            time.sleep(RETRY_S)


def _ended_alone(pipe: int, shared: Shared, lease_s: float) -> bool:
    """Waits for the end of the worker; whether it came without a farewell."""
    poll = select.poll()
    poll.register(pipe, select.POLLIN)
    while True:
        if poll.poll(1000 * (wait_s(shared, lease_s) if shared.incarnation else lease_s / 2)):
            return os.read(pipe, 1) != ENDS_BY_ITSELF
        if shared.left_s <= 0:
            kill_overdue(shared)
            if gone(*shared.main):
                # Something of it holds the pipe, but nobody waits for a notice any more.
                return False


def _all_gone(shared: Shared) -> bool:
    """Waits until every process of the worker is gone; False when the lease is over before."""
    processes = {shared.main, *((row.pid, row.started) for row in shared.rows())}
    pause, longest = EXIT_CHECK_S
    while processes := {(pid, started) for pid, started in processes if not gone(pid, started)}:
        if shared.left_s <= 0:
            return False
        time.sleep(pause)
        pause = min(2 * pause, longest)
    return True


def main() -> None:
    """What ``python -m bridge.worker.guard.watcher NAME`` does; the rest comes as a line of JSON."""
    # A supervisor that ends the worker may signal everything that belongs to it; the watcher ends when the worker has.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    config = json.loads(sys.stdin.readline())
    watch(config["pipe"], Shared.attach(config["page"]), config)


if __name__ == "__main__":
    main()
