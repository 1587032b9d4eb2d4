"""The end that a worker comes to when it was asked to stop and its server does not answer.

Celery, kombu and redis-py wait for a server in many places, and in some of them without a limit: a last heartbeat that
is published again and again, a queue that is deleted, a reply that is read. So a worker whose server is away could hang
in the middle of its shutdown for as long as the server does. Nothing would be gained by that: what it has not begun it
cannot give back, and what it cannot write is void when its lease is over.

Contract: after the signal, once the server has not answered for `AWAY_S`, the process ends as soon as nothing runs in
it that could still count: no task beside the bridge's, and no ticket under a lease that holds. Tickets that run on when
the lease is over are void; a pool of processes has killed them by then, and of the other pools this is the one way to
end them. It ends without a good-bye and without Celery's last steps, as in a crash: so its watcher gives notice that
nothing of it runs any more, if the server is back before the lease is over. Else the lease decides.

A server that answers is never given up: then Celery's own shutdown takes as long as it takes.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from celery.utils.log import get_logger
from celery.worker import state
from redis import Redis
from redis.exceptions import RedisError

from bridge.link.connections import client, is_outage
from bridge.protocol.names import HEADER_BASE
from bridge.worker.main.threads import run_in_thread

if TYPE_CHECKING:
    from bridge.worker.guard.shared_page import Shared

logger = get_logger(__name__)

#: Seconds without an answer after which nothing is expected any more.
AWAY_S = 5.0
#: Seconds between two questions to the server, and for an answer.
ASK_S = 0.5
TIMEOUT_S = 1.0


class ForcedEnd:
    """Runs on a thread of its own from `start` to the end of the process."""

    def __init__(self, url: str, shared: Shared) -> None:
        self._shared = shared
        self._redis: Redis = client(url, timeout_s=TIMEOUT_S)
        self._started = False

    def start(self) -> None:
        """The worker was asked to stop. Safe in a signal handler; asking twice changes nothing."""
        if not self._started:
            self._started = True
            run_in_thread(self._run)

    def _run(self) -> None:
        answered = time.monotonic()
        while True:
            if self._answers():
                answered = time.monotonic()
            away_s = time.monotonic() - answered
            if away_s > AWAY_S and self._nothing_counts():
                logger.warning("Redis has not answered for %.0f s and nothing runs here: ending as it is", away_s)
                _end()
            time.sleep(ASK_S)

    def _answers(self) -> bool:
        try:
            self._redis.ping()
        except (RedisError, OSError) as exc:
            return not is_outage(exc)
        return True

    def _nothing_counts(self) -> bool:
        if self._shared.left_s > 0 and self._shared.running_fences():
            return False
        try:
            running = list(state.active_requests)
        except RuntimeError:
            # It changed while it was read.
            return False
        return all(_of_a_ticket(request) for request in running)


def _of_a_ticket(request: Any) -> bool:
    return HEADER_BASE in request.request_dict


def _end() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    # It was asked to stop, and stops. Pool processes end with this one.
    os._exit(os.EX_OK)
