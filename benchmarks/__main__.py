"""``python -m benchmarks``: runs the cases, prints tables, writes JSON. See docs/explanation/benchmarks.md."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import click
from rich.console import Console

from benchmarks.cases import CASES, Case
from benchmarks.goals.house import GOALS
from benchmarks.machine import describe
from benchmarks.report import show_case, show_disturbance, show_goals, show_machine
from benchmarks.results import Results
from benchmarks.stack import ROOT
from bridge.routing.errors import TicketBridgeError

#: What ``--quick`` makes of the messages and of the rounds.
QUICK_SCALE = 0.4
QUICK_ROUNDS = 1
#: Characters.
TABLE_WIDTH = 150


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--quick", is_flag=True, help=f"One round, with {QUICK_SCALE:.0%} of the messages: an impression.")
@click.option("--rounds", type=click.IntRange(1, 100), help="How often each variant runs.  [default: 3]")
@click.option("--only", multiple=True, type=click.Choice(list(CASES)), help="This case only; may be repeated.")
@click.option(
    "--json", "json_file", type=click.Path(dir_okay=False, path_type=Path),
    help="Where the figures go.  [default: benchmarks/runs/<time>.json]",
)  # fmt: skip
def main(quick: bool, rounds: int | None, only: tuple[str, ...], json_file: Path | None) -> None:
    """Measures the bridge against plain Celery and against a lock per ticket.

    Exits with 0 also when a goal is not reached: how fast a machine is says nothing about the code. With 1 when a run
    broke.
    """
    # In a pipe or a file there is no width to keep to; the tables need this much.
    console = Console(width=None if sys.stdout.isatty() else TABLE_WIDTH)
    rounds = rounds or (QUICK_ROUNDS if quick else 3)
    scale = QUICK_SCALE if quick else 1.0
    json_file = json_file or ROOT / "benchmarks" / "runs" / f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}.json"
    results = Results()
    chosen = {name: case for name, case in CASES.items() if not only or name in only}
    try:
        machine = describe()
        show_machine(console, machine)
        _measure(console, chosen, rounds, scale, results)
    except TicketBridgeError as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(error.exit_code)
    goals = tuple(goal for goal in GOALS if goal.case in chosen)
    console.print()
    for name, case in chosen.items():
        show_case(console, name, case, results)
        console.print()
    show_goals(console, goals, results)
    show_disturbance(console, results)
    _write(json_file, machine, rounds, scale, results)
    console.print(f"Figures of all rounds: {json_file}", soft_wrap=True)


def _measure(console: Console, cases: dict[str, Case], rounds: int, scale: float, results: Results) -> None:
    """The variants of a case take turns within each round, so that they share whatever else the machine does."""
    for turn in range(1, rounds + 1):
        for name, case in cases.items():
            for variant in case.variants:
                with console.status(f"round {turn} of {rounds}: {name}, {case.variants[variant]}"):
                    metrics = case.run(variant, scale)
                results.add(name, variant, metrics)
                first = case.columns[0]
                line = f"{metrics[first.metric]:,.{first.decimals}f} {first.heading}"
                console.print(f"round {turn}  {name:<9} {case.variants[variant]:<32} {line}", highlight=False)


def _write(json_file: Path, machine: dict[str, str], rounds: int, scale: float, results: Results) -> None:
    judged = []
    for goal in GOALS:
        found = goal.measured(results)
        if found is not None:
            judged.append(
                {"goal": goal.text, "bound": goal.bound, "measured": asdict(found), "reached": goal.reached(results)}
            )
    whole = {"machine": machine, "rounds": rounds, "scale": scale, "results": results.values, "goals": judged}
    json_file.parent.mkdir(parents=True, exist_ok=True)
    json_file.write_text(json.dumps(whole, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
