"""Writes a `TrueLane` to a server, step by step, as a leader does: the acknowledgements and rows of a step at once."""

from __future__ import annotations

from typing import Any

import orjson
from redis import Redis

from bridge.routing.history import COUNTED, LAST, Delivery, What
from bridge.routing.keys import LaneKeys
from tests.unit.audit.true_history import TrueLane

COUNTERS = {what: name for name, whats in COUNTED.items() for what in whats}


def row_of(row: Delivery) -> list[Any]:
    """The row in the form of the history."""
    named = [row.message_id, row.ticket, row.task, row.consumer, row.attempt, row.fence]
    return [*named, row.dispatched_ms, row.started_us, row.service_ms, row.what.value]


class WrittenLane:
    """``lane`` on a server. ``cap``: most entries of its history."""

    def __init__(
        self, redis: Redis, lane: TrueLane, *, cap: int | None = None, ahead: int = 0, stream: str = "ticket_stream"
    ) -> None:
        self.keys = LaneKeys(stream, "concurrency_stream_group")
        self._redis = redis
        self._lane = lane
        self._cap = cap
        #: Entries that the group reads before they are needed.
        self._ahead = ahead
        self._step = 0
        self._written = 0
        self._entry = 0
        self._letters: dict[str, str] = {}
        redis.xgroup_create(self.keys.stream, self.keys.group, "0", mkstream=True)

    def finish(self) -> None:
        """Writes all remaining steps."""
        while self.go_on():
            pass

    def go_on(self) -> bool:
        """Writes the next step. Returns False if there is none."""
        if self._step == len(self._lane.steps):
            self._read(len(self._lane.entries))
            return False
        self._read(self._lane.marks[self._step] + self._ahead)
        self.write(self._lane.steps[self._step])
        self._step += 1
        return True

    def write(self, rows: list[Delivery], *, acknowledge: bool = True) -> None:
        """One step of the leader."""
        keys = self.keys
        self._written += 1
        with self._redis.pipeline(transaction=True) as pipe:
            for row in rows:
                if row.what in LAST and acknowledge:
                    pipe.xack(keys.stream, keys.group, row.message_id)
                if row.what in (What.DEAD, What.REFUSED):
                    self._letters[row.message_id] = letter = f"{row.written_ms}-{len(self._letters) + 1}"
                    pipe.execute_command("XADD", keys.dead, letter, "message_id", row.message_id)
                if row.what is What.REPLAYED:
                    claim: Any = {"min_idle_time": 0, "message_ids": [row.message_id], "force": True, "justid": True}
                    pipe.xclaim(keys.stream, keys.group, "master", **claim)
                    if row.message_id in self._letters:
                        pipe.xdel(keys.dead, self._letters[row.message_id])
                if row.what in COUNTERS:
                    pipe.hincrby(keys.counts, COUNTERS[row.what], 1)
            capped = [] if self._cap is None else ["MAXLEN", self._cap]
            data = orjson.dumps([row_of(row) for row in rows])
            pipe.execute_command("XADD", keys.history, *capped, f"{rows[0].written_ms}-{self._written}", "d", data)
            pipe.execute()

    def _read(self, upto: int) -> None:
        entries = self._lane.entries[self._entry : upto]
        for id_, ticket in entries:
            fields = [] if ticket is None else ["ticket_id", ticket]
            self._redis.execute_command("XADD", self.keys.stream, id_, *fields, "payload", "{}")
        if entries:
            self._redis.xreadgroup(self.keys.group, "master", {self.keys.stream: ">"})
        self._entry = max(self._entry, upto)
