"""What a worker does for its tickets while it shuts down: tells the leader, and gives back what it will not take.

From SIGTERM to its end a worker may still run a long task. It consumes nothing more meanwhile, so the leader must send
it nothing more, and what is in its queue already must go back: by nobody's timeout, and charged to nobody.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import orjson
from celery.utils.log import get_logger
from redis import Redis
from redis.exceptions import RedisError

from bridge.consumer.holdings import Holdings, Taking
from bridge.link.connections import client
from bridge.protocol.envelope import returned
from bridge.protocol.names import HEADER_INCARNATION, HEADER_RUNS
from bridge.protocol.outcomes import Outcome
from bridge.worker.main.threads import run_in_thread

if TYPE_CHECKING:
    from bridge.settings.lane import LaneSettings

logger = get_logger(__name__)

#: Seconds between two looks into the queue.
QUEUE_CHECK_S = 0.1
#: Celery messages taken from the queue at once.
TAKE = 100


class WarmShutdown:
    """Runs on a thread of its own from `start` to `stop`.

    ``holdings``: what came here before; ``write``: writes outcomes of an incarnation; ``recall_all``: says to whoever
    runs messages here that none shall begin any more; ``give_back_unstarted``: gives back what the main process took
    and no pool process has begun. It is called a while after ``recall_all``, see `Member.give_back_unstarted`.
    """

    def __init__(
        self,
        url: str,
        lane: LaneSettings,
        name: str,
        incarnation: str,
        *,
        holdings: Holdings,
        write: Callable[[str, list[Outcome]], None],
        recall_all: Callable[[], None],
        give_back_unstarted: Callable[[], None],
    ) -> None:
        self._lane = lane
        self._name = name
        self._incarnation = incarnation
        self._holdings = holdings
        self._write = write
        self._recall_all = recall_all
        self._give_back_unstarted = give_back_unstarted
        self._redis: Redis = client(url, timeout_s=2.0)
        self._stop = threading.Event()
        self._over: threading.Event | None = None

    def start(self) -> None:
        """Begins. Safe in a signal handler."""
        self._over = run_in_thread(self._run)

    def stop(self) -> None:
        """The worker is done; its lease ends, and with it this."""
        self._stop.set()
        if self._over is not None:
            self._over.wait(timeout=5.0)

    def _run(self) -> None:
        announced = self._quietly(self._announce_leaving)
        # Not before: what comes back sooner than the leader knows would be sent here again.
        self._recall_all()
        while not self._stop.is_set():
            announced = announced or self._quietly(self._announce_leaving)
            self._quietly(self._empty_queue)
            if not self._stop.wait(QUEUE_CHECK_S):
                self._give_back_unstarted()

    def _quietly(self, do: Callable[[], None]) -> bool:
        """Whether it could be done; when the server is away, the next look tries again."""
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
        """In the registration, for a leader that comes later; in the outcome stream, for the one that is there."""
        keys = self._lane.keys
        found: Any = self._redis.hget(keys.consumers, self._name)
        registration = orjson.loads(found) if found else {}
        if registration.get("incarnation") != self._incarnation:
            return
        registration["leaving"] = True
        with self._redis.pipeline(transaction=True) as pipe:
            pipe.hset(keys.consumers, self._name, orjson.dumps(registration))
            pipe.xadd(keys.outcomes, {"i": self._incarnation, "leaving": self._name})
            pipe.execute()

    def _give_back(self) -> bool:
        """Takes Celery messages from the queue and gives back what they carry; whether there were any."""
        texts: Any = self._redis.rpop(self._lane.keys.queue(self._name), TAKE)
        outcomes: list[Outcome] = []
        for text in texts or ():
            outcomes += self._outcomes_of(json.loads(text))
        if outcomes:
            logger.info("giving back %d runs that this worker did not take", len(outcomes))
            self._write(self._incarnation, outcomes)
        return bool(texts)

    def _outcomes_of(self, message: dict[str, Any]) -> list[Outcome]:
        """What of a Celery message may go back. Not what came before, and may be running here: a server that lost its
        last second gives popped messages out again.
        """
        headers = message["headers"]
        if headers.get(HEADER_INCARNATION) != self._incarnation:
            return []
        found = []
        for outcome, (ticket, _, count, _, doubt) in zip(
            returned(message, self._incarnation), headers[HEADER_RUNS], strict=False
        ):
            last = outcome.fence + count - 1
            if self._holdings.take(ticket, outcome.fence, last, bool(doubt)) is not Taking.REFUSED:
                self._holdings.drop(ticket, outcome.fence)
                found.append(outcome)
        return found
