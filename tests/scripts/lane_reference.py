"""The state that a lane must have, in plain Python: states, records, queues, effects. It uses nothing of `bridge`.

Whatever a script is asked to do is done to the reference, too, along the edges of `bridge.routing.states`; then the
server must be what the reference says, in every key.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from bridge.routing import records
from bridge.routing.records import Record
from bridge.routing.states import EDGES, State


@dataclass
class Execution:
    """A run that a worker popped: it goes on with the message at ``at``, whatever became of its fence."""

    ticket: str
    ids: list[str]
    fence: int
    consumer: str
    incarnation: str
    at: int = 0

    @property
    def over(self) -> bool:
        return self.at >= len(self.ids)

    @property
    def current(self) -> tuple[str, int]:
        """The message that runs, and its fence."""
        return self.ids[self.at], self.fence + self.at


@dataclass
class Consumer:
    """One incarnation of a consumer."""

    name: str
    incarnation: str
    registration: bytes
    alive: bool = True


@dataclass
class Reference:
    """What must be on the server."""

    order: list[str] = field(default_factory=list)
    ticket_of: dict[str, str] = field(default_factory=dict)
    state: dict[str, State] = field(default_factory=dict)
    #: Who has it in the pending list.
    owner: dict[str, str] = field(default_factory=dict)
    records: dict[str, str] = field(default_factory=dict)
    queues: dict[str, list[str]] = field(default_factory=dict)
    #: Ids of the entries of the outcome stream that are not settled.
    outcomes: list[str] = field(default_factory=list)
    dead: list[str] = field(default_factory=list)
    effects: dict[str, list[str]] = field(default_factory=dict)
    applied: dict[str, int] = field(default_factory=dict)
    #: The largest fence that each ticket had.
    newest: dict[str, int] = field(default_factory=dict)
    #: Messages whose success was written under the current fence.
    won: set[str] = field(default_factory=set)

    def move(self, id_: str, edge: str, owner: str = "") -> None:
        """Takes an edge. AssertionError when the message is not where it begins, or when the end is not earned (I3)."""
        before, after = EDGES[edge]
        assert self.state[id_] is before, f"{id_}: '{edge}' begins at {before}, and it is {self.state[id_]}"
        assert after is not State.DONE or id_ in self.won, f"{id_} is done, and its success was never written"
        self.state[id_] = after
        if owner:
            self.owner[id_] = owner
        else:
            self.owner.pop(id_, None)

    def undone(self, ticket: str) -> list[str]:
        """What was read of the ticket and is not over, oldest first."""
        over = (State.DONE, State.DEAD, State.UNREAD)
        return [id_ for id_ in self.order if self.ticket_of[id_] == ticket and self.state[id_] not in over]

    def record(self, ticket: str) -> Record | None:
        found = self.records.get(ticket)
        return records.parse(found) if found else None

    def in_flight(self) -> list[str]:
        """Tickets that have a run in flight."""
        return [ticket for ticket, found in self.records.items() if records.parse(found).in_flight]
