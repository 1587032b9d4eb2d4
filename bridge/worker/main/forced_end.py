"""Forced end: ends a worker that was asked to stop while its server does not answer.

Celery, kombu and redis-py wait for the server in many places, and in some without a limit: a last heartbeat, the
deletion of a queue, the reading of a reply. So a shutdown could hang as long as the server is away. Waiting would be of
no use: without a server the worker cannot give messages back, and after its lease its outcomes are void.

Contract, after the worker was asked to stop:

- When the server has not answered for `AWAY_S`, the process ends as soon as no running task can count any more. An
  ordinary Celery task counts until it ends. A ticket counts until the lease is over. After that, pool processes are
  killed, and for other pools this end is the only way to stop the task.
- The process ends as in a crash: it does not end its lease, and skips Celery's last steps. So if the server is back
  before the lease is over, the watcher writes a death notice. Else the lease decides.
- A worker that was to start again does so then (`bridge.worker.main.new_layout`). The watcher writes no notice of it,
  since the process lives on.
- While the server answers, this does nothing: Celery's own shutdown may take any time.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from celery.utils.log import get_logger
from celery.worker import state
from redis import Redis
from redis.exceptions import RedisError

from bridge.link.connections import client, is_outage
from bridge.protocol.names import HEADER_BASE
from bridge.routing.numbers import duration
from bridge.worker.main.new_layout import flush, start_again
from bridge.worker.main.threads import run_in_thread

if TYPE_CHECKING:
    from bridge.worker.guard.shared_page import SharedPage

logger = get_logger(__name__)

#: The process may end when the server has not answered for this many seconds.
AWAY_S = 5.0
#: Seconds between two pings of the server, and the timeout of one.
ASK_S = 0.5
TIMEOUT_S = 1.0


class ForcedEnd:
    """Watches the server on a thread of its own, from `start` to the end of the process."""

    def __init__(self, url: str, pages: Sequence[SharedPage]) -> None:
        self._pages = pages
        self._redis: Redis = client(url, timeout_s=TIMEOUT_S)
        self._started = False

    def start(self) -> None:
        """Starts the thread: the worker was asked to stop. Safe in a signal handler. May be called twice."""
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
                silence = duration(away_s * 1000)
                logger.warning("Redis has not answered for %s and no task runs here: ending without it", silence)
                _end()
            time.sleep(ASK_S)

    def _answers(self) -> bool:
        try:
            self._redis.ping()
        except (RedisError, OSError) as exc:
            return not is_outage(exc)
        return True

    def _nothing_counts(self) -> bool:
        if any(page.left_s > 0 and page.running_fences() for page in self._pages):
            return False
        try:
            running = list(state.active_requests)
        except RuntimeError:
            # The set changed while it was read.
            return False
        return all(_of_a_ticket(request) for request in running)


def _of_a_ticket(request: Any) -> bool:
    return HEADER_BASE in request.request_dict


def _end() -> None:
    try:
        start_again()
    finally:
        flush()
        # The worker was asked to stop, so this is a success. Its pool processes end with it.
        os._exit(os.EX_OK)
