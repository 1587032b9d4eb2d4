"""The judge: pure functions over what was pushed, what ran, what came of it, and what was killed.

It trusts nothing that a peer says about itself, and it is the same for all of them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

#: (number of the ticket, number of the message within it)
Message = tuple[int, int]


class Execution(NamedTuple):
    """One run of a message's task. Times in ns of the monotonic clock; ``end`` is None where it never said its end."""

    pid: int
    message: Message
    start: int
    end: int | None


class Kill(NamedTuple):
    """What was killed, when, and which processes ended by it."""

    kind: str
    at: int
    pids: frozenset[int]


@dataclass
class Evidence:
    """``effects``: number of a ticket -> numbers of its messages in the order in which their effects came."""

    pushed: dict[Message, int] = field(default_factory=dict)
    executions: list[Execution] = field(default_factory=list)
    effects: dict[int, list[int]] = field(default_factory=dict)
    kills: list[Kill] = field(default_factory=list)
    #: When all processes of the peer were started again, since messages were left; 0: that was not needed.
    restarted: int = 0


@dataclass
class Verdict:
    """What a run came to. Times in seconds."""

    pushed: int = 0
    done: int = 0
    lost: int = 0
    #: Done only after all processes of the peer were started again.
    stuck: int = 0
    reordered: int = 0
    overlapped: int = 0
    doubled: int = 0
    #: Executions of messages that had run to their end before.
    repeated: int = 0
    #: From the first push to the last end.
    seconds: float = 0.0
    latencies_s: list[float] = field(default_factory=list)
    #: From each kill of a worker to the next execution of each ticket that ran there.
    rerouted_s: list[float] = field(default_factory=list)
    #: Such tickets that never ran again.
    stranded: int = 0

    @property
    def rate(self) -> float:
        """Messages a second, those that were lost or stuck not counted."""
        return (self.done - self.stuck) / self.seconds if self.seconds else 0.0

    @property
    def violations(self) -> int:
        """All of them."""
        return self.lost + self.stuck + self.reordered + self.overlapped + self.doubled


def judge(evidence: Evidence) -> Verdict:
    """What the evidence says."""
    verdict = Verdict(pushed=len(evidence.pushed))
    for ticket, numbers in evidence.effects.items():
        counted = Counter(numbers)
        verdict.doubled += sum(count - 1 for count in counted.values())
        verdict.reordered += reordered(numbers)
        verdict.done += sum((ticket, number) in evidence.pushed for number in counted)
    verdict.lost = verdict.pushed - verdict.done
    died = {pid: kill.at for kill in evidence.kills for pid in kill.pids}
    verdict.overlapped = overlapped(evidence.executions, died)
    ends: dict[Message, int] = {}
    complete = [one for one in evidence.executions if one.end is not None]
    for one in complete:
        assert one.end is not None
        ends[one.message] = min(one.end, ends.get(one.message, one.end))
    verdict.repeated = len(complete) - len(ends)
    if evidence.restarted:
        verdict.stuck = sum(at > evidence.restarted for at in ends.values())
        ends = {message: at for message, at in ends.items() if at <= evidence.restarted}
    verdict.latencies_s = sorted((at - evidence.pushed[message]) / 1e9 for message, at in ends.items())
    if ends:
        verdict.seconds = (max(ends.values()) - min(evidence.pushed.values())) / 1e9
    verdict.rerouted_s, verdict.stranded = rerouted(evidence)
    return verdict


def reordered(numbers: Iterable[int]) -> int:
    """How many first effects came after one of a later message of their ticket."""
    newest = found = 0
    seen = set()
    for number in numbers:
        if number not in seen:
            seen.add(number)
            found += number < newest
            newest = max(newest, number)
    return found


def overlapped(executions: Iterable[Execution], died: Mapping[int, int]) -> int:
    """How many executions began while an older one of their ticket went on.

    One that was cut off went on until its process was killed; where no kill explains it, it counts as over at once.
    """
    by_ticket: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for one in executions:
        end = one.end if one.end is not None else max(one.start, died.get(one.pid, one.start))
        by_ticket[one.message[0]].append((one.start, end))
    found = 0
    for spans in by_ticket.values():
        spans.sort()
        latest = 0
        for start, end in spans:
            found += start < latest
            latest = max(latest, end)
    return found


def rerouted(evidence: Evidence) -> tuple[list[float], int]:
    """(Seconds from a kill to the next execution of each ticket that it cut off, how many never ran again)."""
    by_ticket: dict[int, list[int]] = defaultdict(list)
    for one in evidence.executions:
        by_ticket[one.message[0]].append(one.start)
    for starts in by_ticket.values():
        starts.sort()
    times, stranded = [], 0
    for kill in evidence.kills:
        cut = {one.message[0] for one in evidence.executions if one.pid in kill.pids and one.end is None}
        for ticket in sorted(cut):
            again = next((start for start in by_ticket[ticket] if start > kill.at), None)
            if again is None:
                stranded += 1
            else:
                times.append((again - kill.at) / 1e9)
    return sorted(times), stranded


def per_second(evidence: Evidence) -> list[int]:
    """How many messages ran to their end in each second since the first push."""
    began = min(evidence.pushed.values(), default=0)
    counted = Counter((one.end - began) // 1_000_000_000 for one in evidence.executions if one.end is not None)
    return [counted[second] for second in range(max(counted, default=-1) + 1)]


def longest_gap_s(evidence: Evidence) -> float:
    """The longest time in which nothing ended."""
    ends = sorted(one.end for one in evidence.executions if one.end is not None)
    return max(((later - earlier) / 1e9 for earlier, later in pairwise(ends)), default=0.0)
