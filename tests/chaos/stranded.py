"""How long tickets stood still when their worker went: from the fault to the next start of each."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tests.chaos.facts import Execution


@dataclass(frozen=True)
class Stranding:
    """A worker that went, and the runs that were in flight there: ticket -> message ids."""

    how: str
    pool: str
    at_ns: int
    pids: frozenset[int]
    runs: Mapping[str, Sequence[str]]


@dataclass(frozen=True)
class Waits:
    """Seconds, of all tickets that one kind of fault stranded."""

    how: str
    faults: int
    seconds: tuple[float, ...]

    def at(self, share: float) -> float:
        """The wait that ``share`` of all were at most as long as."""
        return self.seconds[min(len(self.seconds) - 1, int(share * len(self.seconds)))]


def waits(strandings: Iterable[Stranding], executions: Iterable[Execution]) -> list[Waits]:
    """The waits by kind of fault. A run that had ended, and only its record was left, waited for nothing."""
    starts: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for execution in executions:
        starts[execution.message_id].append((execution.start_ns, execution.pid))
    for found in starts.values():
        found.sort()
    seconds: dict[str, list[float]] = defaultdict(list)
    faults: dict[str, int] = defaultdict(int)
    for stranding in strandings:
        how = f"{stranding.how}, {stranding.pool}"
        faults[how] += 1
        for ids in stranding.runs.values():
            after = [
                at
                for id_ in ids
                for at, pid in starts[id_][bisect_right(starts[id_], (stranding.at_ns, 1 << 62)) :]
                if pid not in stranding.pids
            ]
            if after:
                seconds[how].append((min(after) - stranding.at_ns) / 1e9)
    return [Waits(how, faults[how], tuple(sorted(seconds[how]))) for how in sorted(faults)]
