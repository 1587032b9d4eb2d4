"""What was found of one ticket: where its messages are, and what they wait for. No I/O."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from bridge.inspect.delayed import DelayedMessage
from bridge.inspect.scans import NOTHING, Scan
from bridge.inspect.ticket_state import TicketState
from bridge.protocol.dead_letters import Letter
from bridge.routing import records
from bridge.routing.history import What


@dataclass(frozen=True)
class InFlight:
    """The ticket's run. Times in ms by the server's clock."""

    consumer: str
    incarnation: str
    message_ids: tuple[str, ...]
    attempt: int
    #: The first message's fence. The others have the next numbers.
    fence: int
    since_ms: int
    consumer_alive: bool
    lease_ms: int
    #: Why the ticket will be parked when this run is over. None: it will not.
    park_reason: str | None = None


@dataclass(frozen=True)
class Retry:
    """The retry that the ticket's oldest message awaits. ``attempt``: its number. ``due_in_ms`` < 0: overdue."""

    message_id: str
    attempt: int
    max_attempts: int
    due_in_ms: int
    last_error: str
    #: It is delayed, and its ticket waits for it: no attempt was made.
    is_held: bool = False


@dataclass(frozen=True)
class Parked:
    """The ticket stands still until an operator releases it. ``since_ms``: for how long it has been parked."""

    reason: str
    since_ms: int
    #: Its oldest message, if that was begun, and the number of its next attempt.
    message_id: str | None
    attempt: int


@dataclass(frozen=True)
class TicketFacts:
    """What was found of one ticket."""

    ticket: str
    #: None: nothing is known of it.
    state: TicketState | None
    why: str
    leader: str | None
    consumers_alive: int
    in_flight: InFlight | None
    retry: Retry | None
    parked: Parked | None
    #: Consumers that died while its oldest message may have been running. The message may be the cause.
    losses: int
    #: The attempt of its oldest message that was cut off half way, if one was.
    lost: records.LostAttempt | None
    #: Whether the consumer group exists.
    has_group: bool
    waiting: Scan
    unread: Scan
    letters: tuple[Letter, ...]
    #: Its delayed messages, as far as they were searched, and the next of them.
    delayed: Scan = NOTHING
    next_delayed: DelayedMessage | None = None
    #: When that one is due, in ms from now.
    next_due_in_ms: int | None = None
    #: Why no live consumer can run its oldest message. Empty: one can, as far as is known.
    nobody_runs: str = ""
    #: Why its lane reads nothing new. Empty: it reads on. Only asked if the oldest message is unread.
    reading_stop: str = ""
    #: The newest message of the ticket that is neither pending nor unread. Only searched for if nothing else was found.
    last_done: str | None = None
    #: What the history says of that one; None: it has no row of it.
    last_what: What | None = None

    def document(self) -> dict[str, Any]:
        """All of it, for JSON."""
        return {
            "ticket_id": self.ticket,
            "state": None if self.state is None else self.state.value,
            "why": self.why,
            "leader": self.leader,
            "consumers_alive": self.consumers_alive,
            "in_flight": None if self.in_flight is None else asdict(self.in_flight),
            "retry": None if self.retry is None else asdict(self.retry),
            "parked": None if self.parked is None else asdict(self.parked),
            "losses": self.losses,
            "lost_attempt": None if self.lost is None else asdict(self.lost),
            "waiting": asdict(self.waiting),
            "unread": asdict(self.unread),
            "delayed": {
                **asdict(self.delayed),
                "next_due_in_ms": self.next_due_in_ms,
                "mode": None if self.next_delayed is None else self.next_delayed.mode.value,
            },
            "dead": [letter.summary() for letter in self.letters],
            "nobody_runs": self.nobody_runs,
            "last_done": self.last_done,
            "last_what": None if self.last_what is None else self.last_what.value,
        }
