"""The audits of all partitions of a stream, as one audit with one result."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from bridge.audit.audit import Audit
from bridge.audit.verdict import AuditVerdict, Coverage
from bridge.routing.ids import id_key
from bridge.routing.numbers import count

if TYPE_CHECKING:
    from redis import Redis

    from bridge.audit.checks import Check, Finding
    from bridge.audit.wanted import Wants
    from bridge.routing.history import Delivery, What
    from bridge.routing.ids import IdKey
    from bridge.routing.keys import LaneKeys

#: Examples of findings, and executions of frozen processes, that a result names.
EXAMPLES = 20
#: An id in the text of a finding, and what comes before it.
_ID_IN_TEXT = re.compile(r"\b(message |after |before |letter \()([0-9]+-[0-9]+)\b")


@dataclass(frozen=True)
class Totals:
    """What was read so far, over all partitions."""

    rows: Counter[What]
    undone: int
    counts: Counter[Check]


class Audits:
    """One audit of a stream. ``lanes``: the keys of each partition's lane, and what follows its stream ids."""

    def __init__(
        self,
        redis: Redis,
        lanes: Sequence[tuple[LaneKeys, str]],
        *,
        clock_skew_ms: float,
        since: str | None,
        ticket: str | None,
        wants: Wants | None,
        on_rows: Callable[[list[Delivery]], None],
        on_finding: Callable[[Finding], None],
    ) -> None:
        def rows_of(suffix: str) -> Callable[[list[Delivery]], None]:
            if not suffix:
                return on_rows
            return lambda rows: on_rows([_named_row(row, suffix) for row in rows])

        def finding_of(suffix: str) -> Callable[[Finding], None]:
            return lambda finding: on_finding(_named(finding, suffix))

        self._suffixes = [suffix for _, suffix in lanes]
        self._audits = [
            Audit(
                redis,
                keys,
                clock_skew_ms=clock_skew_ms,
                since=since,
                ticket=ticket,
                wants=wants,
                on_rows=rows_of(suffix),
                on_finding=finding_of(suffix),
            )
            for keys, suffix in lanes
        ]

    def run(self) -> AuditVerdict:
        """Checks all rows, and then compares the history of each partition with its lane."""
        self.compare()
        return self.result()

    def advance(self) -> bool:
        """Reads on, in each partition. Returns whether there is more."""
        return sum(audit.advance() for audit in self._audits) > 0

    def wait(self, timeout_ms: int) -> None:
        """Waits for new rows, a share of the time in each partition."""
        for audit in self._audits:
            audit.wait(max(1, timeout_ms // len(self._audits)))

    def compare(self) -> None:
        """Compares the history of each partition with its lane."""
        for audit in self._audits:
            audit.compare()

    @property
    def totals(self) -> Totals:
        """What was read so far."""
        rows: Counter[What] = Counter()
        counts: Counter[Check] = Counter()
        for audit in self._audits:
            rows.update(audit.auditor.rows)
            counts.update(audit.auditor.counts)
        return Totals(rows, sum(len(audit.auditor.undone) for audit in self._audits), counts)

    def result(self) -> AuditVerdict:
        """The result of what was read so far, added up."""
        verdicts = [audit.result() for audit in self._audits]
        # A ticket may have messages in several versions.
        tickets = len({ticket for audit in self._audits for ticket in audit.auditor.ticket_ids})
        return added_up(verdicts, self._suffixes, tickets)


def added_up(verdicts: Sequence[AuditVerdict], suffixes: Sequence[str], tickets: int) -> AuditVerdict:
    """One result for all partitions and versions. ``suffixes``: what follows the stream ids of each. ``tickets``: how
    many tickets they have together.
    """
    if len(verdicts) == 1:
        [alone], [suffix] = verdicts, suffixes
        return _named_verdict(alone, suffix)
    named = [_named_verdict(verdict, suffix) for verdict, suffix in zip(verdicts, suffixes, strict=True)]
    # An empty history has no rows, and no times. Nothing is said of its stream, except that.
    times = [verdict for verdict in named if verdict.deliveries]
    notes = dict.fromkeys(note for one in named for note in one.notes)
    if times and len(times) < len(named):
        empty = f"{len(named) - len(times)} of {count(len(named), 'stream')}"
        notes[f"the history of {empty} is empty: nothing of that was audited"] = None
    return AuditVerdict(
        coverage=_covered([one.coverage for one in times or named]),
        deliveries=sum(one.deliveries for one in named),
        rows={what: sum(one.rows[what] for one in named) for what in named[0].rows},
        tickets=tickets,
        undone=sum(one.undone for one in named),
        repeats=sum(one.repeats for one in named),
        first_ms=min((one.first_ms for one in times), default=0),
        last_ms=max((one.last_ms for one in times), default=0),
        counts={check: sum(one.counts[check] for one in named) for check in named[0].counts},
        examples=tuple(example for one in named for example in one.examples)[:EXAMPLES],
        stale=tuple(row for one in named for row in one.stale)[:EXAMPLES],
        notes=tuple(notes),
    )


def _covered(each: Sequence[Coverage]) -> Coverage:
    capped = [one for one in each if not one.complete]
    # A complete history begins with the first message of its stream. Capped ones are all whole from the latest on.
    first = max(capped, key=_from) if capped else min(each, key=_from)
    return Coverage(not capped, first.from_id, any(one.older for one in each))


def _from(one: Coverage) -> IdKey:
    return id_key(one.from_id)


def _named_verdict(verdict: AuditVerdict, suffix: str) -> AuditVerdict:
    if not suffix:
        return verdict
    return replace(
        verdict,
        examples=tuple(_named(finding, suffix) for finding in verdict.examples),
        stale=tuple(_named_row(row, suffix) for row in verdict.stale),
        notes=tuple(f"{suffix[1:]}: {note}" for note in verdict.notes),
    )


def _named(finding: Finding, suffix: str) -> Finding:
    text = _ID_IN_TEXT.sub(rf"\g<0>{suffix}", finding.text)
    return replace(finding, message_id=finding.message_id and f"{finding.message_id}{suffix}", text=text)


def _named_row(row: Delivery, suffix: str) -> Delivery:
    return replace(row, message_id=f"{row.message_id}{suffix}")
