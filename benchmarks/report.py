"""The tables."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from benchmarks.cases import Case, Column
from benchmarks.figures import Spread
from benchmarks.goals.goal import Goal
from benchmarks.results import Results

#: CPU of other processes that does not matter, in percent of a core.
QUIET = 15.0


def show_machine(console: Console, machine: dict[str, str]) -> None:
    """On what it was measured."""
    for name, value in machine.items():
        console.print(f"[dim]{name:>12}[/]  {value}", highlight=False, soft_wrap=True)


def show_case(console: Console, name: str, case: Case, results: Results) -> None:
    """A line for each variant: medians, and the spread of the first column and of its ratio."""
    table = Table(title=case.title, title_justify="left", title_style="bold")
    table.add_column("", no_wrap=True)
    for i, column in enumerate(case.columns):
        table.add_column(column.heading, justify="right")
        if i == 0:
            table.add_column("min … max", justify="right", no_wrap=True)
            if case.peer is not None:
                table.add_column(f"/ {case.peer}", justify="right", no_wrap=True)
    for variant, title in case.variants.items():
        cells = []
        for i, column in enumerate(case.columns):
            found = results.spread(name, variant, column.metric)
            cells.append(number(found.median, column.decimals) if found else "")
            if i == 0:
                cells.append(extremes(found, column))
                if case.peer is not None:
                    ratio = results.ratio(name, variant, case.peer, column.metric)
                    cells.append(ratio_text(ratio) if ratio else "")
        table.add_row(title, *cells)
    console.print(table)


def show_goals(console: Console, goals: tuple[Goal, ...], results: Results) -> None:
    """Each goal that was measured, the figure, and whether it is reached."""
    table = Table(title="Goals", title_justify="left", title_style="bold")
    table.add_column("goal")
    table.add_column("bound", justify="right", no_wrap=True)
    table.add_column("measured", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for goal in goals:
        reached = goal.reached(results)
        found = goal.measured(results)
        if reached is None or found is None:
            table.add_row(goal.text, goal.bound, "", "[dim]not measured[/]")
            continue
        shown = f"{significant(found.median)} ({significant(found.low)} … {significant(found.high)})"
        table.add_row(goal.text, goal.bound, shown, "[green]reached[/]" if reached else "[red]not reached[/]")
    console.print(table)


def show_disturbance(console: Console, results: Results) -> None:
    """A warning when the machine was not the benchmark's own."""
    percent = results.disturbance()
    if percent > QUIET:
        console.print(
            f"[yellow]Other processes used {percent:.0f} % of a core meanwhile: trust ratios and µs, not rates.[/]",
            highlight=False,
        )


def number(value: float, decimals: int) -> str:
    """With thousands' separators."""
    return f"{value:,.{decimals}f}"


def significant(value: float) -> str:
    """As many decimals as three digits need."""
    size = abs(value)
    return number(value, 0 if size >= 100 else 1 if size >= 10 else 2)


def extremes(found: Spread | None, column: Column) -> str:
    """The spread over the rounds."""
    if found is None:
        return ""
    return f"{number(found.low, column.decimals)} … {number(found.high, column.decimals)}"


def ratio_text(ratio: Spread) -> str:
    """The median of the rounds' ratios, and their extremes when they are several."""
    if ratio.rounds == 1:
        return f"{ratio.median:.2f}"
    return f"{ratio.median:.2f} ({ratio.low:.2f} … {ratio.high:.2f})"
