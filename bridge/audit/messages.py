"""What an audit remembers about messages while it reads the history: the undone ones, the dead ones, the tickets."""

from __future__ import annotations

from typing import NamedTuple

from bridge.audit.trail import NONE, Trail
from bridge.routing.ids import IdKey, Place

#: Returned fences that are remembered, at most.
GIVEN_BACK = 100_000


class NextAttempt(NamedTuple):
    """What the next row of an undone message may have."""

    #: The smallest and the largest attempt.
    least: int
    most: int
    #: The fence of its first delivery; 0: none since it began, or began again.
    first_fence: int


class Messages:
    """The state of each message by the entries and rows so far."""

    def __init__(self) -> None:
        #: Ticket -> what is known about it.
        self.trails: dict[str, Trail] = {}
        #: Undone message -> its ticket's trail; None: an entry that names no ticket.
        self.undone: dict[str, Trail | None] = {}
        #: Undone message with rows -> what its next row may have.
        self.attempts: dict[str, NextAttempt] = {}
        #: Undone messages that must not be left out.
        self.wanted: set[str] = set()
        #: Message that was delayed -> its place; None: it is not due, and others may overtake it.
        self.delayed: dict[str, Place | None] = {}
        #: Dead and refused messages that were not replayed.
        self.dead: set[str] = set()
        #: The latest fences that consumers gave back as never started -> ticket.
        self.given_back: dict[int, str] = {}
        #: The youngest entry that was passed in.
        self.entries_to: IdKey = NONE

    def trail(self, ticket: str) -> Trail:
        """The trail of a ticket, made when it is new."""
        trail = self.trails.get(ticket)
        if trail is None:
            trail = self.trails[ticket] = Trail(ticket)
        return trail

    def ticket_of(self, id_: str) -> str:
        """The ticket of an undone message; '' when it is not known."""
        trail = self.undone.get(id_)
        return "" if trail is None else trail.name

    def is_put_off(self, id_: str) -> bool:
        """Whether the message is delayed, and no row said yet that it is due."""
        return self.delayed.get(id_, NONE) is None

    def finish(self, id_: str) -> None:
        """The message has its last row."""
        trail = self.undone.pop(id_, None)
        self.attempts.pop(id_, None)
        self.wanted.discard(id_)
        if self.delayed.pop(id_, None) is not None and trail is not None and trail.late is not None:
            trail.late.pop(id_, None)
        if trail is not None and trail.replayed is not None:
            trail.replayed.pop(id_, None)

    def give_back(self, fence: int, ticket: str) -> None:
        """A consumer gave this fence back as never started."""
        self.given_back[fence] = ticket
        while len(self.given_back) > GIVEN_BACK:
            del self.given_back[next(iter(self.given_back))]

    def forget(self) -> None:
        """Forgets the messages, because rows are missing."""
        self.undone.clear()
        self.attempts.clear()
        self.wanted.clear()
        self.delayed.clear()
        self.dead.clear()
        for trail in self.trails.values():
            trail.forget_messages()
