"""The state of a ticket: that of its oldest undone message, or that it stands still."""

from __future__ import annotations

from enum import Enum

from bridge.routing.states import State


class TicketState(Enum):
    """The state of a ticket, which follows from its undone messages if there are any. The value is the text that is
    shown.
    """

    UNREAD = State.UNREAD.value
    WAITING = State.WAITING.value
    IN_FLIGHT = State.IN_FLIGHT.value
    AWAITING_RETRY = State.AWAITING_RETRY.value
    #: Its undone messages are all delayed.
    DELAYED = "delayed"
    #: It stands still, with all of its messages, until an operator releases it.
    PARKED = "parked"
    #: Nothing of it is undone, and its last message is dead, or done.
    DEAD = State.DEAD.value
    DONE = State.DONE.value
