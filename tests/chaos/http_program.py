"""An HTTP consumer of a chaos run: a program without Celery, which does what `tests.chaos.app` does with a message.

``python -m tests.chaos.http_program NAME CONCURRENCY honest|lies URL …``. What its success leaves is in a store of its
own: it writes the effect itself, and the store compares fences. A message that it wrote and did not acknowledge comes
again, and is written again: the later one counts.

One that lies sends, before and after each honest acknowledgement, what no honest consumer sends. It notes each answer,
and what the answer must be, in a file beside the ledger (`read_told`).
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

from redis import Redis
from redis.exceptions import RedisError

from bridge.consumer import GiveUp, HttpConsumer, Message, Refuse
from bridge.consumer.http_calls import HttpProblem
from bridge.consumer.http_outcomes import OVER, Item
from tests.chaos.draw import EITHER
from tests.chaos.ledger import LedgerWriter
from tests.chaos.recording import EFFECTS, id_of, place_of
from tests.chaos.subscriptions import LIMITED_IN, label_of

#: Seconds between two signs of life of a handler at work.
STEP_S = 0.01
#: Appends what a success leaves, unless a later delivery was here before. Again for the same delivery: nothing.
STORE = """
local last = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)[1]
if last then
  for i = 1, #last[2], 2 do
    if last[2][i] == 'fence' then
      if tonumber(last[2][i + 1]) > tonumber(ARGV[3]) then return 'STALE' end
      if last[2][i + 1] == ARGV[3] then return 'OK' end
    end
  end
