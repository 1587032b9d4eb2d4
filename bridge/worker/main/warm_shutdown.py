"""Warm shutdown: a stopping worker tells the leader that it leaves, and gives back the messages that it will not run.

After SIGTERM a worker may still run a long task, and consumes nothing more meanwhile. So the leader must send it
nothing more. And the messages in its queue must go back at once, without a timeout and without a charged attempt.

The order closes a race: the leader learns that the worker leaves *before* the first message goes back. Else it could
send that message to this worker again.

A worker does these steps after SIGTERM:

1. Celery sends `worker_shutting_down`. `Member.begin_shutdown` starts the thread of `WarmShutdown`, and
   `ForcedEnd.start` begins to watch whether the server answers.
2. The thread announces that the worker leaves, and recalls all messages on the shared page. Then every `QUEUE_CHECK_S`
   seconds it empties the queue and gives back the messages that have not started.
3. Celery's loop ends. `MemberStep.close` recalls all messages, and ends the open read of the queue (`end_last_read`).
   If the worker was stopped without a signal, `begin_shutdown` is called here.
4. Celery waits for the running tasks.
5. Celery sends `worker_shutdown`. `Member.stop` stops the thread, joins the waiting threads, ends the lease, and ends
   the watcher.
6. If the server does not answer meanwhile, `ForcedEnd` ends the process instead, as in a crash.

SIGQUIT or a second Ctrl-C makes it a cold shutdown (`bridge.worker.main.cold_shutdown`). Celery ignores a second
SIGTERM.

A worker has one `Member` and one `WarmShutdown` for each lane, and one `ForcedEnd` and one watcher in all
(`bridge.worker.main.members`). A member that has not taken its lease yet only recalls.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from celery.utils.log import get_logger
from redis import Redis
from redis.exceptions import RedisError

from bridge.consumer.holdings import Holdings, Taking
from bridge.link.connections import client
from bridge.protocol.envelope import returned
from bridge.protocol.headers import heads_of
from bridge.protocol.names import HEADER_INCARNATION
from bridge.protocol.outcome_entries import EntryKind, notice_fields
from bridge.protocol.outcomes import Outcome
from bridge.protocol.registration import changed, read_registration
from bridge.worker.main.threads import run_in_thread

if TYPE_CHECKING:
    from bridge.settings.lane import LaneSettings

logger = get_logger(__name__)

#: Seconds between two reads of the queue.
QUEUE_CHECK_S = 0.1
#: Celery messages taken from the queue at once.
TAKE = 100


class WarmShutdown:
    """Runs on a thread of its own from `start` to `stop`.

    - ``holdings``: the runs that came here before.
    - ``lease_holds`` says whether the incarnation still holds its lease.
    - ``write`` writes outcomes of an incarnation.
    - ``recall_all`` recalls all messages: pool processes start none any more.
    - ``give_back_unstarted`` gives back the messages that the main process took and that no pool process has started.
      It is called a while after ``recall_all``, see `OpenRequests.give_back_unstarted`.
    """

    def __init__(
        self,
        url: str,
        lane: LaneSettings,
        name: str,
        incarnation: str,
        *,
        holdings: Holdings,
        lease_holds: Callable[[], bool],
        write: Callable[[str, list[Outcome]], None],
        recall_all: Callable[[], None],
        give_back_unstarted: Callable[[], None],
    ) -> None:
        self._lane = lane
        self._name = name
        self._incarnation = incarnation
        self._holdings = holdings
        self._lease_holds = lease_holds
        self._write = write
        self._recall_all = recall_all
        self._give_back_unstarted = give_back_unstarted
        self._redis: Redis = client(url, timeout_s=2.0)
        self._stop = threading.Event()
        self._over: threading.Event | None = None

    def start(self) -> None:
        """Starts the thread. Safe in a signal handler."""
        self._over = run_in_thread(self._run)

    def stop(self) -> None:
        """Stops the thread: all tasks have ended, and the lease ends next."""
        self._stop.set()
        if self._over is not None:
            self._over.wait(timeout=5.0)

    def _run(self) -> None:
        announced = self._quietly(self._announce_leaving)
        # Only now: a message that goes back before the leader knows that this worker leaves could come here again.
        self._recall_all()
        while not self._stop.is_set():
            announced = announced or self._quietly(self._announce_leaving)
            if self._lease_holds():
                # Without a lease, another worker may have the name, and this queue.
                self._quietly(self._empty_queue)
            if not self._stop.wait(QUEUE_CHECK_S):
                self._give_back_unstarted()

    def _quietly(self, do: Callable[[], None]) -> bool:
        """Calls ``do``. Returns False when the server is away: then it is tried again."""
        try:
            do()
        except (RedisError, OSError) as exc:
            logger.debug("cannot give back yet: %s", exc)
            return False
        return True

    def _empty_queue(self) -> None:
        while self._give_back():
            pass

    def _announce_leaving(self) -> None:
        """Writes it into the registration, for later leaders, and into the outcome stream, for the present leader."""
        keys = self._lane.keys
        found: Any = self._redis.hget(keys.consumers, self._name)
        registration = read_registration(found) if found else None
        if registration is None or registration.incarnation != self._incarnation:
            return
        with self._redis.pipeline(transaction=True) as pipe:
            pipe.hset(keys.consumers, self._name, changed(registration, leaving=True))
            notice = notice_fields(EntryKind.LEAVING, self._incarnation, self._name)
            pipe.execute_command("XADD", keys.outcomes, "*", *notice)
            pipe.execute()

    def _give_back(self) -> bool:
        """Takes Celery messages from the queue, and gives back the runs in them. Returns whether there were any."""
        texts: Any = self._redis.rpop(self._lane.keys.queue(self._name), TAKE)
        outcomes: list[Outcome] = []
        for text in texts or ():
            outcomes += self._outcomes_of(json.loads(text))
        if outcomes:
            logger.info("giving back %d runs that this worker did not take", len(outcomes))
            self._write(self._incarnation, outcomes)
        return bool(texts)

    def _outcomes_of(self, message: dict[str, Any]) -> list[Outcome]:
        """The outcomes that give back the runs of a Celery message.

        A run that came here before is left out, since it may be running: a server that lost its last second of writes
        delivers popped messages again.
        """
        headers = message["headers"]
        if headers.get(HEADER_INCARNATION) != self._incarnation:
            return []
        found = []
        for outcome, run in zip(returned(message, self._incarnation), heads_of(headers), strict=False):
            last = outcome.fence + run.length - 1
            if self._holdings.take(run.ticket, outcome.fence, last, bool(run.doubt)) is not Taking.REFUSED:
                self._holdings.drop(run.ticket, outcome.fence)
                found.append(outcome)
        return found
