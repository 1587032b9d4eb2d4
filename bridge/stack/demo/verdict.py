"""Judges a run from evidence that the bridge does not write itself: the ledger of what ran, and Spark's expectations.

Pure functions. The demo gathers the evidence, and tests pass in made-up ledgers.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any
from zlib import crc32

from bridge.stack.demo.follow_ups import FollowUps
from bridge.stack.demo.ledger import Kind, Ledger, Record

#: Examples of each kind of fault that are kept for the report.
EXAMPLES = 3


@dataclass
class Findings:
    """What the ledger says of a run. All numbers but ``repeated`` must be 0."""

    #: Events without a successful end.
    lost: int = 0
    #: Events that succeeded out of order.
    reordered: int = 0
    #: Executions that began while another one of their ticket was running.
    overlapped: int = 0
    #: Executions of events that were not pushed.
    unexpected: int = 0
    #: Executions beyond the first of each event. Allowed: a message is delivered at least once.
    repeated: int = 0
    #: For people: the first few faults in words.
    examples: list[str] = field(default_factory=list)
    #: From the first start to the last successful end.
    seconds: float = 0.0

    @property
    def clean(self) -> bool:
        """Whether nothing is wrong."""
        return not (self.lost or self.reordered or self.overlapped or self.unexpected)


@dataclass(frozen=True)
class Reroute:
    """How long the tickets of a killed worker stood still: from the kill to the next start of each, in seconds."""

    tickets: int
    median_s: float
    max_s: float


@dataclass(frozen=True)
class TrailVerdict:
    """What decides whether the second subscription kept the promise: the audit trail."""

    done: int
    dead: int
    findings: Findings
    #: Incidents whose trail has each of their events once and in order.
    complete: int


@dataclass(frozen=True)
class NoticesVerdict:
    """What decides whether the HTTP consumer kept the promise, which handles the urgent events alone."""

    messages: int
    done: int
    dead: int
    findings: Findings

    @property
    def ok(self) -> bool:
        """Whether all were handled, in order."""
        return self.done == self.messages and not self.dead and self.findings.clean


@dataclass(frozen=True)
class DemoVerdict:
    """All that decides whether a run passed."""

    messages: int
    tickets: int
    done: int
    dead: int
    findings: Findings
    states_equal: int
    #: Problems that no number above shows, in words.
    problems: tuple[str, ...] = ()
    reroute: Reroute | None = None
    killed: str | None = None
    #: Length of a worker's lease, in seconds: the bound of ``reroute``.
    lease_s: float = 0.0
    #: The same as ``states_equal``, of the states in the table that Spark reads. None: it was not asked.
    states_read_by_spark: int | None = None
    #: None: the app has no audit trail.
    trail: TrailVerdict | None = None
    #: None: there are none.
    follow_ups: FollowUps | None = None
    #: None: there is no HTTP consumer.
    notices: NoticesVerdict | None = None

    @property
    def ok(self) -> bool:
        """Whether the promise was kept, by all subscriptions."""
        complete = self.done == self.messages and self.dead == 0
        complete = complete and self.states_equal == self.tickets
        complete = complete and self.states_read_by_spark in (None, self.tickets)
        others_ok = all(other is None or other.ok for other in (self.follow_ups, self.notices))
        return complete and self.findings.clean and self.trail_ok and others_ok and not self.problems

    @property
    def trail_ok(self) -> bool:
        """Whether the audit trail is complete. True when there is none."""
        trail = self.trail
        if trail is None:
            return True
        return (
            trail.done == self.messages and trail.complete == self.tickets and not trail.dead and trail.findings.clean
        )

    @property
    def throughput(self) -> float:
        """Messages handled per second, the worker's death included."""
        return self.done / self.findings.seconds if self.findings.seconds else 0.0

    def as_dict(self) -> dict[str, Any]:
        """For ``--json``."""
        flat = _flat(self)
        if self.trail is not None:
            flat["trail"] = {**_flat(self.trail), "ok": self.trail_ok}
        if self.notices is not None:
            flat["notices"] = {**_flat(self.notices), "ok": self.notices.ok}
        return {"ok": self.ok, **flat, "throughput_per_s": round(self.throughput, 1)}


def _flat(verdict: DemoVerdict | TrailVerdict | NoticesVerdict) -> dict[str, Any]:
    flat = {**asdict(verdict), **asdict(verdict.findings)}
    del flat["findings"]
    return flat


def judge(ledger: Ledger, expected: Mapping[str, int], killed: Mapping[int, int]) -> Findings:
    """What the ledger says.

    ``expected``: ticket -> how many events it has, numbered from 1. ``killed``: process id -> when it was killed
    (monotonic ns). An execution without an end counts as ended when its process was killed. In any other process it
    counts as ended at its start.
    """
    findings = Findings()
    faults: dict[str, list[str]] = defaultdict(list)
    by_ticket: dict[str, list[Record]] = defaultdict(list)
    for record in ledger.records:
        by_ticket[record.ticket].append(record)
    for ticket, records in by_ticket.items():
        records.sort(key=lambda record: record.at_ns)
        _judge_order(ticket, records, findings, faults["reordered"])
        _judge_overlaps(ticket, records, killed, findings, faults["overlapped"])
        starts = Counter(record.seq for record in records if record.kind is Kind.START and record.seq >= 0)
        findings.repeated += sum(starts.values()) - len(starts)
        count = expected.get(ticket, 0)
        unpushed = [seq for seq in starts if not 1 <= seq <= count]
        findings.unexpected += len(unpushed)
        faults["unexpected"] += [f"unexpected: {ticket} event {seq} ran and was never pushed" for seq in unpushed]
    for ticket, count in expected.items():
        done = {record.seq for record in by_ticket.get(ticket, ()) if record.kind is Kind.DONE}
        missing = [seq for seq in range(1, count + 1) if seq not in done]
        findings.lost += len(missing)
        if missing and len(faults["lost"]) < EXAMPLES:
            faults["lost"].append(f"lost: {ticket} event {missing[0]} never succeeded")
    findings.examples = [line for kind in sorted(faults) for line in faults[kind][:EXAMPLES]]
    findings.seconds = _span_s(ledger.records)
    return findings


