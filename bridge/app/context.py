"""``self.ticket``: what a task may know of the message that it handles."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bridge.app.effects import Effects

if TYPE_CHECKING:
    from collections.abc import Callable

    from bridge.routing.effects import Effect
    from bridge.routing.records import LostAttempt

#: Of every message that has none.
_SEALED = Effects()


class TicketContext:
    """One delivery of one message.

    ``id``: the ticket; ``message_id``: the stream id; ``attempt``: 1, 2, …; ``fence``: an integer that grows with
    every dispatch of a message of this ticket: a store outside Redis compares it, and refuses one smaller than it saw.
    ``lost``: the last attempt of this message, when that was cut off half way (its worker died, its lease ended, its
    time limit struck); None otherwise.
    """

    #: Whether a push is behind it; a task that is called as a function may have a ticket, too.
    pushed = True

    __slots__ = (
        "_commit",
        "_effects",
        "attempt",
        "body_reached",
        "committed",
        "entered",
        "fence",
        "gave_up",
        "id",
        "lease_holds",
        "lease_was_over",
        "lost",
        "max_attempts",
        "message_id",
        "rollback_failed",
        "rolled_back",
        "started_us",
    )

    def __init__(
        self,
        id_: str,
        message_id: str,
        attempt: int,
        fence: int,
        max_attempts: int,
        commit: Callable[[TicketContext], None],
        lease_holds: Callable[[], bool],
        lost: LostAttempt | None = None,
    ) -> None:
        self.id = id_
        self.message_id = message_id
        self.attempt = attempt
        self.fence = fence
        self.max_attempts = max_attempts
        self.lost = lost
        #: When this attempt began, Unix time in us; 0: not begun.
        self.started_us = 0
        #: Whether the task's rollback of the lost attempt raised: it is still owed.
        self.rollback_failed = False
        #: Whether it was called.
        self.rolled_back = False
        #: Whether the task was called: a task that calls itself, or another one, is called directly then.
        self.entered = False
        #: Whether the calls of its base classes, if it has any, have come to its body.
        self.body_reached = False
        #: Whether the lease that the message was dispatched under still holds.
        self.lease_holds = lease_holds
        #: Whether it was over when the task's body was about to be entered, which it then was not.
        self.lease_was_over = False
        #: Whether the task said that no attempt will do better: the message is dead, whatever attempts are left.
        self.gave_up = False
        #: Whether effects and success were written before Celery stored the result.
        self.committed = False
        self._effects: Effects | None = None
        self._commit = commit

    @property
    def effects(self) -> Effects:
        """Redis commands to apply with the success of this message, all or none."""
        if self._effects is None:
            self._effects = Effects()
        return self._effects

    @property
    def recorded(self) -> Effects | None:
        """The effects, if any were recorded."""
        return self._effects if self._effects is not None and len(self._effects) else None

    def seal(self) -> tuple[Effect, ...]:
        """The effects, which are written now with the success; what comes later is refused."""
        if self._effects is None:
            self._effects = _SEALED
        return self._effects.seal()

    @property
    def is_last_attempt(self) -> bool:
        return self.attempt >= self.max_attempts

    def commit(self) -> None:
        """Writes effects and success now, before Celery stores the result that somebody may wait for."""
        self._commit(self)

    def __repr__(self) -> str:
        return f"<ticket {self.id!r} message {self.message_id} attempt {self.attempt} fence {self.fence}>"
