"""Simulated consumers by the hundred, of which some are lost in one moment; what was done is written down.

One process, which runs nothing: see `benchmarks.simulated`. The ledger has a line for each message whose outcome was
written: ticket, message id.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import orjson

from benchmarks.simulated import POP_COUNT, Consumers, entries
from benchmarks.stack import KEYS
from bridge.protocol.headers import first_head
from bridge.protocol.names import BUNDLE_TASK

#: Seconds to wait when all queues are empty.
IDLE_S = 0.002


class Crowd(Consumers):
    """``lost`` of the consumers end without a word when ``lose_at`` messages are done, with what they just took."""

    def __init__(
        self, url: str, count: int, slots: int, *, lease_ms: int, lost: int, lose_at: int, ledger: Path
    ) -> None:
        super().__init__(url, count, slots, lease_ms)
        self._doomed = list(self._queues)[:lost]
        self._lose_at = lose_at
        self._ledger = ledger.open("w", buffering=1 << 16)
        self._done = 0

    def _turn(self) -> None:
        popped = self._ask([("RPOP", queue, POP_COUNT) for queue in self._queues])
        taken = dict(zip(self._queues.items(), popped, strict=True))
        if self._doomed and self._done >= self._lose_at:
            taken = {one: texts for one, texts in taken.items() if one[0] not in self._doomed}
            for queue in self._doomed:
                del self._queues[queue]
            self._doomed = []
        answers = []
        for (_, incarnation), texts in taken.items():
            for text in texts or ():
                self._note(text)
                answers += [("XADD", KEYS.outcomes, "*", "i", incarnation, "o", entry) for entry in entries(text)]
        if not answers:
            self._ledger.flush()
            time.sleep(IDLE_S)
            return
        self._ask(answers)

    def _note(self, text: bytes) -> None:
        message = orjson.loads(text)
        headers = message["headers"]
        if headers["task"] != BUNDLE_TASK:
            done = [(first_head(headers).ticket, headers["id"])]
        else:
            runs = orjson.loads(message["body"])
            done = [(ticket, id_) for ticket, _, _, messages in runs for id_, *_ in messages]
        self._done += len(done)
        self._ledger.writelines(f"{ticket} {id_}\n" for ticket, id_ in done)


if __name__ == "__main__":
    url, count, slots, lease_ms, lost, lose_at, ledger = sys.argv[1:]
    arguments = {"lease_ms": int(lease_ms), "lost": int(lost), "lose_at": int(lose_at)}
    Crowd(url, int(count), int(slots), ledger=Path(ledger), **arguments).run()
