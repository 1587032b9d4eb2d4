"""The checks of an audit. Each has a name, and says what it proves and what it cannot prove."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any


class Check(Enum):
    """A check. ``proves`` and ``cannot`` are sentences for people."""

    proves: str
    cannot: str

    def __new__(cls, name: str, proves: str, cannot: str) -> Check:
        """A member whose value is ``name``."""
        made = object.__new__(cls)
        made._value_ = name
        made.proves = proves
        made.cannot = cannot
        return made

    LOST = (
        "lost",
        "Every entry that the group has read is pending, or the history has its last row (done, dead, refused).",
        "It knows nothing of entries that are older than the history reaches back, nor of those that were deleted"
        " from the stream before the audit read it and that no row names.",
    )
    REORDERED = (
        "reordered",
        "No message of a ticket ran to an end, well or badly, while an older one of the ticket was undone, or "
        "after a younger one had run. A message that was replayed from the dead letters may be late; nothing of "
        "its ticket that was dispatched after its replay may pass it.",
        "It goes by what was settled. Of an execution that was cut off (`lost`) there is no time, so it is not "
        "judged. Where rows of replays were dropped from the history, a message that is older than the history "
        "may be late unseen.",
    )
    OVERLAPPED = (
        "overlapped",
        "Each execution of a ticket began after the one before it had ended: exactly on one host, to within the "
        "clock skew between two.",
        "It compares the clocks of the workers' machines: a clock that is set back in between looks like an "
        "overlap. An execution that was cut off has no times, and one whose process was frozen past its lease is "
        "`stale`: its effects were refused, it is counted apart.",
    )
    FENCES = (
        "fences",
        "The fences of a ticket's deliveries grow from each delivery to the next.",
        "A fence that was given out and never heard of again is not in the history.",
    )
    ATTEMPTS = (
        "attempts",
        "The attempts of a message count from 1, and each follows from the row before it: one more after "
        "`failed`, the same or one more after `lost`, the same after `returned`, 1 after `replayed`.",
        "Whether an attempt that was lost with a whole machine ought to have been charged is not in the history.",
    )
    REPEATED = (
        "repeated",
        "A message that is done, dead or refused is not delivered again, unless it was replayed: so each second "
        "execution has a failed, lost, returned or replayed row before it. And what was given back as never begun "
        "has not run.",
        "An execution whose process vanished together with its consumer's lease is known as `lost` only: how "
        "often its code had really begun, nobody can know.",
    )
    DISAGREEING = (
        "disagreeing",
        "The history agrees with the lane: what is done or dead is neither pending nor in a ticket's record, each"
        " dead letter has its row, and each row names the ticket that its entry names.",
        "Dead letters that an operator dropped are not missed, and entries that were deleted from the stream "
        "cannot be asked for their ticket.",
    )


@dataclass(frozen=True, slots=True)
class Finding:
    """One violation. ``ticket``: '' where it is not known."""

    check: Check
    ticket: str
    message_id: str
    text: str

    def document(self) -> dict[str, Any]:
        """For JSON."""
        return {"check": self.check.value, "ticket": self.ticket, "message_id": self.message_id, "text": self.text}
