"""Tasks that waiting messages need and that no live consumer can run, or whose circuit breaker is open.

The leader notes them. Commands and the next leader read the notes.

A lane's hash (`bridge.routing.keys.LaneKeys.unserved`), task -> JSON. `bridge.leader.duties.unknown_tasks` writes it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import orjson

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class UnservedTask:
    """A task that waiting messages need. ``messages``: at least so many; ``since_ms``: Unix time in ms.

    ``known``: whether a consumer could run it lately; ``queue``: the Celery queue that it is routed to, where consumers
    know it that do not serve that queue; ``dead_in_ms``: when the one that waits longest becomes a dead letter.
    """

    task: str
    tickets: int
    messages: int
    since_ms: int
    known: bool
    queue: str | None
    dead_in_ms: int | None
    #: Why its circuit breaker is open; '': it is not.
    breaker: str = ""

    def text(self, waited_s: float) -> bytes:
        """The JSON for the lane's hash. ``waited_s``: what the task's clock shows, for the next leader."""
        told: dict[str, Any] = asdict(self)
        del told["task"]
        return orjson.dumps({**told, "waited_s": waited_s})

    @property
    def why(self) -> str:
        """What stands in the way."""
        if self.breaker:
            return self.breaker
        if self.queue is not None:
            return f"it is routed to the queue {self.queue!r}, which no consumer serves"
        return "the consumers that can run it are away" if self.known else "no consumer has this task"


def read_unserved(found: Mapping[bytes, bytes]) -> tuple[UnservedTask, ...]:
    """What the reply of HGETALL says, by task."""
    tasks = []
    for name, text in found.items():
        told = orjson.loads(text)
        del told["waited_s"]
        tasks.append(UnservedTask(name.decode(), **told))
    return tuple(sorted(tasks, key=lambda one: one.task))
