"""Counts what an audit finds, and keeps a few examples of each check."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from bridge.audit.checks import Check, Finding

#: Findings of each check that are kept. All are counted.
EXAMPLES = 5


class Findings:
    """The violations of one history. ``only``: findings of this ticket, and those whose ticket is not known.
    ``on_finding``: called with each finding, also with those that are not kept.
    """

    def __init__(
        self,
        *,
        examples: int = EXAMPLES,
        only: str | None = None,
        on_finding: Callable[[Finding], None] | None = None,
    ) -> None:
        self._most = examples
        self._only = only
        self._on_finding = on_finding
        self.counts: Counter[Check] = Counter()
        self.examples: list[Finding] = []

    def report(self, check: Check, ticket: str, id_: str, text: str) -> None:
        """Adds a finding. ``ticket``: '' where it is not known."""
        if ticket and not self.are_about(ticket):
            return
        finding = Finding(check, ticket, id_, text)
        self.counts[check] += 1
        if self.counts[check] <= self._most:
            self.examples.append(finding)
        if self._on_finding is not None:
            self._on_finding(finding)

    def are_about(self, ticket: str) -> bool:
        """Whether findings of this ticket are reported."""
        return self._only is None or ticket == self._only
