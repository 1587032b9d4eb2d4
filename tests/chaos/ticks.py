"""The recurring messages of a chaos run: a leader of the app pushes them, and not the feeder.

The entry of the schedule ticks each second, and has two tickets. The run notes what it finds in the stream, and adds
what has left a trace in the effects or the ledger. After the last fault the masters are replaced by one whose app has
no schedule.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from redis import Redis

from bridge.routing.partitions import stream_id
from tests.chaos.checks import Violation
from tests.chaos.facts import Effect, Execution, Message
from tests.chaos.recording import AT, place_of
from tests.chaos.subscriptions import KINDS, NEWER, OF, OLDER, generation_of

#: Environment variable of the app: its schedule.
SCHEDULE = "CHAOS_SCHEDULE"
TICKETS = ("tick-a", "tick-b")
EVERY_S = 1
#: A tick was pushed twice, or one that never was to be.
TICKED = "ticked"


def is_tick(fields: Mapping[str, str]) -> bool:
    """Whether an entry of the stream is the message of a tick."""
    return fields.get("ticket_id") in TICKETS


def schedule(version: str) -> dict[str, str]:
    """What makes `tests.chaos.app` have the schedule. ``version``: of the stream to which it pushes."""
    payload = {"ms": 0, "kind": KINDS[0], **({"v": version} if version else {})}
    entry = {"task": "chaos.work", "ticket": TICKETS, "payload": payload, "tick": AT, "every": EVERY_S}
    return {SCHEDULE: json.dumps({"beat": entry})}


class Ticks:
    """The messages of the ticks of one run."""

    def __init__(self, redis: Redis, where: Callable[[], list[tuple[str, str]]]) -> None:
        """``where``: the streams, each with what follows the ids of its messages."""
        self._redis = redis
        self._where = where
        self._last: dict[str, str] = {}
        #: (Version, generation of the layout, ticket, id in its stream) -> time of the tick in ms.
        self._known: dict[tuple[str, int, str, str], int] = {}

    def look(self) -> None:
        """Notes what came since the last look. Raises redis errors."""
        for stream, suffix in self._where():
            found: Any = self._redis.xrange(stream, f"({self._last.get(stream, '0-0')}", "+")
            for id_, fields in found:
                self._last[stream] = id_
                if is_tick(fields):
                    payload = json.loads(fields["payload"])
                    self._note(payload.get("v", ""), id_ + suffix, fields["ticket_id"], place_of(payload))

    def learn(self, rows: Iterable[Effect | Execution]) -> None:
        """Notes what has left a trace: its entry may have gone between two looks."""
        for row in rows:
            ticket = row.ticket.rpartition("/")[2]
            if ticket in TICKETS:
                version, _, id_ = row.message_id.rpartition(OF)
                self._note(version, id_, ticket, row.n)

    def _note(self, version: str, id_: str, ticket: str, at_ms: int) -> None:
        self._known[version, generation_of(id_), ticket, stream_id(id_)] = at_ms

    @property
    def newest_ms(self) -> int:
        """The time of the newest tick that is known."""
        return max(self._known.values(), default=0)

    @property
    def count(self) -> int:
        """How many messages are known."""
        return len(self._known)

    def messages(self) -> list[Message]:
        """What was pushed."""
        found = []
        for (version, generation, ticket, id_), at in self._known.items():
            pushed_ns = int(id_.partition("-")[0]) * 1_000_000
            found.append(Message(id_, ticket, at, False, pushed_ns, KINDS[0], version, generation))
        return sorted(found, key=lambda message: message.place)

    def check(self) -> list[Violation]:
        """Each tick is there once for each ticket, at a time of the schedule, and not before it."""
        found = []
        seen: dict[tuple[str, int], Message] = {}
        order = {"": 0, OLDER: 0, NEWER: 1}
        for message in sorted(self.messages(), key=lambda one: (order[one.version], one.place)):
            where, at = (message.ticket, message.message_id), message.n
            if (message.ticket, at) in seen:
                other = seen[message.ticket, at]
                detail = f"the tick at {at} was pushed before, as {other.version}{OF}{other.message_id}"
                found.append(Violation(TICKED, *where, detail))
            seen[message.ticket, at] = message
            if at % (EVERY_S * 1000) or message.pushed_ns < at * 1_000_000:
                found.append(Violation(TICKED, *where, f"there is no tick at {at} that came before it"))
        return found
