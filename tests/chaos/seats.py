"""The processes of a chaos run. A seat is the name of a worker or master, over all its lives.

A seat is hit by faults and comes back by itself, looked after by `tick`, which never waits: so faults overlap.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time

import psutil

from bridge.consumer.http_consumer import LOST_STATUS
from bridge.testing.nodes.process import ProcessNode
from tests.chaos.facts import Freeze, Notes
from tests.chaos.ledger import now_ns
from tests.chaos.recording import WATCHER
from tests.integration.http.port_processes import port_processes

#: Seconds that a node which was asked to stop may take, before it is ended by force. Celery's pool processes may wait
#: up to 30 s for results that nobody reads after a lost connection.
STOP_PATIENCE_S = 45.0
#: What a process says that ends at its start since the server was away, or since a pool process was killed before
#: Celery had looked whether all had started.
GAVE_UP = ("cannot reach Redis", "Could not start worker processes")


class Seat:
    """One name, its node, and what is being done to it. ``kind``: "worker", "master" or "HTTP consumer"."""

    def __init__(self, node: ProcessNode, kind: str, pool: str, notes: Notes, *, culprits: bool = False) -> None:
        """``culprits``: tasks may kill the node, which is then no fault of its own."""
        self.node = node
        self.kind = kind
        self.pool = pool
        #: How many tasks it may run at once.
        self.slots = 2
        #: It shall not be started again.
        self.leaving = False
        #: Its own line to the server (`tests.chaos.link`), if it has one.
        self.line: ProcessNode | None = None
        self._cut_at_ns = 0
        self._mended_at = 0.0
        #: What it did of its own accord, and should not have.
        self.complaints: list[str] = []
        self._notes = notes
        self._culprits = culprits
        #: How often a task killed it.
        self.killed_by_tasks = 0
        self._back_at = 0.0
        self._stopping_since: float | None = None
        self._frozen: dict[int, int] = {}
        self._thaw_at = 0.0
        self._stopped_by_us = True  # nothing to complain about before its first start

    def __repr__(self) -> str:
        return f"{self.node.name()} ({self.pool or self.kind})"

    @property
    def idle(self) -> bool:
        """Whether nothing is being done to it: it runs, unfrozen, connected, and nobody asked it to stop."""
        return self.node.running and not self._frozen and not self._cut_at_ns and self._stopping_since is None

    @property
    def held(self) -> bool:
        """Whether it is frozen or cut off."""
        return bool(self._frozen or self._cut_at_ns)

    def start(self) -> None:
        """Its first life, or the next one."""
        self._stopped_by_us = False
        self._stopping_since = None
        self.node.start()

    def pool_processes(self) -> list[int]:
        """The processes that run tasks: the children of the main process but for its watcher."""
        found = []
        for child in self.node.children():
            with contextlib.suppress(psutil.NoSuchProcess):
                if WATCHER not in " ".join(child.cmdline()):
                    found.append(child.pid)
        return found

    # -- what is done to it ------------------------------------------------------------------------------------------

    def kill(self, back_in_s: float) -> None:
        """SIGKILL to the main process."""
        self._hit(back_in_s)
        self._send(signal.SIGKILL)
        self.node.wait()

    def kill_with_watcher(self, back_in_s: float) -> None:
        """SIGKILL to the watcher first, then to the main process: nobody can give notice of the death."""
        self._hit(back_in_s)
        for process in self.node.survivors():
            with contextlib.suppress(psutil.NoSuchProcess):
                if WATCHER in " ".join(process.cmdline()):
                    process.kill()
        self._send(signal.SIGKILL)
        self.node.wait()

    def vanish(self, back_in_s: float) -> None:
        """SIGKILL to everything of it at once."""
        self._hit(back_in_s)
        self.node.vanish()

    def stop(self, back_in_s: float) -> None:
        """SIGTERM to the main process; how long it takes is its own business."""
        self._stopped_by_us = True
        self._back_at = time.monotonic() + back_in_s
        self._stopping_since = time.monotonic()
        self._send(signal.SIGTERM)

    def retire(self) -> None:
        """Ends it in order if it is idle, else by force: what it does now counts no more. It comes back at once."""
        if self.idle:
            self.stop(0)
        elif self.node.running:
            self.kill(0)

    def _send(self, number: signal.Signals) -> None:
        """A signal to the main process. The message that it runs may have ended it in this moment."""
        assert self.node.pid is not None
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.node.pid, number)

    def kill_pool_process(self, pid: int) -> None:
        """SIGKILL to one pool process."""
        self._notes.kills += 1
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    def freeze(self, pids: list[int], for_s: float) -> None:
        """SIGSTOP to some of its processes; `tick` wakes them up again."""
        self._thaw_at = time.monotonic() + for_s
        for pid in pids:
            self._frozen[pid] = now_ns()
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)

    def freeze_all(self, for_s: float) -> None:
        """SIGSTOP to a program of one process."""
        assert self.node.pid is not None
        self.freeze([self.node.pid], for_s)

    def kill_port(self, which: float) -> bool:
        """SIGKILL to the keeper of a master's port, to the process that serves, or to both. Whether they were there."""
        found = port_processes(self.node)
        if found is None:
            return False
        struck = [[found.keeper], [found.serving], [found.keeper, found.serving]][int(3 * which)]
        for process in struck:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        return True

    def cut_off(self, for_s: float) -> None:
        """Its line to the server carries nothing for a while; `tick` mends it."""
        assert self.line is not None
        self._cut_at_ns = now_ns()
        self._mended_at = time.monotonic() + for_s
        self.line.pause()

    def mend(self) -> None:
        """The line carries again, also what was on its way when it was cut."""
        if self.line is not None and self._cut_at_ns:
            self.line.resume()
            self._notes.outages.append((self._cut_at_ns, now_ns()))
            self._cut_at_ns = 0

    def thaw(self) -> None:
        """SIGCONT to whatever is frozen."""
        for pid, from_ns in self._frozen.items():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
            self._notes.freezes.append(Freeze(pid, from_ns, now_ns()))
        self._frozen = {}

    # -- its life ----------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Does what is due."""
        now = time.monotonic()
        if self._frozen and now >= self._thaw_at:
            self.thaw()
        if self._cut_at_ns and now >= self._mended_at:
            self.mend()
        if self.node.running:
            since = self._stopping_since
            if since is not None and not self._frozen and now - since > STOP_PATIENCE_S:
                self.complaints.append(f"{self} did not stop within {STOP_PATIENCE_S:g} s")
                self.vanish(0)
            return
        if not self._stopped_by_us and any(arguments in self.node.logs(this_life=True) for arguments in GAVE_UP):
            # It said so, and is for its supervisor to start again: that is us.
            self._stopped_by_us = True
        if self.kind == "HTTP consumer" and self.node.exit_code == LOST_STATUS:
            # It fenced itself.
            self._stopped_by_us = True
        if not self._stopped_by_us and self._culprits and self.node.exit_code == -signal.SIGKILL:
            self._stopped_by_us = True
            self.killed_by_tasks += 1
            self._notes.kills += max(1, self.slots)
        if not self._stopped_by_us:
            self.complaints.append(f"{self} ended with {self.node.exit_code} by itself:\n{self.node.log_tail(12)}")
            self._stopped_by_us = True
        if not self.leaving and now >= self._back_at:
            self.start()

    def _hit(self, back_in_s: float) -> None:
        self.thaw()
        self._stopped_by_us = True
        self._back_at = time.monotonic() + back_in_s
        if self.kind == "worker":
            self._notes.kills += max(1, len(self.pool_processes()))
        elif self.kind == "HTTP consumer":
            self._notes.kills += self.slots
