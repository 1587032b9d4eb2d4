"""The unfinished requests of one lane in a worker's main process, and which of them are given back.

After a lost connection Celery has forgotten the requests that no pool process had accepted (5.6.0 to 5.6.2: also those
that one had). A process may have one in its pipe, or run it. If it ends then, Celery does not notice that this request
ends with it: see `OpenRequests.report_cut_off`.

Contract for what is given back: a message goes back only if no pool process can start it any more. For that, a recall
is written to the shared page first, and the fences that run are read a while after: `OpenRequests.give_back_unstarted`.
"""

from __future__ import annotations

import threading
import time
from typing import Any

from celery.utils.log import get_logger

from bridge.worker.guard.shared_page import EVERYTHING, SharedPage

logger = get_logger(__name__)

#: Within this many seconds a pool process reports that it accepted a message.
DROPPED_AFTER_S = 1.0
#: Seconds between a recall and the check which of the recalled messages run: see `give_back_unstarted`.
RECALL_S = 0.1
#: Within this many seconds after the end of a pool process Celery reports a request that it remembers (it takes 10).
REPORTED_AFTER_S = 15.0


class OpenRequests:
    """The requests from their receipt to their end."""

    def __init__(self, shared: SharedPage) -> None:
        self._shared = shared
        #: First fence -> request, of all unfinished requests.
        self.all: dict[int, Any] = {}
        #: First fence -> request, of those that no pool process has accepted yet.
        self.unaccepted: dict[int, Any] = {}
        #: How many requests pool processes have accepted.
        self.begun = 0
        #: First fence -> request, of those that Celery may have dropped with a lost connection; and when (monotonic).
        self._dropped: dict[int, Any] = {}
        self._dropped_at = 0.0
        #: First fence -> request, of those that Celery may have forgotten; and when their process was first seen to
        #: have ended (monotonic).
        self._forgotten: dict[int, Any] = {}
        self._gone_at: dict[int, float] = {}

    def add(self, request: Any) -> None:
        """Notes a request that will go to the pool next."""
        self.all[request.first_fence] = self.unaccepted[request.first_fence] = request

    def accepted(self, first: int) -> None:
        """A pool process has the request with the first fence ``first``."""
        self.begun += 1
        self.unaccepted.pop(first, None)

    def remove(self, first: int) -> None:
        """The request with the first fence ``first`` has ended."""
        self.unaccepted.pop(first, None)
        self.all.pop(first, None)

    def in_doubt(self, request: Any) -> None:
        """Notes a request that the pool may have or not, since the pool failed: see `give_back_dropped`."""
        self._dropped[request.first_fence] = self._forgotten[request.first_fence] = request
        self._dropped_at = time.monotonic()

    def connection_lost(self) -> None:
        """Celery lost its connection. It then empties the pool's queue, since a broker would deliver again."""
        self._dropped = dict(self.unaccepted)
        self._dropped_at = time.monotonic()
        self._forgotten = dict(self.all)

    def recall(self, newest: int) -> None:
        """Gives back the messages up to the fence ``newest`` that have not started."""
        self._shared.recalled_to = newest

        def later() -> None:
            time.sleep(RECALL_S)
            self.give_back_unstarted(newest)

        # On a thread of its own: a server that is away would stop Celery's own thread here.
        threading.Thread(target=later, name="bridge-recall", daemon=True).start()

    def recall_all(self) -> None:
        """Recalls all messages: none may start any more."""
        self._shared.recalled_to = EVERYTHING

    def give_back_unstarted(self, newest: int = EVERYTHING) -> None:
        """Gives back the messages that wait in the pool's queue, up to the fence ``newest``.

        Precondition: they were recalled a while ago. A pool process notes the fence of a message *before* it reads the
        recall, and this reads the fences a while *after* the recall was written. So if a message has started, its fence
        is seen here. If its fence is not seen, it cannot start any more.
        """
        running = self._shared.running_fences()
        for request in list(self.unaccepted.values()):
            fences = request.fences()
            if max(fences) <= newest and not running & fences:
                request.give_back()

    def give_back_dropped(self) -> None:
        """Gives back the messages that Celery dropped with its connection. Called with each renewal of the lease.

        It is not known whether a message was dropped: it may be in the pipe to a pool process. So the first call
        recalls these messages on the shared page. A pool process that gets one after that gives it back itself. The
        next call, one renewal later, gives back those that do not run: they cannot start any more.
        """
        if not self._dropped or time.monotonic() - self._dropped_at <= DROPPED_AFTER_S:
            return
        newest = max(max(request.fences()) for request in self._dropped.values())
        if self._shared.recalled_to < newest:
            self._shared.recalled_to = newest
            return
        running = self._shared.running_fences()
        for fence, request in list(self._dropped.items()):
            if fence in self.unaccepted and not running & request.fences():
                logger.warning("giving back fence %d, which was dropped with the lost connection", fence)
                request.give_back()
            if fence not in self.unaccepted:
                del self._dropped[fence]

    def report_cut_off(self) -> None:
        """Reports the requests whose pool process has ended, where Celery has forgotten them.

        Called every second on Celery's own thread. Without it such a message would count as running until the worker
        ends: the row of the dead process still has its fence.
        """
        for fence in self._forgotten.keys() - self.all.keys():
            del self._forgotten[fence]
            self._gone_at.pop(fence, None)
        left = self._shared.left_running() if self._forgotten else {}
        if not left:
            return
        now = time.monotonic()
        for fence, request in list(self._forgotten.items()):
            pid = next((left[one] for one in request.fences() if one in left), None)
            if pid is None:
                continue
            # Celery may remember a request that a process has accepted.
            patience_s = 0.0 if fence in self.unaccepted else REPORTED_AFTER_S
            if now - self._gone_at.setdefault(fence, now) >= patience_s:
                request.cut_off(pid)
