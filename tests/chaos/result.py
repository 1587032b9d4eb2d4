"""The result of a chaos run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.chaos.checks import Violation
from tests.chaos.facts import Effect, Execution, Letter, Message
from tests.chaos.stranded import Waits


@dataclass
class Result:
    """What came of a run."""

    violations: list[Violation] = field(default_factory=list)
    messages: Sequence[Message] = ()
    executions: Sequence[Execution] = ()
    effects: Sequence[Effect] = ()
    letters: Sequence[Letter] = ()
    faults: dict[str, int] = field(default_factory=dict)
    missed: dict[str, int] = field(default_factory=dict)
    killed_by_tasks: int = 0
    waits: list[Waits] = field(default_factory=list)
    leaderless_s: list[float] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    answers: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    #: How many repartitions there were, and how often their command was killed.
    repartitions: tuple[int, int] = (0, 0)
    #: Lie -> how often it was answered as it must be.
    told: dict[str, int] = field(default_factory=dict)
    #: Messages that the schedule pushed.
    ticks: int = 0
    #: The user, or the clock, ended it before its last fault.
    cut_short: bool = False

    def describe(self, tickets: int = 3) -> str:
        """The violations, and all executions and effects of the first few tickets that they concern."""
        lines = [str(violation) for violation in self.violations[:40]]
        concerned = list(dict.fromkeys(violation.ticket for violation in self.violations if violation.ticket))
        for ticket in concerned[:tickets]:
            rows = [(one.wall_ns, str(one)) for one in self.executions if one.ticket == ticket]
            rows += [(one.at_ms * 1_000_000, str(one)) for one in self.effects if one.ticket == ticket]
            near = {violation.message_id for violation in self.violations if violation.ticket == ticket}
            at = [place for place, (_, row) in enumerate(sorted(rows)) if any(id_ in row for id_ in near)]
            lines += [
                f"--- {ticket}",
                *(row for _, row in sorted(rows)[max(0, min(at, default=0) - 3) : max(at, default=0) + 4]),
            ]
        return "\n".join(lines)

    @property
    def per_second(self) -> float:
        return (len(self.effects) + len(self.letters)) / self.seconds if self.seconds else 0.0
