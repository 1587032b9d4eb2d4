"""``python -m benchmarks.goals``: each row of the goals as reached or not, with the figures it is made of."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
from redis.exceptions import RedisError
from rich.console import Console
from rich.table import Table

from benchmarks.goals.goal import Goal
from benchmarks.goals.rows import ROWS, Run, cases
from benchmarks.incidents import LOG
from benchmarks.machine import describe
from benchmarks.peers.node import NotInstalled, version
from benchmarks.report import show_disturbance, show_machine, significant
from benchmarks.results import Results
from benchmarks.stack import ROOT
from bridge.routing.errors import TicketBridgeError

#: Characters.
TABLE_WIDTH = 160

#: How the reason begins where a run broke.
BROKE = "a run broke: "
#: (case, variant) -> why it was left out.
Missing = dict[tuple[str, str], str]


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--rounds", type=click.IntRange(1, 100), default=5, show_default=True, help="How often each runs.")
@click.option("--scale", type=float, default=1.0, show_default=True, help="What to make of the number of messages.")
@click.option("--only", multiple=True, type=click.Choice(list(ROWS)), help="This row only; may be repeated.")
@click.option("--skip", multiple=True, type=click.Choice(list(ROWS)), help="Not this row; may be repeated.")
@click.option("--full", is_flag=True, help="1,000,000 tickets, 5,000,000 waiting, 16 workers in the scaling rows.")
@click.option(
    "--log",
    type=click.Path(dir_okay=False, path_type=Path),
    envvar=LOG,
    show_envvar=True,
    help="The incident log of the row `incidents`: a CSV, gzipped or not.",
)
@click.option(
    "--json", "json_file", type=click.Path(dir_okay=False, path_type=Path),
    help="Where the figures go.  [default: benchmarks/runs/goals-<time>.json]",
)  # fmt: skip
def main(
    rounds: int,
    scale: float,
    only: tuple[str, ...],
    skip: tuple[str, ...],
    full: bool,
    log: Path | None,
    json_file: Path | None,
) -> None:
    """Measures the rows of the project's goals, and says which are reached.

    The variants of a case take turns within each round; a ratio is formed within a round, and its median is judged.
    Exits with 0 also when a goal is not reached, with 1 when a run broke.
    """
    console = Console(width=None if sys.stdout.isatty() else TABLE_WIDTH)
    rows = {name: row for name, row in ROWS.items() if (not only or name in only) and name not in skip}
    stamp = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
    json_file = json_file or ROOT / "benchmarks" / "runs" / f"goals-{stamp}.json"
    results, missing = Results(), Missing()
    if log is not None:
        os.environ[LOG] = str(log)
    runs = cases(full=full)
    try:
        machine = {**describe(), **_peers()}
        show_machine(console, machine)
        for turn in range(1, rounds + 1):
            _round(console, f"round {turn} of {rounds}", rows, runs, scale, results, missing)
            _write(json_file, machine, rounds, scale, results, rows)
    except TicketBridgeError as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(error.exit_code)
    console.print(table(rows, results, missing))
    show_disturbance(console, results)
    console.print(f"Figures of all rounds: {json_file}", soft_wrap=True)
    sys.exit(int(any(reason.startswith(BROKE) for reason in missing.values())))


def _peers() -> dict[str, str]:
    found = {}
    for package in ("groupmq",):
        try:
            found[package] = version(package)
        except NotInstalled as reason:
            found[package] = f"left out: {reason}"
    return found


def wanted(rows: Mapping[str, Goal]) -> dict[str, list[str]]:
    """Case -> the variants of it that some row needs, each once."""
    found: dict[str, list[str]] = {}
    for row in rows.values():
        variants = found.setdefault(row.case, [])
        variants += [name for name in (row.peer, row.variant) if name is not None and name not in variants]
    return found


def _round(
    console: Console,
    title: str,
    rows: Mapping[str, Goal],
    runs: Mapping[str, Run],
    scale: float,
    results: Results,
    missing: Missing,
) -> None:
    for case, variants in wanted(rows).items():
        for variant in variants:
            if (case, variant) in missing:
                continue
            try:
                with console.status(f"{title}: {case}, {variant}"):
                    metrics = runs[case](variant, scale)
            except NotInstalled as reason:
                missing[case, variant] = str(reason)
                console.print(f"{title}  {case}, {variant}: left out; {reason}", highlight=False, soft_wrap=True)
                continue
            except (TicketBridgeError, RedisError) as error:
                # The other rows are worth their time.
                missing[case, variant] = f"{BROKE}{error}"
                console.print(f"{title}  {case}, {variant}: {BROKE}{error}", highlight=False, soft_wrap=True)
                continue
            results.add(case, variant, metrics)
            said = ", ".join(f"{name} {significant(value)}" for name, value in list(metrics.items())[:3])
            console.print(f"{title}  {case:<10} {variant:<10} {said}", highlight=False)


def table(rows: Mapping[str, Goal], results: Results, missing: Missing) -> Table:
    """A line for each row: the figure that is judged with its spread, the two it is made of, and the verdict."""
    made = Table(title="Goals", title_justify="left", title_style="bold")
    for heading in ("row", "", "goal", "measured (min … max)", "own", "peer", ""):
        made.add_column(heading, justify="right" if heading in ("goal", "own", "peer") else "left")
    for name, row in rows.items():
        found, reached = row.measured(results), row.reached(results)
        if found is None or reached is None:
            why = missing.get((row.case, row.peer or ""), missing.get((row.case, row.variant), ""))
            made.add_row(name, row.text, row.bound, f"[dim]not measured{why and ': '}{why}[/]", "", "", "")
            continue
        shown = f"{significant(found.median)} ({significant(found.low)} … {significant(found.high)})"
        own = results.spread(row.case, row.variant, row.metric)
        peer = results.spread(row.case, row.peer, row.metric) if row.peer else None
        figures = [significant(one.median) if one else "" for one in (own, peer)]
        verdict = "[green]reached[/]" if reached else "[red]NOT reached[/]"
        made.add_row(name, row.text, row.bound, shown, *figures, verdict)
    return made


def _write(
    json_file: Path, machine: dict[str, str], rounds: int, scale: float, results: Results, rows: Mapping[str, Goal]
) -> None:
    judged: dict[str, Any] = {}
    for name, row in rows.items():
        if (found := row.measured(results)) is not None:
            judged[name] = {"goal": row.text, "bound": row.bound, **asdict(found), "reached": row.reached(results)}
    whole = {"machine": machine, "rounds": rounds, "scale": scale, "rows": judged, "results": results.values}
    json_file.parent.mkdir(parents=True, exist_ok=True)
    json_file.write_text(json.dumps(whole, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