end
redis.call('XADD', KEYS[1], '*', 'id', ARGV[1], 'n', ARGV[2], 'fence', ARGV[3], 'stored', 1)
return 'OK'
"""
ACKNOWLEDGE = "/api/messages/acknowledge"
#: Lie -> the status that it must be answered with.
LIES = {
    "wrong fence": 409,
    "foreign id": 404,
    "other incarnation": 404,
    "slow": 409,
    "twice": 200,
    "another outcome": 409,
    "late": 410,
}
#: How often each is told again.
AGAIN, LATE_AGAIN = 0.2, 0.02
#: The lease may be over at any time, and a master may be without Redis, or gone (0).
ANY_TIME = (410, 503, 0)
TOLD = ".told"
LOST = "lost its lease"


def read_told(folder: Path) -> tuple[Counter[str], list[str]]:
    """How often each lie was answered as it must be (with how often a lease was lost), and the other answers."""
    told = Counter[str]()
    wrong = []
    for path in sorted(folder.glob(f"*{TOLD}")):
        data = path.read_bytes()
        # A last line without its end was being written when its process was killed.
        for line in data[: data.rfind(b"\n") + 1].splitlines():
            lie, status, detail = json.loads(line)
            if lie == LOST or status == LIES[lie]:
                told[lie] += 1
            elif status not in ANY_TIME:
                wrong.append(f"{path.stem}: {lie}: {status} instead of {LIES[lie]}: {detail}")
    return told, wrong


class Consumer(HttpConsumer):
    """One that is honest, and notes when it loses its lease."""

    def __init__(self, urls: Sequence[str], name: str, handler: Callable[[Message], object], **more: Any) -> None:
        super().__init__(urls, name, handler, **more)
        path = Path(os.environ["CHAOS_LEDGER"]) / f"{name}-{os.getpid()}{TOLD}"
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def _note(self, what: str, status: int, detail: object = "") -> None:
        os.write(self._file, json.dumps([what, status, str(detail)]).encode() + b"\n")

    def _lose(self, incarnation: str) -> None:
        if incarnation == self._incarnation:
            self._note(LOST, 0)
        super()._lose(incarnation)


class Liar(Consumer):
    """One that lies. It takes one message at a time."""

    def __init__(self, urls: Sequence[str], name: str, handler: Callable[[Message], object], **more: Any) -> None:
        super().__init__(urls, name, handler, **more)
        self._draw = random.Random(name)
        self._redis: Any = Redis.from_url(os.environ["CELERY_BROKER_URL"], socket_timeout=5)
        self._told = Counter[str]()
        #: It lets its lease end.
        self._is_silent = False
        # In place of the honest ones.
        self._outcomes._send = self._send  # type: ignore[method-assign]

    def _renew(self, incarnation: str) -> int:
        return 0 if self._is_silent else super()._renew(incarnation)

    def _send(self, batch: Sequence[Item]) -> None:
        for one in batch:
            try:
                self._say(one.incarnation, one.said)
            except HttpProblem as problem:
                if problem.status in OVER:
                    self._lose(one.incarnation)
            except (OSError, HTTPException):
                # It comes again.
                pass

    def _say(self, incarnation: str, item: dict[str, Any]) -> None:
        self._lie("wrong fence", {**item, "fence": item["fence"] + 1})
        self._lie("foreign id", {**item, "message_id": "1-1"})
        self._lie("other incarnation", {**item, "incarnation": "0" * 32})
        self._lie("slow", {**item, "fence": item["fence"] + 1}, self._trickle)
        if self._draws("late", LATE_AGAIN) and self._outlive(incarnation):
            self._tell("late", item, self._post)
            return

        def goes_on() -> bool:
            return incarnation == self._incarnation and self.holds

        found = self._calls.call("POST", ACKNOWLEDGE, [item], goes_on=goes_on)
        if found["results"][0]["status"] == 200:
            # What it has said before: the same again, or something else.
            self._lie("twice", item)
            other = {key: value for key, value in item.items() if key != "delay"}
            self._lie("another outcome", {**other, "outcome": "failed" if item["outcome"] == "dead" else "dead"})

    def _draws(self, lie: str, again: float) -> bool:
        return not self._told[lie] or self._draw.random() < again

    def _lie(self, lie: str, item: dict[str, Any], post: Callable[[Any], tuple[int, str]] | None = None) -> None:
        if self._draws(lie, AGAIN):
            self._tell(lie, item, post or self._post)

    def _tell(self, lie: str, item: dict[str, Any], post: Callable[[Any], tuple[int, str]]) -> None:
        status, detail = post(item)
        self._told[lie] += status == LIES[lie]
        self._note(lie, status, detail)

    def _outlive(self, incarnation: str) -> bool:
        """Lets the lease end. Whether it has ended, as Redis says: it does not come back."""
        self._is_silent = True
        try:
            leases = list(self._redis.scan_iter(match=f"*:lease:{incarnation}"))
            while leases and self._redis.exists(*leases) == len(leases):
                time.sleep(STEP_S)
        except RedisError:
            return False
        finally:
            self._is_silent = False
        return bool(leases)

    def _post(self, item: Any) -> tuple[int, str]:
        try:
            return 200, str(self._calls.call("POST", ACKNOWLEDGE, item, goes_on=lambda: False))
        except HttpProblem as problem:
            return problem.status, problem.detail
        except (OSError, HTTPException) as exc:
            return 0, str(exc)

    def _trickle(self, item: Any) -> tuple[int, str]:
        """The same in chunks of a few bytes, with pauses, over a connection of its own."""
        master = self._calls._masters[0]
        connection = HTTPConnection(master.host, master.port, timeout=10)
        text = json.dumps(item).encode()

        def chunks() -> Iterator[bytes]:
            for start in range(0, len(text), 16):
                time.sleep(STEP_S / 2)
                yield text[start : start + 16]

        try:
            connection.request("POST", ACKNOWLEDGE, chunks(), {"Content-Type": "application/json"})
            response = connection.getresponse()
            return response.status, response.read().decode()
        except (OSError, HTTPException) as exc:
            return 0, str(exc)
        finally:
            connection.close()


def main() -> None:
    name, concurrency, kind, *urls = sys.argv[1:]
    redis: Any = Redis.from_url(os.environ["CELERY_BROKER_URL"], socket_timeout=5)
    ledger = LedgerWriter(Path(os.environ["CHAOS_LEDGER"]))
    subscription = os.environ.get(LIMITED_IN)

    def work(ticket: str, message: Message, seconds: float) -> None:
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            time.sleep(min(STEP_S, left))
            if left > STEP_S:
                ledger.step(ticket, message.fence)

    def attempt(ticket: str, message: Message, payload: dict[str, Any]) -> None:
        work(ticket, message, payload["ms"] / 1000)
        if payload.get("nacks") and message.fence % 3:
            raise Refuse("not now", delay=0.02)
        if message.attempt < payload.get("until", 1):
            if payload["how"] == "dead":
                raise GiveUp("Dead: it can never succeed")
            raise ValueError(f"attempt {message.attempt} of ticket {message.ticket_id} goes wrong")

    def store(ticket: str, message: Message, *facts: Any) -> None:
        while True:
            try:
                if redis.eval(STORE, 1, EFFECTS + ticket, *facts) == b"STALE":
                    raise ValueError("a later delivery was here before")
            except RedisError:
                if not message.holds():
                    raise
                time.sleep(STEP_S)
            else:
                return

    def handle(message: Message) -> None:
        payload = {**message.payload, **message.payload.get("in", {}).get(subscription, {})}
        ticket = label_of(subscription or "", message.ticket_id, several=subscription is not None)
        id_, n = id_of(message.message_id, payload), place_of(payload)
        ledger.start(name, ticket, message.fence, id_, n, message.attempt)
        end = "raised"
        try:
            attempt(ticket, message, payload)
            end = "done"
        finally:
            ledger.end(ticket, message.fence, end)
        store(ticket, message, id_, n, message.fence)

    made = (Liar if kind == "lies" else Consumer)(
        urls, name, handle, concurrency=int(concurrency), tasks=[EITHER], subscription=subscription, wait_s=2
    )
    signal.signal(signal.SIGTERM, lambda *_: made.stop())
    with made:
        print("ready", flush=True)
        made.run()


if __name__ == "__main__":
    main()