def _judge_order(ticket: str, records: Iterable[Record], findings: Findings, faults: list[str]) -> None:
    last = 0
    for record in records:
        if record.kind is not Kind.DONE or record.seq < 0:
            continue  # a follow-up, which `follow_ups` judges
        if record.seq not in (last, last + 1) or record.seq == 0:
            findings.reordered += 1
            faults.append(f"reordered: {ticket} event {record.seq} succeeded after event {last}")
        last = record.seq


def _judge_overlaps(
    ticket: str, records: Iterable[Record], killed: Mapping[int, int], findings: Findings, faults: list[str]
) -> None:
    # A fence belongs to one dispatch. The pid is in the key too, in case two processes ran under one fence.
    ends = {(r.pid, r.fence): r.at_ns for r in records if r.kind is not Kind.START}
    busy_until = 0
    busy: Record | None = None
    for record in records:
        if record.kind is not Kind.START:
            continue
        if busy is not None and record.at_ns < busy_until:
            findings.overlapped += 1
            faults.append(f"overlapped: {ticket} event {record.seq} began before event {busy.seq} had ended")
        end = ends.get((record.pid, record.fence), killed.get(record.pid, record.at_ns))
        if end > busy_until:
            busy_until, busy = end, record


def _span_s(records: Iterable[Record]) -> float:
    starts = [record.at_ns for record in records if record.kind is Kind.START]
    ends = [record.at_ns for record in records if record.kind is Kind.DONE]
    return (max(ends) - min(starts)) / 1e9 if starts and ends else 0.0


def time_to_reroute(
    ledger: Ledger, interrupted: Mapping[str, tuple[int, int]], processes: set[int], killed_ns: int
) -> Reroute | None:
    """How long the tickets that were in flight on a killed worker stood still. None: there were none.

    ``interrupted``: ticket -> (first fence, messages) of its run on that worker. ``processes``: the worker's pool
    processes. A ticket whose whole run had ended before the kill had nothing to wait for.
    """
    finished: Counter[str] = Counter()
    next_start: dict[str, int] = {}
    for record in ledger.records:
        run = interrupted.get(record.ticket)
        if run is None:
            continue
        if record.kind is Kind.DONE and record.pid in processes and run[0] <= record.fence < run[0] + run[1]:
            finished[record.ticket] += 1
        elif record.kind is Kind.START and record.at_ns > killed_ns and record.pid not in processes:
            next_start[record.ticket] = min(record.at_ns, next_start.get(record.ticket, record.at_ns))
    waits = [(at - killed_ns) / 1e9 for ticket, at in next_start.items() if finished[ticket] < interrupted[ticket][1]]
    return Reroute(len(waits), median(waits), max(waits)) if waits else None


def compare_states(
    expected: Mapping[str, Mapping[str, str]], actual: Mapping[str, Mapping[str, str]]
) -> tuple[int, list[str]]:
    """How many tickets have exactly the expected state, and the first few differences in words."""
    equal = 0
    differences: list[str] = []
    for ticket, state in expected.items():
        found = actual.get(ticket, {})
        if found == state:
            equal += 1
        elif len(differences) < EXAMPLES:
            names = [name for name in sorted({*state, *found}) if found.get(name) != state.get(name)]
            text = ", ".join(f"{name} is {found.get(name)!r}, not {state.get(name)!r}" for name in names[:2])
            differences.append(f"state of {ticket}: {text}" if found else f"state of {ticket}: there is none")
    return equal, differences


def compare_trails(
    expected: Mapping[str, Mapping[str, str]], actual: Mapping[str, Sequence[bytes]]
) -> tuple[int, list[str]]:
    """How many incidents have a complete trail, and the first few others in words.

    A trail is complete when it has as many lines as the incident has events, and the fingerprint of its lines is the
    one that Spark computed from the log: each lost, doubled or misplaced line changes it.
    """
    complete = 0
    differences: list[str] = []
    for ticket, state in expected.items():
        lines = actual.get(ticket, ())
        digest = 0
        for line in lines:
            digest = (31 * digest + crc32(line)) % 2**32
        if (str(len(lines)), str(digest)) == (state["events"], state["digest"]):
            complete += 1
        elif len(differences) < EXAMPLES:
            what = "not those of the log" if str(len(lines)) == state["events"] else f"not {state['events']}"
            differences.append(f"audit trail of {ticket}: {len(lines)} events, {what}")
    return complete, differences
