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

from bridge.connect import client
from bridge.names import BUNDLE_TASK, HEADER_BASE, HEADER_INCARNATION, HEADER_RUNS, HEADER_WORD
from bridge.outcomes import Kind, Outcome
from bridge.worker.holdings import Holdings, Taking

if TYPE_CHECKING:
    from bridge.settings import Settings

logger = get_logger(__name__)

#: Seconds between two looks into the queue.
LOOK_S = 0.1
#: Celery messages taken from the queue at once.
TAKE = 100


class Farewell:
    """Runs on a thread of its own from `start` to `stop`.

    ``holdings``: what came here before; ``write``: writes outcomes of an incarnation; ``give_back_unstarted``: gives
    back what the main process took and no pool process has begun. It is called a while after the worker said that it is
    going, see `Member.give_back_unstarted`.
    """

    def __init__(
        self,
        settings: Settings,
        name: str,
        incarnation: str,
        *,
        holdings: Holdings,
        write: Callable[[str, list[Outcome]], None],
        give_back_unstarted: Callable[[], None],
    ) -> None:
        self._settings = settings
        self._name = name
        self._incarnation = incarnation
        self._holdings = holdings
        self._write = write
        self._give_back_unstarted = give_back_unstarted
        self._redis: Redis = client(settings.redis_url, timeout_s=2.0)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="bridge-farewell", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """The worker is done; its lease ends, and with it this."""
        self._stop.set()
        self._thread.join(timeout=5.0)

    def _run(self) -> None:
        told = False
        while not self._stop.is_set():
            try:
                if not told:
                    self._tell()
                    told = True
                while self._give_back():
                    pass
            except (RedisError, OSError) as exc:
                logger.debug("cannot give back yet: %s", exc)
            if not self._stop.wait(LOOK_S):
                self._give_back_unstarted()

    def _tell(self) -> None:
        """In the registration, for a leader that comes later; in the outcome stream, for the one that is there."""
        keys = self._settings.keys
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
        texts: Any = self._redis.rpop(self._settings.keys.queue(self._name), TAKE)
        outcomes: list[Outcome] = []
        for text in texts or ():
            outcomes += self._untaken(json.loads(text))
        if outcomes:
            logger.info("giving back %d runs that this worker did not take", len(outcomes))
            self._write(self._incarnation, outcomes)
        return bool(texts)

    def _untaken(self, message: dict[str, Any]) -> list[Outcome]:
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


def returned(message: dict[str, Any], incarnation: str) -> list[Outcome]:
    """Outcomes that give back what a Celery message (as the broker holds it) carries.

    The rest of a run goes back with its first message.
    """
    headers = message["headers"]
    if headers.get(HEADER_INCARNATION) != incarnation or HEADER_WORD in headers:
        return []
    base = headers[HEADER_BASE]
    if headers["task"] != BUNDLE_TASK:
        return [Outcome(headers["id"], base + headers[HEADER_RUNS][0][1], Kind.RETURNED)]
    return [
        Outcome(messages[0][0], base + offset, Kind.RETURNED) for _, offset, _, messages in json.loads(message["body"])
    ]
