"""``bridge schedule``: the recurring messages of the app."""

from __future__ import annotations

import click
from rich.table import Table

from bridge.cli.group import Group
from bridge.cli.target import Target
from bridge.cli.terminal import echo_json
from bridge.routing.numbers import count, duration, moment
from bridge.routing.terminal import console
from bridge.routing.text import printable


@click.group(cls=Group)
def schedule() -> None:
    """Shows the recurring messages of the app (bridge_schedule)."""


@schedule.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def list_(target: Target, as_json: bool) -> None:
    """Lists the entries, the next tick first."""
    from bridge.app.finding import reach
    from bridge.inspect.schedule import read_schedule

    rows = read_schedule(reach(target.app), target.app)
    if as_json:
        echo_json({"entries": rows})
        return
    if not rows:
        click.echo("the app has no bridge_schedule")
        return
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("entry", "times", "next tick", "last tick or first seen", "task", "tickets"):
        made.add_column(name, no_wrap=name != "times", overflow="fold")
    for row in rows:
        late = row.next_in_ms < 0
        made.add_row(
            printable(row.name),
            printable(row.times),
            f"{moment(row.next_ms)} ({'late by' if late else 'in'} {duration(abs(row.next_in_ms))})",
            "none" if row.last_ms is None else moment(row.last_ms),
            printable(row.task),
            count(row.tickets, "ticket"),
        )
    console().print(made)
