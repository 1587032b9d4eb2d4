"""The result of an audit, as an object and as JSON."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from bridge.audit.auditor import Auditor
from bridge.audit.checks import Check, Finding
from bridge.routing.history import Delivery, What


@dataclass(frozen=True)
class Coverage:
    """How far back the history reaches."""

    #: The history has every delivery of the lane.
    complete: bool
    #: The history has every row of entries from this id on. Only these entries are checked for being lost.
    from_id: str
    #: The stream has older entries. Only their remaining rows are checked.
    older: bool


@dataclass(frozen=True)
class AuditVerdict:
    """The result of an audit."""

    coverage: Coverage
    deliveries: int
    rows: dict[What, int]
    tickets: int
    #: Messages that the group has read and that are neither done nor dead.
    undone: int
    #: Deliveries beyond the first of a message, each explained by a failed, lost, returned or replayed row.
    repeats: int
    #: When the first and the last row were written, Unix ms by the server's clock.
    first_ms: int
    last_ms: int
    #: Of the checks that were made.
    counts: dict[Check, int]
    #: A few of each check.
    examples: tuple[Finding, ...]
    #: A few executions of frozen processes. Their effects were refused, so they are no violations.
    stale: tuple[Delivery, ...]
    #: What could not be checked, one sentence each.
    notes: tuple[str, ...]

    @classmethod
    def of(
        cls, auditor: Auditor, coverage: Coverage, checks: Iterable[Check], notes: tuple[str, ...] = ()
    ) -> AuditVerdict:
        """The result of the rows that ``auditor`` got. ``checks``: those that were made."""
        return cls(
            coverage=coverage,
            deliveries=sum(auditor.rows.values()),
            rows={what: auditor.rows[what] for what in What},
            tickets=auditor.tickets,
            undone=len(auditor.undone),
            repeats=auditor.repeats,
            first_ms=auditor.first_ms,
            last_ms=auditor.last_ms,
            counts={check: auditor.counts[check] for check in checks},
            examples=tuple(auditor.examples),
            stale=tuple(auditor.stale),
            notes=notes,
        )

    @property
    def nothing(self) -> bool:
        """Whether there was nothing to audit."""
        return self.deliveries == 0 and self.clean

    @property
    def clean(self) -> bool:
        """Whether no check found anything."""
        return not any(self.counts.values())

    @property
    def ok(self) -> bool:
        """Whether the promise was kept as far as the history reaches. False when the history is empty."""
        return self.clean and not self.nothing

    @property
    def violations(self) -> int:
        """Findings of all checks."""
        return sum(self.counts.values())

    def document(self) -> dict[str, Any]:
        """All of it, for JSON."""
        return {
            "ok": self.ok,
            "violations": self.violations,
            "checks": {check.value: count for check, count in self.counts.items()},
            "examples": [finding.document() for finding in self.examples],
            "rows": {what.value: count for what, count in self.rows.items()},
            "deliveries": self.deliveries,
            "tickets": self.tickets,
            "undone": self.undone,
            "repeats_explained": self.repeats,
            "stale": [row_document(row) for row in self.stale],
            "complete": self.coverage.complete,
            "covered_from": self.coverage.from_id,
            "older_not_covered": self.coverage.older,
            "first_ms": self.first_ms,
            "last_ms": self.last_ms,
            "notes": list(self.notes),
        }


def row_document(row: Delivery) -> dict[str, Any]:
    """One row, for JSON. Times: Unix time in ms or us, as named; null where there was none."""
    return {
        "message_id": row.message_id,
        "ticket": row.ticket,
        "task": row.task,
        "what": row.what.value,
        "attempt": row.attempt or None,
        "fence": row.fence or None,
        "consumer": row.consumer or None,
        "enqueued_ms": int(row.message_id.partition("-")[0]),
        "dispatched_ms": row.dispatched_ms or None,
        "started_us": row.started_us or None,
        "finished_us": row.finished_us if row.started_us else None,
        "written_ms": row.written_ms,
        "why": row.why or None,
    }
