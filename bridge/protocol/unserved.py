"""Tasks that waiting messages need and that no live consumer can run, or whose circuit breaker is open.

The leader notes them. Commands and the next leader read the notes.

A lane's hash (`bridge.routing.keys.LaneKeys.unserved`), task -> JSON. `bridge.leader.duties.unknown_tasks` writes it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from dataclasses import fields as dataclass_fields
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from bridge.protocol.unreadable import read_all

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bridge.protocol.unreadable import Skip

#: The largest number that a note may have.
LARGEST = 2**53


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

    @property
    def why(self) -> str:
        """What stands in the way."""
        if self.breaker:
            return self.breaker
        if self.queue is not None:
            return f"it is routed to the queue {self.queue!r}, which no consumer serves"
        return "the consumers that can run it are away" if self.known else "no consumer has this task"


_MEMBERS = tuple(field.name for field in dataclass_fields(UnservedTask) if field.name != "task")


class Note(NamedTuple):
    """What the leader notes of one task."""

    task: UnservedTask
    #: What the task's clock shows, for the next leader.
    waited_s: float

    def text(self) -> bytes:
        """The JSON for the lane's hash."""
        fields: dict[str, Any] = asdict(self.task)
        del fields["task"]
        return orjson.dumps({**fields, "waited_s": self.waited_s})


def read_note(name: bytes, text: bytes) -> Note:
    """One field of the hash, and its value. Members of a later version of this format are left out."""
    found = orjson.loads(text)
    fields = {name: found[name] for name in (*_MEMBERS, "waited_s") if name in found}
    waited_s = float(fields.pop("waited_s"))
    fields["since_ms"] = int(fields["since_ms"])
    task = UnservedTask(name.decode(), **fields)
    numbers = (task.tickets, task.messages, 0 if task.dead_in_ms is None else task.dead_in_ms)
    if not all(isinstance(one, int | float) for one in numbers) or not isinstance(task.breaker, str):
        raise TypeError("a value of another type")
    if not isinstance(task.queue, str | None):
        raise TypeError("a value of another type")
    if max(map(abs, (task.since_ms, *numbers))) > LARGEST:
        # The leader writes it again, and orjson writes no number of more than 64 bits.
        raise ValueError("a number that no clock and no lane shows")
    return Note(task, waited_s)


def read_unserved(key: str, found: Mapping[bytes, bytes], skip: Skip) -> tuple[UnservedTask, ...]:
    """What the reply of HGETALL says, by task. ``skip`` gets what cannot be read, as of `read_all`."""
    notes = read_all(key, found, read_note, skip).values()
    return tuple(sorted((note.task for note in notes), key=lambda one: one.task))
