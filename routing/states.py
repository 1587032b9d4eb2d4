"""The states of a message and the edges between them (invariant I1: an entry is in exactly one).

::

    UNREAD --read--> WAITING --dispatch--> IN_FLIGHT --done--> DONE
                     ^  |  ^                | |  |  |
                     |  |  +---give back----+ |  |  +--fail, attempts left----> AWAITING_RETRY --retry--> IN_FLIGHT
                     |  |  +-give back others-+  +-----give back again--------> AWAITING_RETRY
                     |  |                        +-----re-route---------------> AWAITING_RETRY --give up--> DEAD
                     |  |                        +-----give up: no attempt left-----------------------------> DEAD
                     |  +---refuse (broken message, or expired)---------------------------------------------> DEAD
                     +---replay (an operator's order)-------------------------------------------------------- DEAD

    AWAITING_RETRY --park--> WAITING --release--> AWAITING_RETRY: for the message that was begun, when its ticket is
    parked and released.

    WAITING --delay--> DELAYED --due--> WAITING: a message that others overtake until it is due.
    WAITING --hold--> AWAITING_RETRY: the oldest message of its ticket, until it is due.
    DELAYED | WAITING | AWAITING_RETRY --cancel--> DONE: an operator's order, for a message that is not due.

Redis alone shows the state of each message:

- UNREAD: after the group's last delivered id.
- WAITING: pending under the master's name, or under that of a parked ticket, and not named by a record.
- DELAYED: pending under the master's name for delayed messages; a member of the sorted set `delayed`.
- IN_FLIGHT: pending under a consumer's name; named by a ticket record with a fence.
- AWAITING_RETRY: pending under the master's name; named by a ticket record without a fence. The record has its
  attempts, its losses, and the attempt that was cut off.
- DEAD, DONE: not pending; DEAD has an entry in the dead letter stream.

The record of a parked ticket keeps the attempts of its oldest message. That message is WAITING, like the others.
"""

from __future__ import annotations

from enum import Enum


class State(Enum):
    """The state of a message. The value is what `bridge ticket show` prints."""

    UNREAD = "unread"
    WAITING = "waiting"
    DELAYED = "delayed"
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
    # The message had a delivery that counts before: its record must outlive the leader.
    "give back again": (State.IN_FLIGHT, State.AWAITING_RETRY),
    # The later messages of a run, when its first one failed, was given back or re-routed.
    "give back others": (State.IN_FLIGHT, State.WAITING),
    "re-route": (State.IN_FLIGHT, State.AWAITING_RETRY),
    # Its consumers ended with it too often, or its entry is gone. No further attempt.
    "give up retry": (State.AWAITING_RETRY, State.DEAD),
    "refuse": (State.WAITING, State.DEAD),
    "park": (State.AWAITING_RETRY, State.WAITING),
    "release": (State.WAITING, State.AWAITING_RETRY),
    "replay": (State.DEAD, State.WAITING),
    "delay": (State.WAITING, State.DELAYED),
    "due": (State.DELAYED, State.WAITING),
    # Its ticket waits for it.
    "hold": (State.WAITING, State.AWAITING_RETRY),
    "cancel": (State.DELAYED, State.DONE),
    "cancel held": (State.WAITING, State.DONE),
    "cancel first held": (State.AWAITING_RETRY, State.DONE),
}
