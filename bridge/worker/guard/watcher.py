"""The watcher: a small process beside each worker. It writes a death notice when the worker died.

The watcher is started by exec, in a session of its own. It gets two things from the worker: the reading end of a pipe
and the shared page. The worker's main process and all its pool children hold the writing end of the pipe. The kernel
closes it when the last of these processes has ended. The main process ends first, and its pool processes some
milliseconds later. In between, the watcher connects to the server. When the pipe is closed, it does three steps:

1. It ends without a notice if the worker announced its own end through the pipe, or never had a lease.
2. It makes sure that the main process and every process of the page are gone: there is no such process, or it is a
   zombie without living threads, or the pid has another start time. It waits until they are. If the lease is over
   before, it gives no notice, and the lease decides.
3. It ends the lease in Redis (`died.lua`), unless the lease is over already. The notice names the fences that were
   running, so that only these messages are charged with an attempt, and says how many of other lanes ran beside them.
   It also says whether the worker was in a cold shutdown (as by a third Ctrl-C while its threads ran): then no message
   is charged.

So there is no notice while any process of the worker could still run a task. A process that a task forked without exec
also holds the pipe. While that process lives there is no notice, and the lease decides.

While the worker lives, the watcher sleeps until the deadline of the lease. Then it kills pool children that run past
the deadline, in case neither they nor the main process can do that.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from redis.exceptions import RedisError

from bridge.link.connections import client
from bridge.routing.keys import LaneKeys
from bridge.routing.membership import died
from bridge.worker.guard.fencing import kill_overdue, wait_s
from bridge.worker.guard.processes import gone, handle_of
from bridge.worker.guard.shared_page import SharedPage

#: The worker writes this into the pipe to announce that it ends by itself.
ANNOUNCED_END = b"F"

#: Seconds between two checks of processes that are not gone yet: the first pause, and the longest.
EXIT_CHECK_S = (0.0005, 0.05)
#: Seconds between two tries to reach the server, and the timeout of one try.
RETRY_S = 0.05
TIMEOUT_S = 1.0


class WatchedConfig(NamedTuple):
    """One lane in a `WatcherConfig`."""

    #: File descriptor of the shared page.
    page: int
    stream: str
    group: str
    #: In seconds.
    lease: float


class WatcherConfig(NamedTuple):
    """What a worker tells its watcher: one line of JSON."""

    #: File descriptor of the reading end of the pipe.
    pipe: int
    url: str
    #: Of the consumer.
    name: str
    lanes: Sequence[WatchedConfig]

    def text(self) -> bytes:
        """The line."""
        lanes = [lane._asdict() for lane in self.lanes]
        return json.dumps({**self._asdict(), "lanes": lanes}).encode() + b"\n"

    @classmethod
    def read(cls, line: str) -> WatcherConfig:
        """The configuration in ``line``."""
        found = json.loads(line)
        return cls(**{**found, "lanes": [WatchedConfig(**lane) for lane in found["lanes"]]})


class Watched(NamedTuple):
    """A lane in which the worker has a lease."""

    keys: LaneKeys
    shared: SharedPage
    #: Length of the lease.
    lease_s: float

    @property
    def wait_s(self) -> float:
        """Seconds until the next look at the lease."""
        return wait_s(self.shared, self.lease_s) if self.shared.incarnation else self.lease_s / 2


def watch(pipe: int, url: str, name: str, lanes: Sequence[Watched]) -> None:
    """Waits for the end of the worker ``name``, and writes the death notice in each of ``lanes`` that needs one."""
    # The client is made now and connects later: so no module has to be loaded when the worker is dead.
    redis = client(url, timeout_s=TIMEOUT_S)
    if not _worker_died(pipe, lanes, partial(_begin_to_connect, redis)):
        return
    for keys, shared, _ in lanes:
        incarnation = shared.incarnation
        if not incarnation or not _all_gone(shared):
            continue
        ran = sorted(shared.running_fences())
        # All processes of the worker are gone, in the other lanes too.
        beside = sum(len(other.shared.running_fences()) for other in lanes if other.shared is not shared)
        while shared.left_s > 0:
            try:
                died(redis, keys, name, incarnation, ran, asked=shared.ends_now, beside=beside)
                break
            except (RedisError, OSError):
                # Try again whatever the error is. After the end of the lease the notice is not needed any more.
                time.sleep(RETRY_S)


def _begin_to_connect(redis: Any) -> None:
    """Opens a connection, in a thread: this process must go on to watch. It fails in silence: the notice tries again.

    The death notice needs it soon. Before the worker's end it would be one more open connection for each worker.
    """

    def connect() -> None:
        pool = redis.connection_pool
        with suppress(RedisError, OSError):
            pool.release(pool.get_connection())

    threading.Thread(target=connect, name="bridge-watcher-connects", daemon=True).start()


def _worker_died(pipe: int, lanes: Sequence[Watched], main_ended: Callable[[], None]) -> bool:
    """Waits for the end of the worker. Returns whether the worker ended without announcing it.

    Calls ``main_ended`` when its main process has ended, and others may still hold the pipe. It may never call it.
    """
    poll = select.poll()
    poll.register(pipe, select.POLLIN)
    main = lanes[0].shared.main
    held = handle_of(*main)
    if held is not None:
        poll.register(held, select.POLLIN)
    while True:
        ready = dict(poll.poll(1000 * min(lane.wait_s for lane in lanes)))
        if pipe in ready:
            return os.read(pipe, 1) != ANNOUNCED_END
        if held is not None and held in ready:
            poll.unregister(held)
            os.close(held)
            held = None
            main_ended()
        over = [lane.shared for lane in lanes if lane.shared.left_s <= 0]
        for shared in over:
            kill_overdue(shared)
        if len(over) == len(lanes) and gone(*main):
            # Another process still holds the pipe. But all leases are over, so no notice is needed.
            return False


def _all_gone(shared: SharedPage) -> bool:
    """Waits until every process of the worker is gone. False: the lease was over before that."""
    processes = {shared.main, *((row.pid, row.started) for row in shared.rows())}
    pause, longest = EXIT_CHECK_S
    while processes := {(pid, started) for pid, started in processes if not gone(pid, started)}:
        if shared.left_s <= 0:
            return False
        time.sleep(pause)
        pause = min(2 * pause, longest)
    return True


def main() -> None:
    """The program ``python -m bridge.worker.guard.watcher NAME``. It reads its configuration from stdin, as JSON."""
    # A supervisor may send its signals to all processes of the worker. The watcher must outlive the worker.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    config = WatcherConfig.read(sys.stdin.readline())
    lanes = [Watched(LaneKeys(one.stream, one.group), SharedPage.attach(one.page), one.lease) for one in config.lanes]
    watch(config.pipe, config.url, config.name, lanes)


if __name__ == "__main__":
    main()
