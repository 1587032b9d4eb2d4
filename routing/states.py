"""The states of a message and the edges between them (invariant I1: an entry is in exactly one).

::

    UNREAD --read--> WAITING --dispatch--> IN_FLIGHT --done--> DONE
                     ^  |  ^                | |  |  |
                     |  |  +---give back----+ |  |  +--fail, attempts left----> AWAITING_RETRY --retry--> IN_FLIGHT
                     |  |  +---rest-----------+  +-----give back again--------> AWAITING_RETRY
                     |  |                        +-----re-route---------------> AWAITING_RETRY --condemn--> DEAD
                     |  |                        +-----give up: no attempt left-----------------------------> DEAD
                     |  +---refuse (broken message)---------------------------------------------------------> DEAD
                     +---replay (an operator's order)-------------------------------------------------------- DEAD

    WAITING <--release, park--> AWAITING_RETRY: the ticket of a message that was begun stands still, and goes on.

Each state can be told from Redis alone:

- UNREAD: after the group's last delivered id.
- WAITING: pending under the master's name, or under that of a parked ticket, and not named by a record.
- IN_FLIGHT: pending under a consumer's name; named by a ticket record with a fence.
- AWAITING_RETRY: pending under the master's name; named by a ticket record without a fence. What it has behind it is
  in that record: attempts, losses, an attempt that was cut off.
- DEAD, DONE: not pending; DEAD has an entry in the dead letter stream.

The record of a parked ticket keeps what its oldest message has behind it; that message is WAITING, like the others.
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
    # Of a message that had a delivery that counts: its record must outlive the leader.
    "give back again": (State.IN_FLIGHT, State.AWAITING_RETRY),
    # What is behind a message that failed, was given back or re-routed, in its run.
    "rest": (State.IN_FLIGHT, State.WAITING),
    "re-route": (State.IN_FLIGHT, State.AWAITING_RETRY),
    # Its consumers ended with it too often, or its entry is gone.
    "condemn": (State.AWAITING_RETRY, State.DEAD),
    "refuse": (State.WAITING, State.DEAD),
    "park": (State.AWAITING_RETRY, State.WAITING),
    "release": (State.WAITING, State.AWAITING_RETRY),
    "replay": (State.DEAD, State.WAITING),
}
