"""The results of a soak, for people (Markdown) and for programs (JSON)."""

from __future__ import annotations

import json
import os
import platform
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import celery
import redis

from tests.chaos.checks import APPLIED_TWICE, LOST, OVERLAP, REORDERED, STALE_EFFECT, Violation
from tests.chaos.result import Result

#: Violations that the report shows in full.
SHOWN = 50


@dataclass(frozen=True)
class Soak:
    """A soak and what came of it."""

    seed: int
    log: str
    asked: dict[str, Any]
    result: Result
    server: str
    #: Tickets whose state was compared with Spark's, how many were equal, and the first differences in words.
    compared: int
    equal: int
    differences: Sequence[str]

    @property
    def passed(self) -> bool:
        return not self.result.violations and self.equal == self.compared and not self.result.cut_short


def machine() -> dict[str, Any]:
    """Where it ran: nothing that names the machine."""
    model, memory_kb = "unknown", 0
    for line in _lines("/proc/cpuinfo"):
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    for line in _lines("/proc/meminfo"):
        if line.startswith("MemTotal"):
            memory_kb = int(line.split()[1])
    return {
        "processors": os.cpu_count(),
        "model": model,
        "memory_gib": round(memory_kb / 2**20, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "celery": celery.__version__,
        "redis_py": redis.__version__,
    }


def as_dict(soak: Soak) -> dict[str, Any]:
    """Everything, as JSON can hold it."""
    result = soak.result
    by_kind = Counter(violation.invariant for violation in result.violations)
    names = (LOST, REORDERED, OVERLAP, APPLIED_TWICE, STALE_EFFECT)
    return {
        "passed": soak.passed,
        "cut_short": result.cut_short,
        "seed": soak.seed,
        "asked": soak.asked,
        "log": soak.log,
        "machine": {**machine(), "server": soak.server},
        "messages": len(result.messages),
        "tickets": len({message.ticket for message in result.messages}),
        "succeeded": len(result.effects),
        "dead": len(result.letters),
        "executions": len(result.executions),
        "repeated_executions": len(result.executions) - len({one.message_id for one in result.executions}),
        "seconds": round(result.seconds, 1),
        "messages_per_second": round(result.per_second, 1),
        "faults": dict(sorted(result.faults.items())),
        "faults_total": sum(result.faults.values()),
        "faults_without_a_target": result.missed,
        "violations": {**dict.fromkeys(names, 0), **by_kind},
        "violations_in_words": [str(violation) for violation in result.violations[:SHOWN]],
        "states_compared": soak.compared,
        "states_equal": soak.equal,
        "differences": list(soak.differences),
        "reroute_seconds": {
            waits.how: {
                "faults": waits.faults,
                "tickets": len(waits.seconds),
                **({"p50": waits.at(0.5), "p99": waits.at(0.99), "max": waits.at(1.0)} if waits.seconds else {}),
            }
            for waits in result.waits
        },
        "leaderless_seconds": _spread(result.leaderless_s),
        "lane_counts": result.counts,
    }


def as_markdown(results: dict[str, Any]) -> str:
    """The same for people."""
    verdict = "FAILED"
    if results["passed"]:
        verdict = "PASSED"
    elif results["cut_short"] and not _wrong(results):
        verdict = "CUT SHORT"
    where = results["machine"]
    lines = [
        f"# Soak: {verdict}",
        "",
        f"Seed {results['seed']}; {results['log']}.",
        f"{where['processors']} processors ({where['model']}), {where['memory_gib']} GiB, Linux {where['kernel']}, "
        f"Python {where['python']}, Celery {where['celery']}, {where['server']}. "
        f"Asked for: {', '.join(f'{name} {value}' for name, value in results['asked'].items())}.",
        "",
        "| what | count |",
        "|---|---:|",
        *(
            f"| {name} | {value:,} |"
            for name, value in {
                "messages": results["messages"],
                "tickets": results["tickets"],
                "succeeded": results["succeeded"],
                "dead": results["dead"],
                "faults": results["faults_total"],
                "executions beyond the first of a message (allowed)": results["repeated_executions"],
                **{f"violations: {name}": count for name, count in results["violations"].items()},
                "tickets whose state was compared with Spark's": results["states_compared"],
                "of them equal": results["states_equal"],
            }.items()
        ),
        "",
        f"{results['messages_per_second']:,} messages a second over {results['seconds']:,} s, all faults included.",
        "",
        "| fault | times |",
        "|---|---:|",
        *(f"| {name} | {count} |" for name, count in results["faults"].items()),
        "",
        "From a worker's end to the next start of each ticket that was in flight there, in seconds, with other faults "
        "under way at the same time:",
        "",
        "| how it ended | faults | tickets | p50 | p99 | max |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for how, waits in results["reroute_seconds"].items():
        figures = [f"{waits[name]:.3f}" if name in waits else "-" for name in ("p50", "p99", "max")]
        lines.append(f"| {how} | {waits['faults']} | {waits['tickets']} | {' | '.join(figures)} |")
    spread = results["leaderless_seconds"]
    if spread:
        lines += ["", f"Without a leader after one was killed: {', '.join(f'{k} {v}' for k, v in spread.items())} s."]
    if results["violations_in_words"] or results["differences"]:
        lines += ["", "## Violations", "", "```"]
        lines += [*results["violations_in_words"], *results["differences"], "```"]
    return "\n".join(lines) + "\n"


def write(soak: Soak, path: Path) -> None:
    """``path`` gets the Markdown, and the JSON beside it the same name with ``.json``."""
    results = as_dict(soak)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(as_markdown(results), encoding="utf-8")
    path.with_suffix(".json").write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")


def in_short(violations: Sequence[Violation]) -> str:
    """How many of which kind."""
    found = Counter(violation.invariant for violation in violations)
    return ", ".join(f"{name} {count}" for name, count in found.most_common()) or "none"


def _wrong(results: dict[str, Any]) -> bool:
    return any(results["violations"].values()) or results["states_equal"] != results["states_compared"]


def _spread(seconds: Sequence[float]) -> dict[str, float]:
    if not seconds:
        return {}
    found = sorted(seconds)
    at = {"p50": 0.5, "p99": 0.99}
    spread = {name: round(found[min(len(found) - 1, int(share * len(found)))], 3) for name, share in at.items()}
    return {"times": len(found), **spread, "max": round(found[-1], 3)}


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
