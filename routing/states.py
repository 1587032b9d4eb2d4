"""The states of a message and the edges between them (invariant I1: an entry is in exactly one).

::

    UNREAD --read--> WAITING --dispatch--> IN_FLIGHT --done--> DONE
                     |  ^  ^                |  |  |
                     |  |  +----give back---+  |  +--fail, attempts left--> AWAITING_RETRY --due--> IN_FLIGHT
                     |  +-------re-route-------+                                 |
                     |                         +--fail, no attempt left--> DEAD <+ (never by itself)
                     +--refuse (broken message)--> DEAD

Each state can be told from Redis alone:

- UNREAD: after the group's last delivered id.
- WAITING: pending under the master's name, and not the first message of a record.
- IN_FLIGHT: pending under a consumer's name; named by a ticket record with a fence.
- AWAITING_RETRY: pending under the master's name; named by a ticket record without a fence.
- DEAD, DONE: not pending; DEAD has an entry in the dead letter stream.
"""

from __future__ import annotations

from enum import Enum


class State(Enum):
    """Where a message is; the value is the word that `bridge ticket show` prints."""

    UNREAD = "unread"
    WAITING = "waiting"
    IN_FLIGHT = "in flight"
    AWAITING_RETRY = "awaiting retry"
    DEAD = "dead"
    DONE = "done"


#: edge name -> (from, to). Tests walk this table against the real scripts.
EDGES: dict[str, tuple[State, State]] = {
    "read": (State.UNREAD, State.WAITING),
    "dispatch": (State.WAITING, State.IN_FLIGHT),
    "retry": (State.AWAITING_RETRY, State.IN_FLIGHT),
    "done": (State.IN_FLIGHT, State.DONE),
    "fail": (State.IN_FLIGHT, State.AWAITING_RETRY),
    "give up": (State.IN_FLIGHT, State.DEAD),
    "give back": (State.IN_FLIGHT, State.WAITING),
    "re-route": (State.IN_FLIGHT, State.AWAITING_RETRY),
    "refuse": (State.WAITING, State.DEAD),
}
