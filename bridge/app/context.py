"""``self.ticket``: the message that a task handles."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bridge.app.effects import Effects
from bridge.app.state import NO_STATE, StateChanges, StateDict
from bridge.routing.errors import PayloadError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from bridge.app.refusing import Drop, Nack
    from bridge.routing.effects import Effect
    from bridge.routing.records import LostAttempt
    from bridge.settings.lane import LaneSettings

#: The sealed effects of every message that recorded none.
_SEALED = Effects()


class TicketContext:
    """One delivery of one message.

    - ``id``: the ticket.
    - ``message_id``: what `push` returned: the stream id, and the partition where the stream is split.
    - ``attempt``: 1, 2, …
    - ``fence``: an integer that grows with every dispatch of a message of this ticket. A store outside Redis compares
      it, and refuses a fence smaller than the largest one that it saw.
    - ``lost``: the last attempt of this message, if it was cut off half way (its worker died, its lease ended, or its
      time limit struck); else None.
    - ``state``: what the ticket's tasks keep between messages (`bridge.app.state`), for a task with `bridge_state`.
    - ``subscription``: the name of the logical consumer for which the message is handled.
    """

    #: Whether this is a pushed message. A task that is called as a function may have a ticket too.
    pushed = True

    __slots__ = (
        "_effects",
        "_home",
        "_state",
        "_state_changes",
        "_state_key",
        "_write_success",
        "asked_retry",
        "attempt",
        "body_end",
        "body_reached",
        "deadline",
        "decided",
        "dropped",
        "entered",
        "fence",
        "gave_up",
        "id",
        "lane",
        "lease_holds",
        "lease_was_over",
        "lost",
        "max_attempts",
        "message_id",
        "nacked",
        "owes_rollback",
        "rolling_back",
        "started_us",
        "taken_over",
        "written",
    )

    def __init__(
        self,
        id_: str,
        message_id: str,
        attempt: int,
        fence: int,
        max_attempts: int,
        write_success: Callable[[TicketContext], None],
        lease_holds: Callable[[], bool],
        lost: LostAttempt | None = None,
        lane: LaneSettings | None = None,
        home: Callable[[], str] | None = None,
    ) -> None:
        self.id = id_
        #: The lane in which the message is handled; None: the settings of the app are wrong (a plain call needs none).
        self.lane = lane
        self.message_id = message_id
        self.attempt = attempt
        self.fence = fence
        self.max_attempts = max_attempts
        self.lost = lost
        #: When this attempt started, Unix time in us; 0: not started.
        self.started_us = 0
        #: Whether the rollback of the lost attempt has not returned yet. If this attempt ends before that, the next one
        #: owes it.
        self.owes_rollback = lost is not None
        #: Whether the rollback runs now. It may call its task.
        self.rolling_back = False
        #: Whether the task was called. A second call within it is a direct call, for example of the task by itself.
        self.entered = False
        #: Whether the ``__call__`` methods of the base classes have reached the task's body.
        self.body_reached = False
        #: (exception, result) of the body, if it ran before Celery's tracer called the task: the call then ends so.
        self.body_end: tuple[Exception | None, Any] | None = None
        self._home = home
        #: Returns whether the lease that the message was dispatched under still holds.
        self.lease_holds = lease_holds
        #: Whether the lease was over just before the task's body. Then the body did not run.
        self.lease_was_over = False
        #: Whether the attempt failed after its lease, or its success came under a stale fence. It is void.
        self.taken_over = False
        #: Whether no further attempt can help: the message is dead, even if attempts are left.
        self.gave_up = False
        #: When the task has run too long, by the monotonic clock; None: the message has no limit of its own.
        self.deadline: float | None = None
        #: The `bridge.Drop` by which the task dropped the message, or the `bridge.Nack` without a charge by which it
        #: refused it.
        self.dropped: Drop | None = None
        self.nacked: Nack | None = None
        #: The retry that the task asked for by ``retry(throw=False)``. Its body goes on, and the message comes again.
        self.asked_retry: Exception | None = None
        #: The exception by which the task's part of the attempt ended; None: it has not ended so. An error that comes
        #: after it, as in storing the result, does not change what becomes of the message.
        self.decided: Exception | None = None
        #: Whether effects and success were written before Celery stored the result.
        self.written = False
        self._effects: Effects | None = None
        self._write_success = write_success
        #: The state, or why it cannot be read; None: the task has none.
        self._state: StateDict | PayloadError | None = None
        self._state_key = ""
        #: What the body did to the state; None: the body has not ended.
        self._state_changes: StateChanges | None = None

    @property
    def subscription(self) -> str:
        return self.lane.group if self.lane is not None else ""

    @property
    def home(self) -> str:
        """The stream under whose name stores outside of the lane keep the ticket: the oldest version of the whole
        stream (`bridge.app.state_home`). Raises `StaleFence` when the lease ends before Redis has answered.
        """
        if self._home is not None:
            return self._home()
        return self.lane.stream if self.lane is not None else ""

    @property
    def effects(self) -> Effects:
        """Redis commands to apply with the success of this message, all or none."""
        if self._effects is None:
            self._effects = Effects()
        return self._effects

    @property
    def state(self) -> StateDict | Any:
        """What the ticket's tasks keep between messages: a dict of JSON values. Changes are saved with the success.

        After the body it cannot be changed any more. Raises `PayloadError` when the task has no state, and when the
        stored one cannot be read.
        """
        if self._state is None:
            raise PayloadError(NO_STATE)
        if isinstance(self._state, PayloadError):
            raise self._state
        return self._state

    def give_state(self, key: str, stored: Mapping[bytes, bytes] | PayloadError) -> None:
        """``stored``: the fields of the hash ``key``, or why they cannot be read."""
        self._state_key = key
        try:
            self._state = stored if isinstance(stored, PayloadError) else StateDict(stored)
        except PayloadError as exc:
            self._state = exc

    def close_state(self) -> None:
        """The body has ended: finds what it did to the state. Raises `PayloadError` when that cannot be saved."""
        if isinstance(self._state, StateDict) and self._state_changes is None and self.lane is not None:
            self._state_changes = self._state.changes(
                self._state_key, most_bytes=self.lane.max_state, default_ttl_s=self.lane.state_ttl
            )
            self._state.end()

    def end_state(self) -> None:
        """The attempt failed, or the message was refused: nothing is saved, and the state cannot change any more."""
        if isinstance(self._state, StateDict):
            self._state.end()

    @property
    def saved_state(self) -> Mapping[bytes, bytes] | None:
        """The state after the success of this message, as it is stored; None: the task has none."""
        return None if self._state_changes is None else self._state_changes.stored

    @property
    def recorded(self) -> Effects | None:
        """The effects, if any were recorded."""
        return self._effects if self._effects is not None and len(self._effects) else None

    @property
    def has_changes(self) -> bool:
        """Whether the success writes anything beside the outcome: effects, or a changed state."""
        return self.recorded is not None or bool(self._state_changes is not None and self._state_changes.effects)

    def seal(self) -> tuple[Effect, ...]:
        """Closes the effects and returns them, to be written with the success. A later effect is refused.

        What the body did to the state is among them.
        """
        if self._effects is None:
            self._effects = _SEALED
        effects = self._effects.seal()
        return effects if self._state_changes is None else (*effects, *self._state_changes.effects)

    @property
    def is_last_attempt(self) -> bool:
        """Whether the message is dead if this attempt fails."""
        return self.attempt >= self.max_attempts

    def write_success(self) -> None:
        """Writes effects and success now, before Celery stores the result: a caller may be waiting for the result."""
        self._write_success(self)

    def __repr__(self) -> str:
        return f"<ticket {self.id!r} message {self.message_id} attempt {self.attempt} fence {self.fence}>"
