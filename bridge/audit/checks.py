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
        "Every entry that the group has read is pending, or the history has its last row (done, dropped, dead, "
        "refused, left out, skipped or cancelled).",
        "It does not see entries that are older than the history, or that were deleted from the stream before the "
        "audit read them and have no row.",
    )
    REORDERED = (
        "reordered",
        "No message of a ticket ended, well or badly, while an older one of the ticket was undone, or after a "
        "younger one had run. A replayed message may end after younger ones that were dispatched before the "
        "replay. Messages dispatched later end after it.",
        "An execution that was cut off (`lost`) has no times, so it is not checked. Where the history has dropped "
        "rows, a message that is older than the history may have been delayed, or replayed. So it may end after "
        "younger ones unseen, and others may overtake it unseen until it has run.",
    )
    EARLY = (
        "early",
        "No message that others overtake (`delayed`) went out before its row `due`, and no such row was written before "
        "the time that it names.",
        "A message for which its ticket waits (`hold`) has no row when it is put off. A row does not say whether an "
        "operator asked for its time (`bridge delayed now`, `reschedule`). The server's clock tells when a message is "
        "due, and one second is allowed; after the clock was set back, a message may look early.",
    )
    OVERLAPPED = (
        "overlapped",
        "Each execution of a ticket began after the end of the one before it: exactly on one host, and within the "
        "clock skew on two.",
        "It compares the clocks of the workers' machines. What follows the `@` in the name of a worker stands for its "
        "machine: if two machines have the same there, their clocks are compared as one, and may look like an "
        "overlap. A clock that is set back looks like an overlap. An "
        "execution that was cut off has no times. One whose process was frozen past its lease is `stale`: its "
        "effects were refused, and it is counted apart.",
    )
    FENCES = (
        "fences",
        "The fences of a ticket's deliveries grow from each delivery to the next.",
        "A fence of a dispatch that had no outcome is not in the history.",
    )
    ATTEMPTS = (
        "attempts",
        "The attempts of a message count from 1, and each follows from the row before it: one more after `failed`, "
        "the same or one more after `lost`, the same after `returned` and `nacked`, 1 after `replayed`.",
        "The history does not say whether an attempt that was lost with a whole machine should have been charged.",
    )
    REPEATED = (
        "repeated",
        "A message that is done, dropped, dead, refused, left out, skipped or cancelled is not delivered again "
        "unless it was replayed. So each second execution has a failed, nacked, lost, returned or replayed row "
        "before it. A message that was given back did not run.",
        "Of an execution whose process died together with its consumer's lease, only `lost` is known. It cannot "
        "know how often the task's code had started.",
    )
    DISAGREEING = (
        "disagreeing",
        "The history agrees with the lane: a message that is done or dead is neither pending nor in a ticket's "
        "record, each dead letter has its row, and each row names the ticket that its entry names.",
        "It cannot see that an operator dropped a dead letter. It cannot compare the ticket of an entry that was "
        "deleted from the stream.",
    )
    WITHHELD = (
        "withheld",
        "With --wanted: no message was left out that the lane wants, by its filter and its tasks as they are now.",
        "It does not see entries that had left the stream before the audit read them. After a change of the filter or "
        "of the tasks it names messages that were not wanted before.",
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
