"""The forms in which pending messages are shown: a message, its state, a page of them, and which are wanted."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any


class PendingState(Enum):
    """The state of a pending message. The value is the text that is shown."""

    WAITING = "waiting"
    IN_FLIGHT = "in flight"
    AWAITING_RETRY = "awaiting retry"
    PARKED = "parked"
    #: It is not due yet: others overtake it, or its ticket waits for it (or will).
    DELAYED = "delayed"
    #: Pending under a name that no record explains. The leader claims it back.
    STRAY = "stray"


@dataclass(frozen=True)
class PendingMessage:
    """One pending message. ``ticket_id`` is None where its entry is gone, or names no valid one."""

    message_id: str
    #: The name in the group under which it is pending.
    consumer: str
    ticket_id: str | None
    state: PendingState
    #: Since it was last delivered or claimed, as XPENDING has it.
    idle_ms: int
    #: How often it was delivered by XREADGROUP, or claimed without JUSTID, as XPENDING has it. The bridge's own claims
    #: do not count there: attempts are in the ticket's record.
    deliveries: int
    #: The attempt that runs, or comes next; None: it has had none.
    attempt: int | None = None


@dataclass(frozen=True)
class PendingPage:
    """Messages in the order of their ids, the partitions one after the other. ``next``: where to go on (``--after``);
    None: these are all. ``looked_at``: pending messages that were read for them.
    """

    messages: tuple[PendingMessage, ...]
    next: str | None
    looked_at: int

    def document(self) -> dict[str, Any]:
        """All of it, for JSON."""
        return {
            "messages": [{**asdict(one), "state": one.state.value} for one in self.messages],
            "next": self.next,
            "looked_at": self.looked_at,
        }


@dataclass(frozen=True)
class Wanted:
    """Which messages are wanted. None: any."""

    idle_ms: int | None = None
    consumer: str | None = None
    ticket: str | None = None
    state: PendingState | None = None

    def has(self, message: PendingMessage) -> bool:
        """Whether ``message`` has the ticket and the state that are wanted. The server compares the rest."""
        return (self.ticket is None or message.ticket_id == self.ticket) and self.state in (None, message.state)
