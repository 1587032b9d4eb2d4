"""The follow-ups of the demo: delayed messages that a task pushes for some incidents, and what the ledger says of them.

Each of these incidents gets two, when its first event is handled: the second one is pushed before the first one, and is
due later. The tasks that push and handle them are in `tasks.incidents`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median
from zlib import crc32

from bridge.stack.demo.ledger import Kind, Ledger

#: Environment variable with the seconds after which the first one is due; without it there are none.
FOLLOW_UP_S = "BRIDGE_FOLLOW_UP_S"
#: One incident of so many has follow-ups.
EACH = 50
#: Their numbers in the ledger, in the order in which they are due; events have 1, 2, ….
FIRST, SECOND = -1, -2
#: By how much one clock may be coarser than another, in seconds.
COARSE_S = 0.005


@dataclass(frozen=True)
class FollowUps:
    """What became of the delayed messages."""

    wanted: int
    #: Those that were handled.
    came: int
    #: Those that began before they were due.
    early: int
    #: Incidents whose second one was handled before the first one.
    reordered: int
    #: How long after they were due they began: the median and the longest, in seconds. The handling of the event that
    #: pushed them is included.
    median_late_s: float
    max_late_s: float

    @property
    def ok(self) -> bool:
        """Whether all came, in time and in order."""
        return self.came == self.wanted and not self.early and not self.reordered


def has_follow_ups(ticket: str) -> bool:
    """Whether an incident gets follow-ups."""
    return crc32(ticket.encode()) % EACH == 0


def judge_follow_ups(ledger: Ledger, tickets: Iterable[str], first_s: float) -> FollowUps:
    """What the ledger says. ``first_s``: seconds after which the first one is due, and again until the second one."""
    pushed: dict[str, int] = {}
    began: dict[tuple[str, int], int] = {}
    done: dict[tuple[str, int], int] = {}
    for record in ledger.records:
        if record.seq == 1 and record.kind is Kind.START:
            pushed[record.ticket] = min(record.at_ns, pushed.get(record.ticket, record.at_ns))
        elif record.seq in (FIRST, SECOND):
            found = began if record.kind is Kind.START else done
            if record.kind is not Kind.FAILED:
                key = (record.ticket, record.seq)
                found[key] = min(record.at_ns, found.get(key, record.at_ns))
    expected = [ticket for ticket in tickets if has_follow_ups(ticket)]
    late = [
        (began[ticket, number] - pushed[ticket]) / 1e9 + number * first_s  # the numbers are below 0
        for ticket in expected
        for number in (FIRST, SECOND)
        if (ticket, number) in done and (ticket, number) in began and ticket in pushed
    ]
    both = [ticket for ticket in expected if (ticket, FIRST) in done and (ticket, SECOND) in began]
    return FollowUps(
        wanted=2 * len(expected),
        came=len(late),
        early=sum(one < -COARSE_S for one in late),
        reordered=sum(began[ticket, SECOND] < done[ticket, FIRST] for ticket in both),
        median_late_s=max(0.0, median(late)) if late else 0.0,
        max_late_s=max(0.0, *late) if late else 0.0,
    )
